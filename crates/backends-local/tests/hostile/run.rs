//! Runs and judges the table: every case in every mode, and once without the mechanisms against it.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::time::{Duration, Instant};

use cantle_backends_local::{LocalBackend, Mechanism};
use cantle_core::policy::{Policy, PolicyField};
use cantle_core::sandbox::{EnforcedBy, SandboxInfo};
use futures_util::{StreamExt as _, stream};
use rustix::process::{Pid, Resource, Signal, getrlimit, kill_process, setrlimit};

use crate::arena::{Arena, LATE};
use crate::case::{Attack, Case, Expected, Gap, NegativeControl};
use crate::fixture::Fixture;
use crate::mode::{Mode, TestUser, without};
use crate::{cases, traces};

/// Number of concurrent attacks, many of which only wait.
const AT_ONCE: usize = 8;
/// Maximum attempts of an attack without the mechanisms against it.
const TRIES: usize = 3;
/// Deadline of a case.
const DEADLINE: Duration = Duration::from_secs(300);

/// The user of root's commands.
const COMMANDS: u32 = 65_534;

/// Prints a line, even if the test's output is captured.
pub(crate) fn say(line: &str) {
    let line = format!("{line}\n");
    std::io::stdout().write_all(line.as_bytes()).unwrap();
}

/// The outcome of a case.
#[derive(Debug)]
enum Verdict {
    Blocked,
    /// It succeeded, which the report predicted.
    NotEnforced(Gap),
    /// It succeeded without the mechanisms against it, as it must.
    Succeeds,
    /// It was not tried, for this reason.
    NotTried(&'static str),
    Failed(String),
}

/// Runs everything as this process's user; returns whether a case failed.
pub(crate) async fn all(who: TestUser) -> bool {
    limit_descriptors();
    let only = std::env::var(crate::ONLY).unwrap_or_default();
    let chosen = |case: &Case| case.name.contains(&only);
    let (alone, together): (Vec<_>, Vec<_>) = cases::all()
        .into_iter()
        .filter(chosen)
        .partition(|case| case.alone);
    let mut modes = Vec::new();
    for mode in Mode::all(who) {
        match missing(mode).await {
            None => modes.push(mode),
            Some(missing) => {
                let place = format!("{}/{who}", mode.name);
                say(&format!(
                    "{:<21}  {place:<24}  no {missing} on this machine",
                    "absent"
                ));
            }
        }
    }
    let mut counts = BTreeMap::new();
    for (at_once, cases) in [(AT_ONCE, &together), (1, &alone)] {
        let walled = modes.iter().flat_map(|mode| {
            let depends = cases.iter().filter(|case| case.depends_on(*mode));
            depends.map(|case| (*case, Some(*mode)))
        });
        each(walled.collect(), at_once, who, &mut counts).await;
        // Not concurrently with the others: here attacks succeed.
        let control = cases.iter().map(|case| (*case, None));
        each(control.collect(), at_once, who, &mut counts).await;
    }
    let counted: Vec<_> = counts
        .iter()
        .map(|(word, count)| format!("{count} {word}"))
        .collect();
    say(&format!("as {who}: {}", counted.join(", ")));
    counts.contains_key("FAILED")
}

/// Sets the usual limit of open files, for this process and the supervisors.
fn limit_descriptors() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = Some(1024);
    setrlimit(Resource::Nofile, limit).unwrap();
}

/// Tries cases and prints each outcome at once: some take much longer than
/// others.
async fn each(
    trials: Vec<(Case, Option<Mode>)>,
    at_once: usize,
    who: TestUser,
    counts: &mut BTreeMap<&'static str, u32>,
) {
    let tasks = trials.into_iter().map(|(case, mode)| async move {
        let started = Instant::now();
        let judged = async move {
            match mode {
                Some(mode) => confined(case, mode, who).await,
                None => control(case, who).await,
            }
        };
        let judged = tokio::spawn(tokio::time::timeout(DEADLINE, judged)).await;
        (case, mode, judged, started.elapsed().as_secs_f64())
    });
    let mut results = stream::iter(tasks).buffer_unordered(at_once);
    while let Some((case, mode, judged, seconds)) = results.next().await {
        let verdict = match judged {
            Ok(Ok(verdict)) => verdict,
            Ok(Err(_)) => Verdict::Failed("it does not end".to_owned()),
            Err(panic) => Verdict::Failed(panic.to_string()),
        };
        let (word, detail) = match verdict {
            Verdict::Blocked => ("blocked", String::new()),
            Verdict::NotEnforced(gap) => ("not enforced", format!(": {}", gap.describe())),
            Verdict::Succeeds => ("succeeds", String::new()),
            Verdict::NotTried(reason) => ("not tried", format!(": {reason}")),
            Verdict::Failed(why) => ("FAILED", format!(": {why}")),
        };
        *counts.entry(word).or_default() += 1;
        let mode = mode.map_or("without its mechanism", |mode| mode.name);
        let place = format!("{mode}/{who}");
        say(&format!(
            "{word:<12} {seconds:>5.2} s  {place:<24}  {}{detail}",
            case.name
        ));
    }
}

