//! A running browser: its tabs, commands and events.

use std::collections::BTreeMap;
use std::time::Duration;

use cantle_core::sandbox::Sandbox;
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};

use crate::connection::{Connection, Event, Incoming};
use crate::failure::{Failure, clip};
use crate::settings::Settings;

/// The script of [`Browser::evaluate_in_frames`].
const PAGE_SCRIPT: &str = include_str!("page.js");
/// Where downloads go, in the working directory.
pub(crate) const DOWNLOADS: &str = "downloads";
/// Maximum numbers of tabs, of frames that are read, and of dialogs that are answered in one call.
const MAX_TABS: usize = 10;
const MAX_FRAMES: usize = 20;
const MAX_DIALOGS: usize = 50;
/// Maximum number of downloads that are followed at a time, and of notes about one call.
const MAX_DOWNLOADS: usize = 20;
const MAX_NOTES: usize = 10;
/// Time in which an action may begin a navigation.
const REACTION: Duration = Duration::from_millis(150);
/// Time for a page to load, and for a download to end, before the call returns without.
const LOADING: Duration = Duration::from_secs(10);

/// A running browser.
pub(crate) struct Browser {
    connection: Connection,
    pub(crate) tabs: Vec<Tab>,
    /// Index of the current tab.
    pub(crate) current: usize,
    /// Running downloads, by their id.
    downloads: BTreeMap<String, String>,
    /// Number of downloads so far.
    pub(crate) begun_downloads: usize,
    /// Sentences about dialogs, downloads and tabs for the next result.
    pub(crate) notes: Vec<String>,
    /// Dialogs since the call began.
    dialogs: usize,
    /// The next number of a reference; no page gets numbers of another.
    pub(crate) next_reference: u64,
    /// The lines of the latest snapshot, which the next one is compared with.
    pub(crate) lines: Vec<String>,
}

/// A tab.
pub(crate) struct Tab {
    target: String,
    session: String,
    is_loading: bool,
}

/// A frame of the current tab.
pub(crate) struct Frame {
    pub(crate) id: String,
    pub(crate) url: String,
}

#[derive(Deserialize)]
struct FrameTree {
    frame: FrameInfo,
    #[serde(default, rename = "childFrames")]
    children: Vec<FrameTree>,
}

#[derive(Deserialize)]
struct FrameInfo {
    id: String,
    url: String,
}

/// A value of a script.
#[derive(Deserialize)]
pub(crate) struct RemoteObject {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) value: Option<Box<RawValue>>,
    pub(crate) description: Option<String>,
    #[serde(rename = "objectId")]
    pub(crate) object_id: Option<String>,
}

#[derive(Deserialize)]
pub(crate) struct Evaluated {
    pub(crate) result: RemoteObject,
    #[serde(rename = "exceptionDetails")]
    pub(crate) exception: Option<Exception>,
}

#[derive(Deserialize)]
pub(crate) struct Exception {
    text: String,
    exception: Option<RemoteObject>,
}

impl Exception {
    pub(crate) fn text(&self) -> &str {
        let exception = self.exception.as_ref();
        let description = exception.and_then(|it| it.description.as_deref());
        description.unwrap_or(&self.text)
    }
}

impl Browser {
    /// Starts a browser.
    pub(crate) async fn start(
        settings: &Settings,
        profile: &str,
        sandbox: &dyn Sandbox,
    ) -> Result<Self, Failure> {
        let connection = Connection::start(settings, profile, sandbox).await?;
        let mut browser = Self {
            connection,
            tabs: Vec::new(),
            current: 0,
            downloads: BTreeMap::new(),
            begun_downloads: 0,
            notes: Vec::new(),
            dialogs: 0,
            next_reference: 1,
            lines: Vec::new(),
        };
        let directory = sandbox.info().working_directory.join(DOWNLOADS);
        let directory = directory.map_err(|error| Failure::lost(error.to_string()))?;
        let attach = json!({"autoAttach": true, "waitForDebuggerOnStart": false, "flatten": true});
        browser.command("Target.setAutoAttach", attach).await?;
        let downloads = json!({"behavior": "allow", "downloadPath": directory.to_string(), "eventsEnabled": true});
        browser
            .command("Browser.setDownloadBehavior", downloads)
            .await?;
        if browser.tabs.is_empty() {
            browser.open_tab().await?;
        }
        Ok(browser)
    }

