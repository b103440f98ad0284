//! Tests of the provider suite: a conforming provider passes, and each provider with one fault fails
//! exactly the cases for that fault.
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "shared test code has no `#[test]` attribute"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use async_trait::async_trait;
use cantle_core::sandbox::Sandbox;
use cantle_core::tool::{
    DynTool, OpenContext, ProviderError, Requirements, ToolError, ToolOutput, ToolProvider,
    ToolSet, ToolSpec,
};
use cantle_testkit::conformance::{self, Outcome};
use serde_json::{Value, json};

/// Fault of a provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    HasNoName,
    RepeatsAName,
    UsesABadName,
    DescribesNothing,
    TakesAString,
    RequiresTheUnknown,
    ShufflesItsTools,
    PanicsOnBadArguments,
    RunsWithBadArguments,
    FailsOnBadArguments,
    OpensOneAtATime,
    ClosesForAll,
    WearsOut,
    StaysHalfOpen,
    IsCancelledForGood,
    PromisesASandbox,
}

/// State shared by all openings, which only faults use.
#[derive(Debug, Default)]
struct State {
    opened: AtomicU64,
    closed: AtomicU64,
    blocked: AtomicBool,
}

#[derive(Debug)]
struct Provider {
    fault: Option<Fault>,
    state: Arc<State>,
}

impl Provider {
    fn new(fault: Option<Fault>) -> Self {
        let state = Arc::default();
        Self { fault, state }
    }
}

#[async_trait]
impl ToolProvider for Provider {
    fn name(&self) -> &str {
        match self.fault {
            Some(Fault::HasNoName) => "",
            _ => "test",
        }
    }

    fn provides_sandbox(&self) -> bool {
        self.fault == Some(Fault::PromisesASandbox)
    }

    fn identity(&self) -> Value {
        Value::Null
    }

    fn requirements(&self) -> Requirements {
        Requirements::new()
    }

    async fn open(&self, cx: OpenContext) -> Result<Box<dyn ToolSet>, ProviderError> {
        let state = &self.state;
        let closed = state.closed.load(Ordering::SeqCst);
        let open = state.opened.load(Ordering::SeqCst) - closed;
        let blocked = match self.fault {
            Some(Fault::OpensOneAtATime) => open > 0,
            // On the third opening of `it_opens_again_after_close`.
            Some(Fault::WearsOut) => closed > 10,
            _ => state.blocked.load(Ordering::SeqCst),
        };
        if blocked {
            return Err(ProviderError::new("the provider can't be opened"));
        }
        if cx.cancellation.is_cancelled() {
            let for_good = self.fault == Some(Fault::IsCancelledForGood);
            state.blocked.store(for_good, Ordering::SeqCst);
            return Err(ProviderError::new("opening was cancelled"));
        }
        let half_open = self.fault == Some(Fault::StaysHalfOpen);
        state.blocked.store(half_open, Ordering::SeqCst);
        tokio::task::yield_now().await;
        state.blocked.store(false, Ordering::SeqCst);
        Ok(Box::new(Set {
            fault: self.fault,
            number: state.opened.fetch_add(1, Ordering::SeqCst),
            closed_before: state.closed.load(Ordering::SeqCst),
            state: Arc::clone(state),
        }))
    }
}

struct Set {
    fault: Option<Fault>,
    number: u64,
    closed_before: u64,
    state: Arc<State>,
}

#[async_trait]
impl ToolSet for Set {
    fn tools(&self) -> Vec<DynTool> {
        let closed = self.state.closed.load(Ordering::SeqCst) > self.closed_before;
        if self.fault == Some(Fault::ClosesForAll) && closed {
            return Vec::new();
        }
        let mut tools = vec![tool(self.fault), look("see", None)];
        if self.fault == Some(Fault::ShufflesItsTools) && self.number % 2 == 1 {
            tools.reverse();
        }
        tools
    }

    fn sandbox(&self) -> Option<Arc<dyn Sandbox>> {
        None
    }

    async fn suspend(self: Box<Self>) -> Result<(), ProviderError> {
        self.close().await
    }

