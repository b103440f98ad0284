use proptest::prelude::*;

use super::*;
use crate::policy::PolicyField;

const SECOND: Duration = Duration::from_secs(1);

fn request() -> SpawnRequest {
    SpawnRequest::shell("sleep 60")
        .with_timeout(10 * SECOND)
        .with_grace(2 * SECOND)
}

fn begun(request: &SpawnRequest) -> (CommandLifecycle, Instant) {
    let began = Instant::now();
    (CommandLifecycle::new(request, None, began), began)
}

#[test]
fn one_that_ends_alone_is_over() {
    let (mut command, began) = begun(&request());
    let end = began + SECOND;
    assert_eq!(command.on(CommandEvent::Ended { alone: true }, end), None);
    assert!(command.is_over());
    assert_eq!(command.stopped(), None);
    assert_eq!(command.took(end + SECOND), SECOND);
}

#[test]
fn what_one_left_is_killed_and_takes_none_of_its_time() {
    let (mut command, began) = begun(&request());
    let action = command.on(CommandEvent::Ended { alone: false }, began + SECOND);
    assert_eq!(action, Some(CommandAction::Kill));
    assert!(!command.is_over());
    assert_eq!(command.on(CommandEvent::Gone, began + 2 * SECOND), None);
    assert!(command.is_over());
    assert_eq!((command.stopped(), command.took(began)), (None, SECOND));
}

#[test]
fn what_one_left_may_stay_where_it_is_kept() {
    let (mut command, began) = begun(&request().with_background(Background::Keep));
    let action = command.on(CommandEvent::Ended { alone: false }, began + SECOND);
    assert_eq!(action, Some(CommandAction::List));
    assert!(command.is_over());
}

#[test]
fn the_shorter_of_both_limits_holds() {
    let began = Instant::now();
    let limit = |wall_time| CommandLifecycle::new(&request(), wall_time, began).limit();
    assert_eq!(limit(None), Some(10 * SECOND));
    assert_eq!(limit(Some(3 * SECOND)), Some(3 * SECOND));
    assert_eq!(limit(Some(30 * SECOND)), Some(10 * SECOND));
    let endless = SpawnRequest::shell("true").with_timeout(Duration::MAX);
    assert_eq!(
        CommandLifecycle::new(&endless, None, began).deadline(),
        None
    );
}

#[test]
fn a_grace_longer_than_half_of_the_time_is_half_of_it() {
    let (command, began) = begun(&request().with_grace(60 * SECOND));
    assert_eq!(command.deadline(), Some(began + 5 * SECOND));
}

#[test]
fn without_a_grace_it_is_killed_at_once() {
    let (mut command, began) = begun(&request().with_grace(Duration::ZERO));
    let limit = began + 10 * SECOND;
    assert_eq!(command.deadline(), Some(limit));
    let action = command.on(CommandEvent::Time, limit);
    assert_eq!(action, Some(CommandAction::Kill));
    let stopped = ExitStatus::TimedOut { limit: 10 * SECOND };
    assert_eq!(command.stopped(), Some(stopped));
}

#[test]
fn one_that_is_cancelled_has_a_second_at_most() {
    let (mut command, began) = begun(&request());
    let action = command.on(CommandEvent::Cancelled, began + SECOND);
    assert_eq!(action, Some(CommandAction::Terminate));
    assert_eq!(command.deadline(), Some(began + 2 * SECOND));
    assert!(!command.heeds_cancellation());
    assert_eq!(command.stopped(), Some(ExitStatus::Cancelled));
}

#[test]
fn cancelling_shortens_the_grace_of_one_whose_time_is_over() {
    let (mut command, began) = begun(&request());
    command.on(CommandEvent::Time, began + 8 * SECOND);
    assert!(command.heeds_cancellation());
    let now = began + 8 * SECOND + SECOND / 2;
    assert_eq!(command.on(CommandEvent::Cancelled, now), None);
    assert_eq!(command.deadline(), Some(now + SECOND));
    let stopped = ExitStatus::TimedOut { limit: 10 * SECOND };
    assert_eq!(command.stopped(), Some(stopped));
}

#[test]
fn one_that_reached_a_limit_is_killed_at_once() {
    let (mut command, began) = begun(&request());
    let status = ExitStatus::LimitReached {
        field: PolicyField::Output,
        limit: 1,
    };
    let action = command.on(CommandEvent::Forbidden(status), began + SECOND);
    assert_eq!(action, Some(CommandAction::Kill));
    assert_eq!(command.stopped(), Some(status));
}

fn events() -> impl Strategy<Value = CommandEvent> {
    prop_oneof![
        any::<bool>().prop_map(|alone| CommandEvent::Ended { alone }),
        Just(CommandEvent::Gone),
        Just(CommandEvent::Cancelled),
        Just(CommandEvent::Forbidden(ExitStatus::Cancelled)),
        Just(CommandEvent::Time),
    ]
}

proptest! {
    /// Whatever happens: time alone ends it, it is never killed twice nor asked after it was killed,
    /// and once over it stays so.
    #[test]
    fn it_is_killed_once_and_ends(events in prop::collection::vec(events(), 0..12), keep: bool) {
        let background = if keep { Background::Keep } else { Background::Kill };
        let (mut command, mut now) = begun(&request().with_background(background));
        let mut actions = Vec::new();
        for event in events {
            now = match event {
                CommandEvent::Time => command.deadline().unwrap_or(now),
                _ => now + SECOND / 10,
            };
            let was_over = command.is_over();
            let action = command.on(event, now);
            prop_assert!(!was_over || command.is_over() && action.is_none());
            actions.extend(action);
        }
        while let Some(deadline) = command.deadline() {
            prop_assert!(!command.is_over());
            actions.extend(command.on(CommandEvent::Time, deadline));
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