    /// Begins a call: what happened since the last one is part of its result.
    pub(crate) fn begin_call(&mut self) {
        self.dialogs = 0;
    }

    /// Closes the browser.
    pub(crate) async fn close(self) {
        self.connection.close().await;
    }

    /// Opens a tab and makes it the current one.
    pub(crate) async fn open_tab(&mut self) -> Result<(), Failure> {
        if self.tabs.len() >= MAX_TABS {
            return Err(Failure::refused(format!(
                "There are {MAX_TABS} tabs already. Navigate in one of them."
            )));
        }
        #[derive(Deserialize)]
        struct Created {
            #[serde(rename = "targetId")]
            target: String,
        }
        let created = self
            .command("Target.createTarget", json!({"url": "about:blank"}))
            .await?;
        let created: Created = parse(&created)?;
        let deadline = Instant::now() + LOADING;
        loop {
            if let Some(index) = self.tabs.iter().position(|it| it.target == created.target) {
                self.current = index;
                return Ok(());
            }
            if !self.receive_until(deadline).await? {
                return Err(Failure::lost("a new tab did not open"));
            }
        }
    }

    /// Sends a command to the browser and returns its result.
    async fn command(&mut self, method: &str, params: Value) -> Result<Box<RawValue>, Failure> {
        self.call(None, method, params)
            .await?
            .map_err(|error| Failure::lost(format!("it refuses the command {method}: {error}")))
    }

    /// Sends a command to the current tab and returns its result.
    pub(crate) async fn tab_command<T: DeserializeOwned>(
        &mut self,
        method: &str,
        params: Value,
    ) -> Result<T, Failure> {
        let session = self.session()?;
        match self.call(Some(&session), method, params).await? {
            Ok(result) => parse(&result),
            Err(error) => Err(Failure::refused(format!(
                "The browser can't do it: {error}. Take a new snapshot and try again."
            ))),
        }
    }

    async fn call(
        &mut self,
        session: Option<&str>,
        method: &str,
        params: Value,
    ) -> Result<Result<Box<RawValue>, String>, Failure> {
        let sent = self.connection.send(session, method, params).await?;
        loop {
            match self.connection.receive().await? {
                Incoming::Answer { id, result } if id == sent => return Ok(result),
                // To a command of a cancelled call, or one whose result does not matter.
                Incoming::Answer { .. } => {}
                Incoming::Event(event) => self.handle(&event).await?,
            }
        }
    }

    fn session(&self) -> Result<String, Failure> {
        let tab = self.tabs.get(self.current);
        tab.map(|tab| tab.session.clone())
            .ok_or_else(|| Failure::lost("its last tab was closed"))
    }

    /// Receives one message; returns whether there was one before the deadline.
    async fn receive_until(&mut self, deadline: Instant) -> Result<bool, Failure> {
        match timeout_at(deadline, self.connection.receive()).await {
            Err(_) => Ok(false),
            Ok(Ok(Incoming::Event(event))) => self.handle(&event).await.map(|()| true),
            Ok(Ok(Incoming::Answer { .. })) => Ok(true),
            Ok(Err(failure)) => Err(failure),
        }
    }

    /// Receives events for a time.
    pub(crate) async fn pause(&mut self, duration: Duration) -> Result<(), Failure> {
        let deadline = Instant::now() + duration;
        while self.receive_until(deadline).await? {}
        Ok(())
    }