/// Runs a case in a mode.
async fn confined(case: Case, mode: Mode, who: TestUser) -> Verdict {
    if case.only_with.iter().any(|mechanism| !mode.has(*mechanism)) {
        return Verdict::NotTried("here nothing stops it");
    }
    let uid = match who {
        TestUser::Root if mode.has(Mechanism::Identity) => COMMANDS,
        _ => Fixture::own_uid(),
    };
    let fixture = Fixture::new(uid);
    let policy = case.policy(&fixture);
    let arena = match Arena::open(fixture, mode.backend(), policy, Some(mode)).await {
        Ok(arena) => arena,
        Err(error) => return Verdict::Failed(error),
    };
    let tried = try_once(&case, &arena).await;
    let info = arena.sandbox().info().clone();
    let closed = arena.close().await;
    let mut wrong: Vec<String> = closed.into_iter().collect();
    wrong.extend(left_behind(&arena.fixture).await);
    let expected = case.expected(mode, &info);
    match (expected, tried) {
        (_, Err(error)) => wrong.push(error),
        (Expected::Blocked, Ok((succeeded, how))) => {
            if succeeded {
                wrong.push(format!("not blocked: {how}"));
            }
            wrong.extend(arena.fixture.change());
            if !arena.fixture.victim_runs() {
                wrong.push("the victim is dead".to_owned());
            }
        }
        (Expected::NotEnforced(gap), Ok((succeeded, how))) => {
            wrong.extend(gap.is_reported(&case, &info));
            if !succeeded {
                wrong.push(format!("blocked, though {}: {how}", gap.describe()));
            }
        }
    }
    clean_up(&arena.fixture).await;
    match expected {
        _ if !wrong.is_empty() => Verdict::Failed(wrong.join("; ")),
        Expected::Blocked => Verdict::Blocked,
        Expected::NotEnforced(gap) => Verdict::NotEnforced(gap),
    }
}

/// Runs a case without the mechanisms against it. Some attacks are races, for which one success suffices.
async fn control(case: Case, who: TestUser) -> Verdict {
    let mut verdict = control_once(case, who).await;
    for _ in 1..TRIES {
        if !matches!(verdict, Verdict::Failed(_)) {
            break;
        }
        verdict = control_once(case, who).await;
    }
    verdict
}

async fn control_once(case: Case, who: TestUser) -> Verdict {
    if case.takes_root && who == TestUser::Ordinary {
        return Verdict::NotTried("an ordinary user can't do it anyway");
    }
    let all_walls = without(&[]);
    let open = async |backend, identity: bool, policy: fn(&Case, &Fixture) -> Policy| {
        let uid = match who {
            TestUser::Root if identity => COMMANDS,
            _ => Fixture::own_uid(),
        };
        let fixture = Fixture::new(uid);
        let policy = policy(&case, &fixture);
        Arena::open(fixture, backend, policy, None).await
    };
    let arena = match case.control {
        NegativeControl::No(reason) => return Verdict::NotTried(reason),
        NegativeControl::Raw => Ok(Arena::raw(Fixture::new(Fixture::own_uid()))),
        NegativeControl::Unconfined => open(all_walls, false, |_, _| Policy::unconfined()).await,
        NegativeControl::Without(mechanisms) => {
            let identity = !mechanisms.contains(&Mechanism::Identity);
            open(without(mechanisms), identity, Case::policy).await
        }
        NegativeControl::Under(_) => {
            let identity = true;
            open(all_walls, identity, |case, fixture| match case.control {
                NegativeControl::Under(policy) => policy(fixture),
                _ => case.policy(fixture),
            })
            .await
        }
    };
    let arena = match arena {
        Ok(arena) => arena,
        Err(error) => return Verdict::Failed(error),
    };
    let tried = try_once(&case, &arena).await;
    let closed = arena.close().await;
    clean_up(&arena.fixture).await;
    match (tried, closed) {
        (Err(error), _) | (_, Some(error)) => Verdict::Failed(error),
        (Ok((true, how)), None) if !how.contains("MISSED") => Verdict::Succeeds,
        (Ok((_, how)), None) => {
            Verdict::Failed(format!("it does not succeed, so it proves nothing: {how}"))
        }
    }
}

