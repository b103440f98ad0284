//! The tools' work.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use cantle_core::sandbox::{SandboxExt as _, SandboxPath};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::timeout;
use url::Url;

use crate::browser::{Browser, Evaluated};
use crate::failure::{Failure, clip};
use crate::keys;
use crate::requests::{
    Click, Direction, Engine, EvaluateJs, FindText, InputText, Navigate, Scroll, Search, SendKeys,
    Snapshot, SwitchTab, Wait,
};
use crate::result::{CUT, Outcome, PagePart};
use crate::target;

/// Maximum number of characters of a snapshot, and of the value of a script.
const MAX_CHARS: usize = 20_000;
/// Maximum number of characters of text for a field.
const MAX_INPUT_CHARS: usize = 100_000;
/// Time for a server to answer.
const ANSWER: Duration = Duration::from_secs(30);
/// Time for a script and the promise that it returns.
const SCRIPT: Duration = Duration::from_secs(20);

/// The address and title of a page.
#[derive(Deserialize)]
pub(crate) struct HistoryEntry {
    id: i64,
    pub(crate) url: String,
    pub(crate) title: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct History {
    current_index: usize,
    entries: Vec<HistoryEntry>,
}

impl Browser {
    pub(crate) async fn search(&mut self, search: Search) -> Result<Outcome, Failure> {
        let Search { query, engine } = search;
        let (base, parameters): (_, &[(&str, &str)]) = match engine {
            // Results without summaries.
            Engine::Google => ("https://www.google.com/search", &[("udm", "14")]),
            Engine::Duckduckgo => ("https://duckduckgo.com/", &[]),
            Engine::Bing => ("https://www.bing.com/search", &[]),
        };
        let parameters = parameters.iter().copied();
        let parameters = [("q", query.as_str())].into_iter().chain(parameters);
        let url = Url::parse_with_params(base, parameters)
            .map_err(|error| Failure::refused(format!("The query can't be sent: {error}.")))?;
        let url = url.to_string();
        self.open(&url, false).await?;
        let outcome = Outcome::new(format!("Searched {engine:?} for: {}", clip(&query, 200)));
        Ok(outcome.with_page(PagePart::Whole).with("queries", &query))
    }

    pub(crate) async fn navigate(&mut self, navigate: Navigate) -> Result<Outcome, Failure> {
        let Navigate { url, new_tab } = navigate;
        let is_download = self.open(&url, new_tab).await?;
        let outcome = match is_download {
            true => Outcome::new("The address is a download."),
            false => Outcome::new(format!("Navigated to: {}", clip(&url, 300)))
                .with_page(PagePart::Whole),
        };
        Ok(outcome.with("urls", &url))
    }

    /// Opens a URL, and returns whether it is a download.
    async fn open(&mut self, url: &str, new_tab: bool) -> Result<bool, Failure> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Navigated {
            error_text: Option<String>,
            #[serde(default)]
            is_download: bool,
        }
        let url = target::check(url, self.sandbox.info())?;
        if new_tab {
            self.open_tab().await?;
        }
        let begun = self.begun_downloads;
        let params = json!({"url": url.as_str()});
        let answer = timeout(ANSWER, self.tab_command("Page.navigate", params)).await;
        let Ok(answer) = answer else {
            self.tab_order("Page.stopLoading", json!({})).await?;
            let seconds = ANSWER.as_secs();
            let text = format!("The server did not answer within {seconds} s.");
            return Err(Failure::Refused(text));
        };
        let answer: Navigated = answer?;
        if answer.is_download {
            self.await_download(begun).await?;
        }
        self.settle().await?;
        match answer.error_text {
            Some(error) if !answer.is_download => Err(Failure::Refused(load_error(&url, &error))),
            _ => Ok(answer.is_download),
        }
    }

    async fn history(&mut self) -> Result<History, Failure> {
        self.tab_command("Page.getNavigationHistory", json!({}))
            .await
    }

    /// Returns the address and title of the current page.
    pub(crate) async fn current_page(&mut self) -> Result<HistoryEntry, Failure> {
        let mut history = self.history().await?;
        match history.current_index {
            index if index < history.entries.len() => Ok(history.entries.swap_remove(index)),
            _ => Err(Failure::lost("it sent a history without a page")),
        }
    }

    pub(crate) async fn go_back(&mut self) -> Result<Outcome, Failure> {
        let history = self.history().await?;
        let previous = history.current_index.checked_sub(1);
        let Some(entry) = previous.and_then(|index| history.entries.get(index)) else {
            return Err(Failure::refused("There is no page to go back to."));
        };
        let params = json!({"entryId": entry.id});
        self.tab_order("Page.navigateToHistoryEntry", params)
            .await?;
        self.settle().await?;
        Ok(Outcome::new("Navigated back.").with_page(PagePart::Whole))
    }