    /// Waits until an action has had its effects: pages are loaded and downloads ended, or it takes too long.
    pub(crate) async fn settle(&mut self) -> Result<(), Failure> {
        self.pause(REACTION).await?;
        let deadline = Instant::now() + LOADING;
        let is_loading = |browser: &Self| {
            let tab = browser.tabs.get(browser.current);
            tab.is_some_and(|tab| tab.is_loading) || !browser.downloads.is_empty()
        };
        while is_loading(self) {
            if !self.receive_until(deadline).await? {
                let what = match self.downloads.len() {
                    0 => "The page is still loading.".to_owned(),
                    count => format!("{count} downloads are still running."),
                };
                self.note(what);
                break;
            }
        }
        Ok(())
    }

    /// Waits until there were more downloads than a number.
    pub(crate) async fn await_download(&mut self, begun: usize) -> Result<(), Failure> {
        let deadline = Instant::now() + LOADING;
        while self.begun_downloads <= begun && self.receive_until(deadline).await? {}
        Ok(())
    }

    pub(crate) fn note(&mut self, note: String) {
        match self.notes.len() {
            0..MAX_NOTES => self.notes.push(note),
            MAX_NOTES => self.notes.push("More happened.".to_owned()),
            _ => {}
        }
    }

    async fn handle(&mut self, event: &Event) -> Result<(), Failure> {
        let of_session = |tab: &Tab| Some(tab.session.as_str()) == event.session.as_deref();
        let index = self.tabs.iter().position(of_session);
        match (event.method.as_str(), index) {
            ("Target.attachedToTarget", _) => self.attached(event).await?,
            ("Target.detachedFromTarget", _) => self.detached(event),
            ("Inspector.targetCrashed", _) => return Err(Failure::lost("a page crashed it")),
            ("Page.javascriptDialogOpening", Some(_)) => self.dialog(event).await?,
            ("Page.frameStartedLoading" | "Page.frameStartedNavigating", Some(index)) => {
                self.set_loading(index, event, true);
            }
            ("Page.frameStoppedLoading", Some(index)) => self.set_loading(index, event, false),
            ("Browser.downloadWillBegin", None) => self.download_began(event),
            ("Browser.downloadProgress", None) => self.download_progressed(event),
            _ => {}
        }
        Ok(())
    }

    async fn attached(&mut self, event: &Event) -> Result<(), Failure> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Attached {
            session_id: String,
            target_info: Target,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Target {
            target_id: String,
            #[serde(rename = "type")]
            kind: String,
        }
        let Some(Attached {
            session_id: session,
            target_info: target,
        }) = event.params()
        else {
            return Ok(());
        };
        if target.kind != "page" {
            return Ok(());
        }
        if self.tabs.len() >= MAX_TABS {
            self.note("A page tried to open too many tabs.".to_owned());
            let params = json!({"targetId": target.target_id});
            self.connection
                .send(None, "Target.closeTarget", params)
                .await?;
            return Ok(());
        }
        for (method, params) in [
            ("Page.enable", json!({})),
            ("Inspector.enable", json!({})),
            // Screenshots of this size are not scaled.
            (
                "Emulation.setDeviceMetricsOverride",
                json!({"width": 1280, "height": 720, "deviceScaleFactor": 1, "mobile": false}),
            ),
            // A file chooser would wait for a person.
            (
                "Page.setInterceptFileChooserDialog",
                json!({"enabled": true}),
            ),
        ] {
            self.connection.send(Some(&session), method, params).await?;
        }
        self.tabs.push(Tab {
            target: target.target_id,
            session,
            is_loading: false,
        });
        let index = self.tabs.len() - 1;
        if index > 0 {
            self.note(format!("Tab {index} was opened."));
        }
        Ok(())
    }

