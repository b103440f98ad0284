use proptest::prelude::*;

use super::*;
const CODE: ExitStatus = ExitStatus::Code(0);
const SECOND: Duration = Duration::from_secs(1);

fn request() -> SpawnRequest {
    SpawnRequest::shell("sleep 60")
        .with_timeout(10 * SECOND)
        .with_grace(2 * SECOND)
}

fn ended(alone: bool) -> CommandEvent {
    CommandEvent::Ended {
        status: CODE,
        alone,
    }
}

fn begun(request: &SpawnRequest) -> (CommandLifecycle, Instant) {
    let began = Instant::now();
    (CommandLifecycle::new(request, None, SECOND, began), began)
}

#[test]
fn command_without_background_processes_is_over_when_it_ends() {
    let (mut command, began) = begun(&request());
    let end = began + SECOND;
    assert_eq!(command.on(ended(true), end), None);
    assert!(command.is_over());
    assert_eq!(command.status(), Some(CODE));
    assert_eq!(command.duration(end + SECOND), SECOND);
}

#[test]
fn killing_background_processes_does_not_count_as_duration() {
    let (mut command, began) = begun(&request());
    let action = command.on(ended(false), began + SECOND);
    assert_eq!(action, Some(CommandAction::Kill));
    assert!(!command.is_over());
    assert_eq!(command.on(CommandEvent::Gone, began + 2 * SECOND), None);
    assert!(command.is_over());
    assert_eq!(
        (command.status(), command.duration(began)),
        (Some(CODE), SECOND)
    );
}

#[test]
fn kept_background_processes_are_listed() {
    let (mut command, began) = begun(&request().with_background(Background::Keep));
    let action = command.on(ended(false), began + SECOND);
    assert_eq!(action, Some(CommandAction::List));
    assert!(command.is_over());
}

#[test]
fn shorter_limit_applies() {
    let began = Instant::now();
    let limit = |wall_time| time_limit(&request(), wall_time);
    assert_eq!(limit(None), Some(10 * SECOND));
    assert_eq!(limit(Some(3 * SECOND)), Some(3 * SECOND));
    assert_eq!(limit(Some(30 * SECOND)), Some(10 * SECOND));
    let endless = SpawnRequest::shell("true").with_timeout(Duration::MAX);
    assert_eq!(
        CommandLifecycle::new(&endless, None, SECOND, began).deadline(),
        None
    );
}

#[test]
fn the_grace_follows_the_limit() {
    for limit in [SECOND, 3 * SECOND, 60 * SECOND] {
        let (mut command, began) = begun(&request().with_timeout(limit));
        let end = began + limit;
        assert_eq!(command.deadline(), Some(end));
        let action = command.on(CommandEvent::Deadline, end);
        assert_eq!(action, Some(CommandAction::Terminate));
        assert_eq!(command.status(), Some(ExitStatus::TimedOut { limit }));
        assert_eq!(command.deadline(), Some(end + 2 * SECOND));
        let action = command.on(CommandEvent::Deadline, end + 2 * SECOND);
        assert_eq!(action, Some(CommandAction::Kill));
    }
}

#[test]
fn a_grace_beyond_the_range_of_the_clock_is_long() {
    let (mut command, began) = begun(&request().with_grace(Duration::MAX));
    let limit = began + 10 * SECOND;
    let action = command.on(CommandEvent::Deadline, limit);
    assert_eq!(action, Some(CommandAction::Terminate));
    assert!(command.deadline() > Some(limit + 1_000_000 * SECOND));
}

#[test]
fn without_grace_the_command_is_killed_at_the_limit() {
    let (mut command, began) = begun(&request().with_grace(Duration::ZERO));
    let limit = began + 10 * SECOND;
    assert_eq!(command.deadline(), Some(limit));
    let action = command.on(CommandEvent::Deadline, limit);
    assert_eq!(action, Some(CommandAction::Kill));
    let stopped = ExitStatus::TimedOut { limit: 10 * SECOND };
    assert_eq!(command.status(), Some(stopped));
}

#[test]
fn cancelled_command_has_at_most_one_second() {
    let (mut command, began) = begun(&request());
    let action = command.on(CommandEvent::Cancelled, began + SECOND);
    assert_eq!(action, Some(CommandAction::Terminate));
    assert_eq!(command.deadline(), Some(began + 2 * SECOND));
    assert!(!command.accepts_cancellation());
    assert_eq!(command.status(), Some(ExitStatus::Cancelled));
}

#[test]
fn cancellation_shortens_the_grace_after_a_timeout() {
    let (mut command, began) = begun(&request());
    command.on(CommandEvent::Deadline, began + 10 * SECOND);
    assert!(command.accepts_cancellation());
    let now = began + 10 * SECOND + SECOND / 2;
    assert_eq!(command.on(CommandEvent::Cancelled, now), None);
    assert_eq!(command.deadline(), Some(now + SECOND));
    let stopped = ExitStatus::TimedOut { limit: 10 * SECOND };
    assert_eq!(command.status(), Some(stopped));
}

#[test]
fn command_that_exceeds_a_limit_is_killed() {
    let (mut command, began) = begun(&request());
    let status = ExitStatus::LimitReached {
        field: PolicyField::Output,
        limit: 1,
    };
    let action = command.on(CommandEvent::LimitReached(status), began + SECOND);
    assert_eq!(action, Some(CommandAction::Kill));
    assert_eq!(command.status(), Some(status));
}

fn events() -> impl Strategy<Value = CommandEvent> {
    prop_oneof![
        any::<bool>().prop_map(ended),
        Just(CommandEvent::Gone),
        Just(CommandEvent::Cancelled),
        Just(CommandEvent::LimitReached(ExitStatus::Cancelled)),
        Just(CommandEvent::Deadline),
    ]
}

proptest! {
    /// For any sequence of events: deadlines alone end the command, it is killed at most once, nothing
    /// follows a kill, and the end is final.
    #[test]
    fn every_command_ends_and_is_killed_at_most_once(events in prop::collection::vec(events(), 0..12), keep: bool) {
        let background = if keep { Background::Keep } else { Background::Kill };
        let (mut command, mut now) = begun(&request().with_background(background));
        let mut actions = Vec::new();
        for event in events {
            now = match event {
                CommandEvent::Deadline => command.deadline().unwrap_or(now),
                _ => now + SECOND / 10,
            };
            let was_over = command.is_over();
            let action = command.on(event, now);
            prop_assert!(!was_over || command.is_over() && action.is_none());
            actions.extend(action);
        }
        while let Some(deadline) = command.deadline() {
            prop_assert!(!command.is_over());
            actions.extend(command.on(CommandEvent::Deadline, deadline));
        }
        prop_assert!(command.is_over());
        let killed = actions.iter().position(|action| *action == CommandAction::Kill);
        if let Some(at) = killed {
            prop_assert_eq!(at + 1, actions.len());
        }
        let asked = actions.iter().filter(|action| **action == CommandAction::Terminate);
        prop_assert!(asked.count() <= 1);
    }
}