    /// Waits, and shows what changed.
    pub(crate) async fn wait(&mut self, wait: Wait) -> Result<Outcome, Failure> {
        let seconds = wait.seconds.clamp(1, 30);
        self.pause(Duration::from_secs(seconds)).await?;
        let text = format!("Waited for {seconds} seconds.");
        Ok(Outcome::new(text).with_page(PagePart::Changes))
    }

    pub(crate) async fn send_keys(&mut self, send: SendKeys) -> Result<Outcome, Failure> {
        for event in keys::events(&send.keys).map_err(Failure::Refused)? {
            self.tab_order("Input.dispatchKeyEvent", event).await?;
        }
        self.settle().await?;
        let text = format!("Sent keys: {}", clip(&send.keys, 200));
        Ok(Outcome::new(text).with_page(PagePart::Changes))
    }

    pub(crate) async fn switch_tab(&mut self, switch: SwitchTab) -> Result<Outcome, Failure> {
        let index = switch.index;
        if index >= self.tabs.len() {
            let last = self.tabs.len().saturating_sub(1);
            let text = format!("There is no tab {index}, only 0 to {last}.");
            return Err(Failure::Refused(text));
        }
        self.current = index;
        self.tab_order("Page.bringToFront", json!({})).await?;
        self.settle().await?;
        let text = format!("Switched to tab {index}.");
        Ok(Outcome::new(text).with_page(PagePart::Whole))
    }

    async fn referenced(&mut self, reference: &str) -> Result<String, Failure> {
        let number = parse_reference(reference)?;
        self.element(number).await
    }

    pub(crate) async fn click(&mut self, click: Click) -> Result<Outcome, Failure> {
        let element = self.referenced(&click.reference).await?;
        let problem: String = self.with_element(&element, "prepareClick", &[]).await?;
        match problem.as_str() {
            "" => self.click_mouse(&element).await?,
            "done" => {}
            _ => return Err(Failure::Refused(problem)),
        }
        self.settle().await?;
        let text = format!("Clicked {}.", clip(&click.reference, 20));
        Ok(Outcome::new(text).with_page(PagePart::Changes))
    }

    /// Moves the mouse to an element and clicks it.
    async fn click_mouse(&mut self, element: &str) -> Result<(), Failure> {
        #[derive(Deserialize)]
        struct Quads {
            quads: Vec<[f64; 8]>,
        }
        // In the coordinates of the tab, also for an element in a frame.
        let params = json!({"objectId": element});
        let quads: Quads = self.tab_command("DOM.getContentQuads", params).await?;
        let is_empty = |quad: &[f64; 8]| quad[0] == quad[4] || quad[1] == quad[5];
        let Some(quad) = quads.quads.into_iter().find(|quad| !is_empty(quad)) else {
            return Err(Failure::refused("The element is not visible."));
        };
        let [x1, y1, _, _, x2, y2, _, _] = quad;
        let (x, y) = (f64::midpoint(x1, x2), f64::midpoint(y1, y2));
        for (kind, buttons) in [("mouseMoved", 0), ("mousePressed", 1), ("mouseReleased", 0)] {
            let button = if kind == "mouseMoved" { "none" } else { "left" };
            let params = json!({
                "type": kind, "x": x, "y": y, "button": button, "buttons": buttons, "clickCount": 1,
            });
            self.tab_order("Input.dispatchMouseEvent", params).await?;
        }
        Ok(())
    }

    pub(crate) async fn input_text(&mut self, input: InputText) -> Result<Outcome, Failure> {
        if input.text.chars().count() > MAX_INPUT_CHARS {
            let text = format!("The text has more than {MAX_INPUT_CHARS} characters.");
            return Err(Failure::Refused(text));
        }
        let element = self.referenced(&input.reference).await?;
        let arguments = [json!(input.text), json!(input.clear_first)];
        let prepared = self.with_element(&element, "prepareInput", &arguments);
        let way: String = prepared.await?;
        match way.as_str() {
            "type" => {
                let params = json!({"text": input.text});
                self.tab_order("Input.insertText", params).await?;
            }
            "file" => self.choose_files(&element, &input.text).await?,
            "done" => {}
            _ => return Err(Failure::Refused(way)),
        }
        self.settle().await?;
        let text = format!("Typed text into {}.", clip(&input.reference, 20));
        let outcome = Outcome::new(text).with_page(PagePart::Changes);
        Ok(outcome.with("texts", &input.text))
    }

