//! Images that leave tool results, and old ones that leave the conversation.

use super::*;

#[test]
fn images_of_a_tool_result_move_to_a_user_message() {
    let png = b"\x89PNG\r\n\x1a\n0000".to_vec();
    let image = Media::image(png).unwrap();
    let result = || Content::Parts(vec![Part::Text("see".into()), Part::Media(image.clone())]);
    let run = |text_only| {
        let mut machine = start(Rules {
            text_only_tool_responses: text_only,
            ..rules(9)
        });
        answer(&mut machine, "", &[("work", "w")]);
        let outcome = CallOutcome {
            content: result(),
            ..outcome("", true)
        };
        machine.apply(Fact::CallFinished {
            index: 0,
            outcome: Box::new(outcome),
        });
        machine
            .messages()
            .iter()
            .skip(2)
            .map(|m| (**m).clone())
            .collect::<Vec<_>>()
    };
    let moved = run(true);
    let Message::Tool(tool) = &moved[0] else {
        panic!("no result")
    };
    assert_eq!(
        tool.content.text(),
        "seeThe user will show you the image for tool call w."
    );
    let shown = Content::Parts(vec![
        Part::Text("Here is the image for tool call w".into()),
        Part::Media(image.clone()),
    ]);
    assert_eq!(moved[1..], [Message::user(shown)]);

    let stayed = run(false);
    let Message::Tool(tool) = &stayed[0] else {
        panic!("no result")
    };
    assert_eq!((stayed.len(), &tool.content), (1, &result()));
}

fn image(bytes: usize) -> Media {
    let mut png = b"\x89PNG\r\n\x1a\n".to_vec();
    png.resize(bytes, b'0');
    Media::image(png).unwrap()
}

fn shown(bytes: usize) -> Content {
    Content::Parts(vec![Part::Media(image(bytes))])
}

/// How many images each message has.
fn images(machine: &Machine) -> Vec<usize> {
    let count = |message: &SharedMessage| match &**message {
        Message::User(message) => message.content.media().count(),
        _ => 0,
    };
    machine.messages().iter().map(count).collect()
}

/// A turn with one image as its result.
fn look(machine: &mut Machine, bytes: usize) {
    let id = format!("c{}", machine.turns());
    answer(machine, "", &[("work", &id)]);
    machine.apply(Fact::CallFinished {
        index: 0,
        outcome: Box::new(CallOutcome {
            content: shown(bytes),
            ..outcome("", true)
        }),
    });
}

#[test]
fn old_images_go_in_batches_and_until_then_nothing_changes() {
    let mut machine = start(rules(30));
    for count in 1..=4 {
        let before = machine.messages().to_vec();
        look(&mut machine, 100);
        assert_eq!(images(&machine).iter().sum::<usize>(), count);
        let same = |(then, now): (&SharedMessage, &SharedMessage)| {
            std::ptr::eq(&raw const **then, &raw const **now)
        };
        // The very same messages: what a client made of them is there still.
        assert!(before.iter().zip(machine.messages()).all(same));
    }
    look(&mut machine, 100);
    let kept: Vec<_> = images(&machine).into_iter().filter(|it| *it > 0).collect();
    assert_eq!(kept, [1, 1], "half of four");
    let shown = |message: &SharedMessage| match &**message {
        Message::User(message) => message.content.media().count() > 0,
        _ => false,
    };
    let first = machine.messages().iter().position(shown).unwrap();
    let assistant = |message: &&SharedMessage| matches!(***message, Message::Assistant(_));
    let before = machine.messages()[..first].iter().filter(assistant).count();
    assert_eq!(before, 4, "the oldest went");
}

#[test]
fn images_are_bounded_by_their_bytes_too() {
    let mut machine = start(rules(30));
    look(&mut machine, 500_000);
    look(&mut machine, 400_000);
    assert_eq!(images(&machine).iter().sum::<usize>(), 2);
    look(&mut machine, 400_000);
    // 1.3 MB are more than 1 MiB; half of that is left.
    assert_eq!(images(&machine).iter().sum::<usize>(), 1);
}

#[test]
fn images_of_a_given_conversation_are_bounded_and_the_task_keeps_its_own() {
    let parts = |count| Content::Parts((0..count).map(|_| Part::Media(image(100))).collect());
    let messages = [
        Message::user("an older task"),
        Message::user(parts(3)),
        Message::user(parts(3)),
    ];
    let messages = messages.into_iter().map(SharedMessage::new).collect();
    let mut machine = Machine::new(rules(9), Arc::new(tools()), messages);
    assert_eq!(images(&machine), [0, 0, 3]);
    look(&mut machine, 100);
    look(&mut machine, 100);
    assert_eq!(images(&machine).iter().take(3).sum::<usize>(), 3);
}