    fn detached(&mut self, event: &Event) {
        #[derive(Deserialize)]
        struct Detached {
            #[serde(rename = "sessionId")]
            session: String,
        }
        let Some(Detached { session }) = event.params() else {
            return;
        };
        let Some(index) = self.tabs.iter().position(|tab| tab.session == session) else {
            return;
        };
        self.tabs.remove(index);
        if index <= self.current && self.current > 0 {
            self.current -= 1;
        }
        let current = self.current;
        self.note(format!(
            "Tab {index} was closed; the current one is {current}."
        ));
    }

    /// Answers a dialog, which would block its page: alerts and leaving a page are confirmed, questions are denied.
    async fn dialog(&mut self, event: &Event) -> Result<(), Failure> {
        #[derive(Deserialize)]
        struct Dialog {
            #[serde(rename = "type")]
            kind: String,
            message: String,
        }
        let Some(Dialog { kind, message }) = event.params() else {
            return Ok(());
        };
        self.dialogs += 1;
        if self.dialogs > MAX_DIALOGS {
            return Err(Failure::lost("the page opens dialogs without end"));
        }
        let accept = matches!(kind.as_str(), "alert" | "beforeunload");
        let session = event.session.as_deref();
        let params = json!({"accept": accept});
        self.connection
            .send(session, "Page.handleJavaScriptDialog", params)
            .await?;
        let answer = if accept { "accepted" } else { "dismissed" };
        let (kind, message) = (clip(&kind, 20), clip(&message, 300));
        self.note(format!(
            "The page opened a dialog ({kind}), which was {answer}: {message:?}"
        ));
        Ok(())
    }

    fn set_loading(&mut self, index: usize, event: &Event, is_loading: bool) {
        #[derive(Deserialize)]
        struct Loading {
            #[serde(rename = "frameId")]
            frame: String,
        }
        let Some(Loading { frame }) = event.params() else {
            return;
        };
        // The main frame of a tab has the id of its target.
        if let Some(tab) = self.tabs.get_mut(index)
            && tab.target == frame
        {
            tab.is_loading = is_loading;
        }
    }

    fn download_began(&mut self, event: &Event) {
        #[derive(Deserialize)]
        struct Download {
            guid: String,
            #[serde(rename = "suggestedFilename")]
            name: String,
        }
        self.begun_downloads = self.begun_downloads.saturating_add(1);
        if let Some(Download { guid, name }) = event.params()
            && self.downloads.len() < MAX_DOWNLOADS
        {
            self.downloads.insert(guid, clip(&name, 100));
        }
    }

    fn download_progressed(&mut self, event: &Event) {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Progress {
            guid: String,
            state: String,
            received_bytes: f64,
            file_path: Option<String>,
        }
        let Some(progress) = event.params::<Progress>() else {
            return;
        };
        if progress.state == "inProgress" {
            return;
        }
        let Some(name) = self.downloads.remove(&progress.guid) else {
            return;
        };
        if progress.state != "completed" {
            return self.note(format!("The download of {name:?} failed."));
        }
        // The name is Chromium's, which removes what does not belong in one.
        let path = progress.file_path.as_deref().unwrap_or(&name);
        let name = clip(path.rsplit('/').next().unwrap_or(path), 100);
        let size = progress.received_bytes;
        self.note(format!("Downloaded `{DOWNLOADS}/{name}` ({size} bytes)."));
    }

    /// Returns the frames of the current tab, the main one first.
    pub(crate) async fn frames(&mut self) -> Result<Vec<Frame>, Failure> {
        #[derive(Deserialize)]
        struct Answer {
            #[serde(rename = "frameTree")]
            tree: FrameTree,
        }
        let answer: Answer = self.tab_command("Page.getFrameTree", json!({})).await?;
        let mut pending = vec![answer.tree];
        let mut frames = Vec::new();
        while let Some(tree) = pending.pop()
            && frames.len() < MAX_FRAMES
        {
            frames.push(Frame {
                id: tree.frame.id,
                url: clip(&tree.frame.url, 300),
            });
            pending.extend(tree.children.into_iter().rev());
        }
        Ok(frames)
    }