    /// Gives a file field files of the working directory: a path on each line.
    async fn choose_files(&mut self, field: &str, paths: &str) -> Result<(), Failure> {
        let sandbox = Arc::clone(&self.sandbox);
        let directory = &sandbox.info().working_directory;
        let mut files = Vec::new();
        for text in paths.lines().map(str::trim).filter(|it| !it.is_empty()) {
            let path = SandboxPath::new(text).ok();
            let path = path.and_then(|path| match path.is_absolute() {
                true => path.strip_prefix(directory),
                false => Some(path),
            });
            // Chromium takes what does not exist for an empty file.
            let is_file = match &path {
                Some(path) => matches!(sandbox.is_file(path).await, Ok(true)),
                None => false,
            };
            let path = path.filter(|_| is_file);
            let Some(path) = path.and_then(|path| directory.join(path.relative_bytes()).ok())
            else {
                let text = clip(text, 300);
                return Err(Failure::Refused(format!(
                    "There is no file {text:?} in the working directory."
                )));
            };
            files.push(path.to_string());
        }
        let params = json!({"objectId": field, "files": files});
        self.tab_order("DOM.setFileInputFiles", params).await
    }

    pub(crate) async fn scroll(&mut self, scroll: Scroll) -> Result<Outcome, Failure> {
        let distance = f64::from(scroll.amount.min(100_000));
        let (name, distance) = match scroll.direction {
            Direction::Up => ("up", -distance),
            Direction::Down => ("down", distance),
        };
        let frame = self.frames().await?.into_iter().next();
        let frame = frame.ok_or_else(|| Failure::lost("its page has no frame"))?;
        let expression = format!("cantle.scroll({distance})");
        let scrolled = self.value_in_frame(&frame.id, &expression);
        let (top, shown, total): (i64, i64, i64) = scrolled.await?;
        self.settle().await?;
        let bottom = top.saturating_add(shown);
        let text = format!("Scrolled {name}: pixels {top} to {bottom} of {total} are visible.");
        Ok(Outcome::new(text).with_page(PagePart::Changes))
    }

    pub(crate) async fn find_text(&mut self, find: FindText) -> Result<Outcome, Failure> {
        let expression = format!("cantle.find({})", Value::from(find.text));
        for (index, frame) in self.frames().await?.into_iter().enumerate() {
            let found: Option<String> = match self.value_in_frame(&frame.id, &expression).await {
                // A frame may be gone by now; the page itself may not.
                Err(Failure::Refused(_)) if index > 0 => continue,
                found => found?,
            };
            if let Some(found) = found {
                let mut outcome =
                    Outcome::new("Scrolled to the text; the same call finds the next.");
                outcome.content = Some(("found", clip(&found, 400)));
                return Ok(outcome);
            }
        }
        Err(Failure::refused("The page does not contain the text."))
    }

    pub(crate) async fn evaluate_js(&mut self, evaluate: EvaluateJs) -> Result<Outcome, Failure> {
        let script = evaluate.script.as_str();
        let mut evaluated = self.run_script(script, false).await?;
        let error = evaluated.exception.as_ref().map(|it| it.text());
        let has_await = error.is_some_and(|it| it.contains("await is only valid"));
        let has_return = error.is_some_and(|it| it.contains("Illegal return"));
        if has_return || (has_await && script.contains("return")) {
            let body = format!("(async () => {{ {script}\n }})()");
            evaluated = self.run_script(&body, false).await?;
        } else if has_await {
            evaluated = self.run_script(script, true).await?;
        } else if error.is_none() && evaluated.result.kind == "function" {
            let function = script.trim_end_matches(|c: char| c == ';' || c.is_whitespace());
            let call = format!("({function}\n)()");
            evaluated = self.run_script(&call, false).await?;
        }
        if let Some(exception) = &evaluated.exception {
            let text = clip(exception.text(), 2_000);
            return Err(Failure::Refused(format!("JavaScript error: {text}")));
        }
        self.settle().await?;
        let result = evaluated.result;
        let value = result.value.as_deref().map(|value| value.get());
        let value = value.or(result.description.as_deref());
        let mut outcome = Outcome::new("The script ran.").with_page(PagePart::Changes);
        let value = clip(value.unwrap_or(&result.kind), MAX_CHARS);
        outcome.content = Some(("javascript_result", value));
        Ok(outcome)
    }

    async fn run_script(
        &mut self,
        script: &str,
        top_level_await: bool,
    ) -> Result<Evaluated, Failure> {
        let params = json!({
            "expression": script, "awaitPromise": true, "returnByValue": true,
            "userGesture": true,
            // Allows `await`, but does not await the value.
            "replMode": top_level_await,
            "timeout": SCRIPT.as_millis() as u64,
        });
        let evaluated = self.tab_command("Runtime.evaluate", params);
        match timeout(SCRIPT + ANSWER / 10, evaluated).await {
            Ok(evaluated) => evaluated,
            Err(_) => Err(Failure::Refused(format!(
                "The script's promise was not settled within {} s.",
                SCRIPT.as_secs()
            ))),
        }
    }

