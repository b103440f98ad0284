//! A running browser: its tabs, commands and events.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cantle_core::sandbox::Sandbox;
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};

use crate::connection::{
    Attached, Connection, Dialog, Download, Event, EventKind, FileChooser, Incoming, Progress,
};
use crate::failure::{Failure, clip};
use crate::settings::BrowserTools;

/// The script of [`Browser::evaluate_in_frames`].
const PAGE_SCRIPT: &str = include_str!("page.js");
/// The directory of downloads, in the working directory.
pub(crate) const DOWNLOADS: &str = "downloads";
/// The problem with a page whose script failed.
const UNREADABLE: &str = "The page can't be read";
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
    pub(crate) connection: Connection,
    pub(crate) sandbox: Arc<dyn Sandbox>,
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
    pub(crate) dialogs: usize,
    /// The latest file chooser of the current tab, until the next result.
    file_chooser: Option<FileChooser>,
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
#[derive(Deserialize)]
pub(crate) struct Frame {
    pub(crate) id: String,
    pub(crate) url: String,
}

#[derive(Deserialize)]
struct FrameTree {
    frame: Frame,
    /// Not parsed yet: a page can nest frames deeper than the parser goes.
    #[serde(default, rename = "childFrames")]
    children: Vec<Box<RawValue>>,
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

impl RemoteObject {
    /// Parses the value; `problem` begins the error.
    fn parse<T: DeserializeOwned>(&self, problem: &str) -> Result<T, Failure> {
        let value = self.value.as_deref().map_or("null", |value| value.get());
        serde_json::from_str(value).map_err(|error| Failure::Refused(format!("{problem}: {error}")))
    }
}

#[derive(Deserialize)]
pub(crate) struct Evaluated {
    pub(crate) result: RemoteObject,
    #[serde(rename = "exceptionDetails")]
    pub(crate) exception: Option<Exception>,
}

impl Evaluated {
    /// Returns the result, or the exception as an error that `problem` begins.
    fn checked(self, problem: &str) -> Result<RemoteObject, Failure> {
        let Some(exception) = self.exception else {
            return Ok(self.result);
        };
        let text = clip(exception.text(), 300);
        Err(Failure::Refused(format!("{problem}: {text}")))
    }
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
        settings: &BrowserTools,
        profile: &str,
        sandbox: &Arc<dyn Sandbox>,
    ) -> Result<Self, Failure> {
        let connection = Connection::start(settings, profile, &**sandbox).await?;
        let mut browser = Self {
            connection,
            sandbox: Arc::clone(sandbox),
            tabs: Vec::new(),
            current: 0,
            downloads: BTreeMap::new(),
            begun_downloads: 0,
            notes: Vec::new(),
            dialogs: 0,
            file_chooser: None,
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
        let page = json!({"url": "about:blank"});
        let created = self.command("Target.createTarget", page).await?;
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
                Incoming::Event(event) => self.handle(event).await?,
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
            Ok(Ok(Incoming::Event(event))) => self.handle(event).await.map(|()| true),
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

    async fn handle(&mut self, event: Event) -> Result<(), Failure> {
        let session = event.session.as_deref();
        let of_session = |tab: &Tab| Some(tab.session.as_str()) == session;
        let index = self.tabs.iter().position(of_session);
        match (event.kind, index) {
            (EventKind::Attached(attached), _) => self.attached(attached).await?,
            (EventKind::Detached { session_id }, _) => self.detached(&session_id),
            (EventKind::Crashed {}, _) => return Err(Failure::lost("a page crashed it")),
            (EventKind::DialogOpened(dialog), Some(_)) => self.answer(session, &dialog).await?,
            (EventKind::FileChooserOpened(chooser), Some(index)) if index == self.current => {
                self.file_chooser = Some(chooser);
            }
            (EventKind::LoadingStarted { frame_id }, Some(index)) => {
                self.set_loading(index, &frame_id, true);
            }
            (EventKind::LoadingStopped { frame_id }, Some(index)) => {
                self.set_loading(index, &frame_id, false);
            }
            (EventKind::DownloadBegan(download), None) => self.download_began(&download),
            (EventKind::DownloadProgressed(progress), None) => self.download_progressed(&progress),
            _ => {}
        }
        Ok(())
    }

    async fn attached(&mut self, attached: Attached) -> Result<(), Failure> {
        let (session, target) = (attached.session_id, attached.target_info);
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
        // Screenshots of this size are not scaled.
        let size = json!({"width": 1280, "height": 720, "deviceScaleFactor": 1, "mobile": false});
        // A file chooser would wait for a person.
        let intercepted = json!({"enabled": true});
        for (method, params) in [
            ("Page.enable", json!({})),
            ("Inspector.enable", json!({})),
            ("Emulation.setDeviceMetricsOverride", size),
            ("Page.setInterceptFileChooserDialog", intercepted),
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

    fn detached(&mut self, session: &str) {
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
    async fn answer(&mut self, session: Option<&str>, dialog: &Dialog) -> Result<(), Failure> {
        self.dialogs += 1;
        if self.dialogs > MAX_DIALOGS {
            return Err(Failure::lost("the page opens dialogs without end"));
        }
        let accept = matches!(dialog.kind.as_str(), "alert" | "beforeunload");
        let params = json!({"accept": accept});
        self.connection
            .send(session, "Page.handleJavaScriptDialog", params)
            .await?;
        let answer = if accept { "accepted" } else { "dismissed" };
        let (kind, message) = (clip(&dialog.kind, 20), clip(&dialog.message, 300));
        self.note(format!(
            "The page opened a dialog ({kind}), which was {answer}: {message:?}"
        ));
        Ok(())
    }

    fn set_loading(&mut self, index: usize, frame: &str, is_loading: bool) {
        // The main frame of a tab has the id of its target.
        if let Some(tab) = self.tabs.get_mut(index)
            && tab.target == frame
        {
            tab.is_loading = is_loading;
        }
    }

    fn download_began(&mut self, download: &Download) {
        self.begun_downloads = self.begun_downloads.saturating_add(1);
        if self.downloads.len() < MAX_DOWNLOADS {
            let name = clip(&download.suggested_filename, 100);
            self.downloads.insert(download.guid.clone(), name);
        }
    }

    fn download_progressed(&mut self, progress: &Progress) {
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
            tree: Box<RawValue>,
        }
        let answer: Answer = self.tab_command("Page.getFrameTree", json!({})).await?;
        let mut pending = vec![answer.tree];
        let mut frames = Vec::new();
        while let Some(tree) = pending.pop()
            && frames.len() < MAX_FRAMES
        {
            let tree: FrameTree = parse(&tree)?;
            frames.push(tree.frame);
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
        let context = self.world_of(frame).await?;
        let params = json!({
            "expression": format!("{PAGE_SCRIPT}\n{expression}"),
            "contextId": context,
            "returnByValue": by_value,
        });
        let evaluated: Evaluated = self.tab_command("Runtime.evaluate", params).await?;
        evaluated.checked(UNREADABLE)
    }

    /// Returns the context of a frame's world for the page script.
    async fn world_of(&mut self, frame: &str) -> Result<i64, Failure> {
        #[derive(Deserialize)]
        struct World {
            #[serde(rename = "executionContextId")]
            context: i64,
        }
        // Of the same name, it is created only once for a document.
        let params = json!({"frameId": frame, "worldName": "cantle"});
        let world: World = self.tab_command("Page.createIsolatedWorld", params).await?;
        Ok(world.context)
    }

    /// As [`in_frame`](Self::in_frame), for a value.
    pub(crate) async fn value_in_frame<T: DeserializeOwned>(
        &mut self,
        frame: &str,
        expression: &str,
    ) -> Result<T, Failure> {
        let result = self.in_frame(frame, expression, true).await?;
        result.parse(UNREADABLE)
    }

    /// Returns the id of the object that is the element of a reference.
    pub(crate) async fn element(&mut self, number: u64) -> Result<String, Failure> {
        for frame in self.frames().await? {
            let expression = format!("cantle.resolve({number})");
            // A frame may be gone by now.
            match self.in_frame(&frame.id, &expression, false).await {
                Ok(RemoteObject {
                    object_id: Some(object),
                    ..
                }) => return Ok(object),
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
        element: &str,
        function: &str,
        arguments: &[Value],
    ) -> Result<T, Failure> {
        let list: Vec<_> = arguments.iter().map(|it| json!({"value": it})).collect();
        let params = json!({
            "objectId": element,
            "functionDeclaration": format!("function(...rest) {{ return cantle.{function}(this, ...rest) }}"),
            "arguments": list,
            "returnByValue": true,
        });
        let evaluated: Evaluated = self.tab_command("Runtime.callFunctionOn", params).await?;
        let problem = "The element can't be used";
        evaluated.checked(problem)?.parse(problem)
    }

    /// Notes a file chooser that the page has opened, with a reference to its field, which is often hidden.
    pub(crate) async fn note_file_chooser(&mut self) -> Result<(), Failure> {
        let Some(chooser) = self.file_chooser.take() else {
            return Ok(());
        };
        let note = match self.refer_file_field(&chooser).await {
            Ok(number) => format!("The page asks for a file: type its path into e{number}."),
            Err(Failure::Refused(_)) => {
                "The page asked for a file, and its field is gone.".to_owned()
            }
            Err(failure) => return Err(failure),
        };
        self.note(note);
        Ok(())
    }

    /// Returns the number of a reference to the field of a file chooser.
    async fn refer_file_field(&mut self, chooser: &FileChooser) -> Result<u64, Failure> {
        #[derive(Deserialize)]
        struct Resolved {
            object: RemoteObject,
        }
        // Defines the script's functions.
        self.in_frame(&chooser.frame_id, "true", true).await?;
        let context = self.world_of(&chooser.frame_id).await?;
        let params =
            json!({"backendNodeId": chooser.backend_node_id, "executionContextId": context});
        let resolved: Resolved = self.tab_command("DOM.resolveNode", params).await?;
        let Some(field) = resolved.object.object_id else {
            return Err(Failure::refused("The field is gone."));
        };
        let start = [json!(self.next_reference)];
        let number: u64 = self.with_element(&field, "referFileField", &start).await?;
        self.next_reference = self.next_reference.max(number.saturating_add(1));
        Ok(number)
    }

    /// Sends a command whose result does not matter to the current tab.
    pub(crate) async fn tab_order(&mut self, method: &str, params: Value) -> Result<(), Failure> {
        self.tab_command::<IgnoredAny>(method, params).await?;
        Ok(())
    }
}

fn parse<T: DeserializeOwned>(result: &RawValue) -> Result<T, Failure> {
    serde_json::from_str(result.get())
        .map_err(|error| Failure::lost(format!("it sent an answer that can't be read: {error}")))
}