    /// Evaluates an expression with the page script in a frame, in a world of its own.
    pub(crate) async fn in_frame(
        &mut self,
        frame: &str,
        expression: &str,
        by_value: bool,
    ) -> Result<RemoteObject, Failure> {
        #[derive(Deserialize)]
        struct World {
            #[serde(rename = "executionContextId")]
            context: i64,
        }
        // Of the same name, it is created only once for a document.
        let params = json!({"frameId": frame, "worldName": "cantle"});
        let world: World = self.tab_command("Page.createIsolatedWorld", params).await?;
        let params = json!({
            "expression": format!("{PAGE_SCRIPT}\n{expression}"),
            "contextId": world.context,
            "returnByValue": by_value,
        });
        let evaluated: Evaluated = self.tab_command("Runtime.evaluate", params).await?;
        match evaluated.exception {
            None => Ok(evaluated.result),
            Some(exception) => Err(Failure::refused(format!(
                "The page can't be read: {}",
                clip(exception.text(), 300)
            ))),
        }
    }

    /// As [`in_frame`](Self::in_frame), for a value.
    pub(crate) async fn value_in_frame<T: DeserializeOwned>(
        &mut self,
        frame: &str,
        expression: &str,
    ) -> Result<T, Failure> {
        let result = self.in_frame(frame, expression, true).await?;
        let value = result.value.as_deref().map_or("null", |value| value.get());
        serde_json::from_str(value)
            .map_err(|error| Failure::refused(format!("The page can't be read: {error}")))
    }

    /// Returns the element of a reference and its frame.
    pub(crate) async fn element(&mut self, number: u64) -> Result<Element, Failure> {
        for frame in self.frames().await? {
            let expression = format!("cantle.resolve({number})");
            // A frame may be gone by now.
            match self.in_frame(&frame.id, &expression, false).await {
                Ok(RemoteObject {
                    object_id: Some(object),
                    ..
                }) => return Ok(Element { object }),
                Ok(_) | Err(Failure::Refused(_)) => {}
                Err(failure) => return Err(failure),
            }
        }
        Err(Failure::refused(format!(
            "There is no element e{number} on the page. References end with their page: take a new snapshot."
        )))
    }

    /// Calls a function of the page script with an element as its first argument.
    pub(crate) async fn with_element<T: DeserializeOwned>(
        &mut self,
        element: &Element,
        function: &str,
        arguments: &[Value],
    ) -> Result<T, Failure> {
        let list: Vec<Value> = arguments
            .iter()
            .map(|value| json!({"value": value}))
            .collect();
        let params = json!({
            "objectId": element.object,
            "functionDeclaration": format!("function(...rest) {{ return cantle.{function}(this, ...rest) }}"),
            "arguments": list,
            "returnByValue": true,
        });
        let evaluated: Evaluated = self.tab_command("Runtime.callFunctionOn", params).await?;
        if let Some(exception) = evaluated.exception {
            let text = clip(exception.text(), 300);
            return Err(Failure::refused(format!(
                "The element can't be used: {text}"
            )));
        }
        let value = evaluated.result.value;
        let value = value.as_deref().map_or("null", |value| value.get());
        serde_json::from_str(value)
            .map_err(|error| Failure::refused(format!("The element can't be used: {error}")))
    }

    /// Sends a command whose result does not matter to the current tab.
    pub(crate) async fn tab_order(&mut self, method: &str, params: Value) -> Result<(), Failure> {
        self.tab_command::<IgnoredAny>(method, params).await?;
        Ok(())
    }
}

/// An element of the current tab.
pub(crate) struct Element {
    pub(crate) object: String,
}

fn parse<T: DeserializeOwned>(result: &RawValue) -> Result<T, Failure> {
    serde_json::from_str(result.get())
        .map_err(|error| Failure::lost(format!("it sent an answer that can't be read: {error}")))
}