/// Returns whether the attack succeeded, and a summary.
async fn try_once(case: &Case, arena: &Arena) -> Result<(bool, String), String> {
    let (ran, sign) = match case.attack {
        Attack::Shell(line, sign) => (arena.shell(line).await, sign),
        Attack::Python(script, sign) => (arena.python(script).await, sign),
        Attack::Told(told) => return Ok((told(arena).await?, String::new())),
    };
    if BROKEN.iter().any(|error| ran.stderr.contains(error)) {
        return Err(format!("the script is broken: {}", ran.summary()));
    }
    Ok((sign(&arena.fixture, &ran), ran.summary()))
}

/// Errors that show a mistake in a script rather than a blocked attack.
const BROKEN: &[&str] = &[
    "SyntaxError",
    "NameError",
    "TypeError",
    "ValueError",
    "AttributeError",
    "IndexError",
];

/// Returns leftovers of a closed sandbox.
async fn left_behind(fixture: &Fixture) -> Vec<String> {
    let mut wrong = Vec::new();
    if !traces::soon(LATE, || traces::marked(&fixture.token).is_empty()).await {
        wrong.push(format!(
            "still running: {:?}",
            traces::marked(&fixture.token)
        ));
    }
    let leftovers = fixture.leftovers();
    if !leftovers.is_empty() {
        wrong.push(format!("left on the disk: {leftovers:?}"));
    }
    wrong
}

/// Kills the processes of a successful attack.
async fn clean_up(fixture: &Fixture) {
    traces::soon(LATE, || {
        let left = traces::marked(&fixture.token);
        for pid in &left {
            let pid = i32::try_from(*pid).ok().and_then(Pid::from_raw);
            // It may have ended already.
            let _ = pid.map(|pid| kill_process(pid, Signal::KILL));
        }
        left.is_empty()
    })
    .await;
}

/// Returns why this machine can't run a mode, or need not because a mechanism is missing anyway.
async fn missing(mode: Mode) -> Option<&'static str> {
    if mode.is_ungrouped() {
        let info = opened(without(&[]), mode).await;
        return (!names(&info, CONTROL_GROUPS)).then_some(CONTROL_GROUPS);
    }
    let info = opened(mode.backend(), mode).await;
    NAMES
        .iter()
        .find(|(mechanism, name)| mode.has(*mechanism) != names(&info, name))
        .map(|(_, name)| *name)
}

/// Opens a sandbox that uses each mechanism, and returns its description.
async fn opened(backend: LocalBackend, mode: Mode) -> SandboxInfo {
    let mut policy = Policy::workspace();
    policy.limits.memory_bytes = Some(1 << 30);
    policy.strictness = cantle_core::policy::Strictness::BestEffort;
    let fixture = Fixture::new(Fixture::own_uid());
    let arena = Arena::open(fixture, backend, policy, Some(mode)).await;
    let arena = arena.unwrap_or_else(|error| panic!("{}: {error}", mode.name));
    let info = arena.sandbox().info().clone();
    arena.close().await;
    info
}

const CONTROL_GROUPS: &str = "control groups";

/// The prefixes of mechanisms in a sandbox's description.
const NAMES: &[(Mechanism, &str)] = &[
    (Mechanism::Namespaces, "namespaces"),
    (Mechanism::Landlock, "Landlock"),
    (Mechanism::SystemCalls, "system call filter"),
];

fn names(info: &SandboxInfo, name: &str) -> bool {
    info.mechanisms
        .iter()
        .any(|mechanism| mechanism.contains(name))
}

impl Gap {
    fn describe(self) -> String {
        match self {
            Self::None => "there is no gap".to_owned(),
            Self::Field(field) => format!("{field} is not enforced"),
            Self::Mechanism => "its mechanism is missing".to_owned(),
            Self::Known(words) => words.to_owned(),
        }
    }

    /// Returns what the report wrongly claims.
    fn is_reported(self, case: &Case, info: &SandboxInfo) -> Option<String> {
        let standing = NAMES
            .iter()
            .filter(|(mechanism, _)| case.stopped_by.contains(mechanism))
            .find(|(_, name)| names(info, name));
        if let Some((_, name)) = standing {
            return Some(format!("{name} is in the report, and doesn't stop it"));
        }
        match self {
            Self::Field(field) if !is_not_enforced(field, info) => {
                let said = info.enforcement.iter().find(|said| said.field == field);
                Some(format!("the report says {said:?}"))
            }
            _ => None,
        }
    }
}

fn is_not_enforced(field: PolicyField, info: &SandboxInfo) -> bool {
    let mut said = info.enforcement.iter();
    said.any(|said| said.field == field && said.by == EnforcedBy::NotEnforced)
}