    pub(crate) async fn snapshot(&mut self, snapshot: Snapshot) -> Result<Outcome, Failure> {
        let scope = snapshot.scope.as_deref().map(parse_reference).transpose()?;
        let (lines, is_cut) = self.lines_of(scope, snapshot.interactive_only).await?;
        let mut outcome = Outcome::new("This is the current page.");
        if is_cut {
            outcome.text.push_str(CUT);
        }
        if scope.is_none() && !snapshot.interactive_only {
            self.lines.clone_from(&lines);
        }
        outcome.content = Some(("page_snapshot", lines.join("\n")));
        Ok(outcome)
    }

    /// Describes the current page, or one of its elements; returns whether a part is missing.
    pub(crate) async fn lines_of(
        &mut self,
        scope: Option<u64>,
        interactive_only: bool,
    ) -> Result<(Vec<String>, bool), Failure> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct FrameSnapshot {
            lines: Vec<String>,
            next: u64,
            is_cut: bool,
        }
        let (mut lines, mut is_cut) = (Vec::new(), false);
        let mut left = MAX_CHARS;
        for (index, frame) in self.frames().await?.into_iter().enumerate() {
            let arguments = json!({
                "start": self.next_reference, "chars": left, "scope": scope, "interactiveOnly": interactive_only,
            });
            let expression = format!("cantle.snapshot({arguments})");
            let answer = self.value_in_frame(&frame.id, &expression).await;
            let snapshot: FrameSnapshot = match answer {
                Ok(Some(snapshot)) => snapshot,
                Ok(None) => continue,
                // A frame may be gone by now; the page itself may not.
                Err(Failure::Refused(_)) if index > 0 => continue,
                Err(failure) => return Err(failure),
            };
            self.next_reference = self.next_reference.max(snapshot.next);
            is_cut |= snapshot.is_cut;
            let is_frame = index > 0 && scope.is_none();
            if is_frame && snapshot.lines.is_empty() {
                continue;
            }
            if is_frame {
                lines.push(format!("- frame ({}):", clip(&frame.url, 300)));
            }
            for line in snapshot.lines {
                let used = line.chars().count() + 1;
                if used > left {
                    is_cut = true;
                    break;
                }
                left -= used;
                lines.push(if is_frame { format!("  {line}") } else { line });
            }
        }
        if scope.is_some() && lines.is_empty() {
            return Err(Failure::refused(
                "There is no such element on the page, or it shows nothing. Take a snapshot of the whole page.",
            ));
        }
        Ok((lines, is_cut))
    }

    pub(crate) async fn screenshot(&mut self) -> Result<Outcome, Failure> {
        #[derive(Deserialize)]
        struct Captured {
            data: String,
        }
        let params = json!({"format": "png"});
        let captured: Captured = self.tab_command("Page.captureScreenshot", params).await?;
        let image = BASE64
            .decode(captured.data)
            .map_err(|_| Failure::lost("it sent a screenshot that can't be read"))?;
        let mut outcome = Outcome::new("Screenshot of the visible part of the page.");
        outcome.image = Some(Bytes::from(image));
        Ok(outcome)
    }
}

fn parse_reference(reference: &str) -> Result<u64, Failure> {
    let trimmed = reference.trim().trim_matches(['[', ']']);
    let trimmed = trimmed.strip_prefix("ref=").unwrap_or(trimmed);
    let number = trimmed.strip_prefix('e').unwrap_or(trimmed);
    number.parse().map_err(|_| {
        let reference = clip(reference, 50);
        Failure::Refused(format!(
            "{reference:?} is no reference. Take one from the snapshot, such as `e12`."
        ))
    })
}

/// Describes why a page was not loaded.
fn load_error(url: &Url, error: &str) -> String {
    let host = clip(url.host_str().unwrap_or_default(), 253);
    let error = clip(error, 100);
    let reason = match error.as_str() {
        "net::ERR_CONNECTION_REFUSED" => "no server listens there",
        "net::ERR_TUNNEL_CONNECTION_FAILED" | "net::ERR_PROXY_CONNECTION_FAILED" => {
            "the sandbox's proxy refused or could not make the connection; its network policy decides which hosts are allowed"
        }
        "net::ERR_NAME_NOT_RESOLVED" | "net::ERR_INTERNET_DISCONNECTED" => {
            "the sandbox has no network, or the name does not exist"
        }
        "net::ERR_FILE_NOT_FOUND" => "there is no such file",
        _ => "the browser could not load it",
    };
    format!("The page of `{host}` was not loaded: {reason} ({error}).")
}