    async fn close(self: Box<Self>) -> Result<(), ProviderError> {
        self.state.closed.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

fn tool(fault: Option<Fault>) -> DynTool {
    let name = match fault {
        Some(Fault::RepeatsAName) => "see",
        Some(Fault::UsesABadName) => "look around",
        _ => "look",
    };
    look(name, fault)
}

/// Returns a tool with a schema beyond the validation of `DynTool::parse`, so it checks arguments itself.
fn look(name: &str, fault: Option<Fault>) -> DynTool {
    let neither = json!({"type": ["array", "boolean", "null", "object"]});
    let at = json!({"anyOf": [{"type": "string"}, {"not": neither}]});
    let mut parameters = json!({
        "type": "object",
        "properties": {"at": at, "times": {"type": ["integer", "null"]}},
        "required": ["at"],
    });
    let mut description = "Looks at something.";
    match fault {
        Some(Fault::TakesAString) => parameters["type"] = json!("string"),
        Some(Fault::RequiresTheUnknown) => parameters["required"] = json!(["at", "of"]),
        Some(Fault::DescribesNothing) => description = " ",
        _ => {}
    }
    let spec = ToolSpec::new(name, description, parameters);
    DynTool::from_schema(spec, move |arguments, _| async move {
        let at = &arguments["at"];
        match fault {
            Some(Fault::RunsWithBadArguments) => {}
            Some(Fault::PanicsOnBadArguments) => drop(at.as_str().unwrap().to_owned()),
            Some(Fault::FailsOnBadArguments) if !at.is_string() => {
                return Err(ToolError::failed("something went wrong"));
            }
            _ if at.is_string() || at.is_i64() => {}
            _ => return Err(refusal()),
        }
        Ok(ToolOutput::text("nothing to see"))
    })
}

/// Returns the error for an invalid argument.
fn refusal() -> ToolError {
    let spec = ToolSpec::new("at", "", json!({"properties": {"at": {"type": "string"}}}));
    let typed = DynTool::from_schema(spec, |_, _| async { Ok(ToolOutput::text("")) });
    typed.parse(r#"{"at": []}"#).unwrap_err().into()
}

#[tokio::test]
async fn a_conforming_provider_passes() {
    let report = conformance::tool_provider(&Provider::new(None)).await;

    report.assert();
    let skipped = report
        .cases
        .iter()
        .filter(|it| it.outcome != Outcome::Passed);
    assert_eq!(skipped.count(), 0, "no case is skipped");
    let undetecting = |name: &&str| !DETECTING_CASES.contains(name);
    let names = report.cases.iter().map(|case| &*case.name);
    let idle: Vec<&str> = names.filter(undetecting).collect();
    assert_eq!(idle, [""; 0], "no known fault is detected by these cases");
}

/// A provider with `fault` fails these cases and no others.
async fn is_found(fault: Fault, by: &[&str]) {
    let report = conformance::tool_provider(&Provider::new(Some(fault))).await;

    let failed: Vec<&str> = report.failures().map(|case| &*case.name).collect();
    assert_eq!(failed, by, "{report}");
}

macro_rules! faults {
    ($($test:ident: $fault:ident => [$($case:ident),+ $(,)?],)+) => {
        $(
            #[tokio::test]
            async fn $test() {
                is_found(Fault::$fault, &[$(stringify!($case)),+]).await;
            }
        )+

        /// All cases that detect a fault.
        const DETECTING_CASES: &[&str] = &[$($(stringify!($case)),+),+];
    };
}

faults! {
    has_no_name: HasNoName => [it_opens_and_closes],
    repeats_a_name: RepeatsAName => [tool_names_are_valid_and_unique],
    uses_a_bad_name: UsesABadName => [tool_names_are_valid_and_unique],
    describes_nothing: DescribesNothing => [tools_are_described],
    takes_a_string: TakesAString => [parameters_are_schemas_of_objects],
    requires_the_unknown: RequiresTheUnknown => [parameters_are_schemas_of_objects],
    shuffles_its_tools: ShufflesItsTools => [tools_are_the_same_each_time],
    panics_on_bad_arguments: PanicsOnBadArguments => [wrong_arguments_are_refused],
    runs_with_bad_arguments: RunsWithBadArguments => [wrong_arguments_are_refused],
    fails_on_bad_arguments: FailsOnBadArguments => [wrong_arguments_are_refused],
    opens_one_at_a_time: OpensOneAtATime => [two_tool_sets_are_independent],
    closes_for_all: ClosesForAll => [two_tool_sets_are_independent],
    wears_out: WearsOut => [
        it_opens_again_after_close,
        it_opens_again_after_a_dropped_open,
        a_cancelled_open_ends,
        a_sandbox_exists_exactly_if_declared,
    ],
    stays_half_open: StaysHalfOpen => [
        it_opens_again_after_a_dropped_open,
        a_cancelled_open_ends,
        a_sandbox_exists_exactly_if_declared,
    ],
    is_cancelled_for_good: IsCancelledForGood => [
        a_cancelled_open_ends,
        a_sandbox_exists_exactly_if_declared,
    ],
    promises_a_sandbox: PromisesASandbox => [a_sandbox_exists_exactly_if_declared],
}
