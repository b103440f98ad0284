use proptest::prelude::*;
use proptest::sample::Index;

use crate::Writer;
use crate::frames::{Answer, Channels, HEADER_BYTES, Lane, Request};
use crate::tasks::{Entry, Kind, Reason, Refusal, Task};
use crate::wire::{Group, Numbered, Order, Reader, Ready, Report, Setup, Spawn, Stage, Step};

#[test]
fn orders_come_back_as_they_were() {
    let orders = [
        Order::Setup,
        Order::Spawn { id: 7 },
        Order::Signal {
            id: u32::MAX,
            pid: -1,
            signal: 15,
        },
        Order::Terminate { id: 1 },
        Order::Kill { id: 2 },
        Order::List { id: 3 },
    ];
    for order in orders {
        assert_eq!(Order::decode(&order.encode()), Some(order));
    }
    assert_eq!(Order::decode(&[0; 16]), None);
    assert_eq!(Order::decode(&Order::Setup.encode()[..15]), None);
}

#[test]
fn answers_come_back_as_they_were() {
    let answers = [
        Ready::Ready {
            missing: 1 << 63 | 1,
            landlock: 7,
        },
        Ready::Failed {
            step: Ready::BEFORE_STEPS,
            errno: 28,
        },
    ];
    for answer in answers {
        assert_eq!(Ready::decode(&answer.encode()), Some(answer));
    }
    let reports = [
        Report::Failed {
            stage: Stage::Execute,
            errno: 2,
        },
        Report::Started { pid: 4_000_000 },
        Report::Ended {
            status: 0x7f00,
            alone: true,
            cpu_us: u64::MAX - 1,
            max_rss_kib: 1 << 40,
        },
    ];
    for report in reports {
        assert_eq!(Report::decode(&report.encode()), Some(report));
    }
}

#[test]
fn bodies_come_back_as_they_were() {
    let setup = Setup {
        namespaces: 0x6c02_0000,
        uid_map: c"0 0 1\n",
        gid_map: c"",
        deny_setgroups: true,
        groups: 1,
    };
    let group = Group {
        directory: c"/groups/ours",
        stop: c"/groups/ours/pids.max",
        word: c"0",
    };
    let steps = [
        Step::Mount {
            source: c"tmpfs",
            target: c"/a b",
            kind: c"",
            flags: u64::MAX,
            data: c"size=1m",
        },
        Step::Attributes {
            target: c"/",
            set: 7,
        },
        Step::MakeDirectory {
            path: c"/x",
            mode: 0o755,
        },
        Step::Give {
            path: c"/workspace",
            identity: Some((1000, 1001)),
            mode: 0o755,
        },
        Step::Give {
            path: c"/tmp",
            identity: None,
            mode: 0o1777,
        },
        Step::MakeFile {
            path: c"/x/y",
            content: c"text",
        },
        Step::Link {
            path: c"/bin",
            target: c"usr/bin",
        },
        Step::Root { path: c"/root" },
        Step::HostName { name: c"h" },
        Step::Loopback,
        Step::Staging,
        Step::OpenDirectory { path: c"/tmp" },
        Step::Listen { port: 3128 },
        Step::Unprivileged { identity: None },
        Step::Unprivileged {
            identity: Some((65534, 65533)),
        },
        Step::Landlock { rules: 1 },
        Step::Allow {
            path: c"/",
            access: 0xffff,
        },
        Step::Filter {
            program: &[1, 2, 3, 0, 0, 0, 0, 8],
        },
        Step::FilterCommands { program: &[] },
        Step::Commands {
            identity: Some((1000, 1001)),
            root: c"/",
        },
        Step::Commands {
            identity: None,
            root: c"/srv/one",
        },
        Step::Limit {
            resource: 7,
            soft: 1,
            hard: u64::MAX,
        },
    ];
    let mut writer = Writer::new();
    writer.setup(&setup).group(&group);
    for (number, step) in steps.iter().enumerate() {
        if number % 2 == 0 {
            writer.step(step);
        } else {
            writer.optional(63, step);
        }
    }
    let body = writer.into_bytes();
    let mut reader = Reader::new(&body);
    assert_eq!(reader.setup(), Some(setup));
    assert_eq!(reader.group(), Some(group));
    for (number, step) in steps.into_iter().enumerate() {
        let wall = (number % 2 == 1).then_some(63);
        assert_eq!(reader.step(), Some(Numbered { wall, step }));
    }
    assert!(reader.is_empty());
    assert_eq!(reader.step(), None);

    let spawn = Spawn {
        directory: c"/workspace",
        takes_terminal: false,
        terminal: Some((24, 80)),
        programs: 1,
        arguments: 2,
        variables: 0,
    };
    let mut writer = Writer::new();
    writer.spawn(&spawn).string(c"/bin/sh");
    let body = writer.into_bytes();
    let mut reader = Reader::new(&body);
    assert_eq!(reader.spawn(), Some(spawn));
    assert_eq!(reader.string(), Some(c"/bin/sh"));
    // Any cut is noticed.
    for length in 0..body.len() {
        let mut reader = Reader::new(&body[..length]);
        assert_eq!(reader.spawn().and_then(|_| reader.string()), None);
    }
}

#[test]
fn requests_come_back_as_they_were() {
    let id = u32::MAX;
    let length = u64::MAX - 1;
    let mut requests = vec![
        Request::Setup { length },
        Request::Input { id, length },
        Request::CloseInput { id },
        Request::Signal { id, signal: 15 },
        Request::Terminate { id },
        Request::Kill { id },
        Request::List { id },
        Request::Stage {
            id,
            number: u32::MAX,
        },
        Request::Unstage { number: 7 },
        Request::Adopt {
            id,
            number: 0xff_ffff,
            identity: (1000, u32::MAX),
        },
        Request::Resize {
            id,
            rows: u16::MAX,
            columns: 1,
        },
    ];
    for channels in [Channels::Output, Channels::All, Channels::Terminal] {
        requests.push(Request::Spawn {
            id,
            channels,
            length,
        });
    }
    for lane in Lane::ALL {
        let credit = length;
        requests.push(Request::Grant { id, lane, credit });
        requests.push(Request::Discard { id, lane });
    }
    for request in requests {
        assert_eq!(Request::decode(&request.encode()), Some(request));
    }
    assert_eq!(Request::decode(&[0; HEADER_BYTES]), None);
}

#[test]
fn answers_in_frames_come_back_as_they_were() {
    let (id, length, total) = (7, 1 << 40, u64::MAX);
    let mut answers = vec![
        Answer::Ready { length },
        Answer::Report { id, length },
        Answer::Gone { id },
        Answer::Taken { id, bytes: 1 },
        Answer::Staged {
            id,
            number: u64::MAX,
        },
        Answer::InputClosed { id },
    ];
    for lane in Lane::ALL {
        answers.push(Answer::Output { id, lane, length });
        answers.push(Answer::Count { id, lane, total });
        answers.push(Answer::End { id, lane, total });
    }
    for answer in answers {
        assert_eq!(Answer::decode(&answer.encode()), Some(answer));
    }
    assert_eq!(Answer::decode(&[0xff; HEADER_BYTES]), None);
}

#[test]
fn tasks_come_back_as_they_were() {
    let path = c"/a path";
    let tasks = [
        Task::Read {
            path,
            offset: 1 << 40,
            length: u64::MAX,
        },
        Task::Write { path, mode: 0o755 },
        Task::Look { path },
        Task::List { path },
        Task::MakeDirectory { path },
        Task::Remove { path },
        Task::Move {
            from: path,
            to: c"/",
        },
        Task::Find { count: 3 },
        Task::Place {
            path: c"/workspace/a",
            mode: 0o640,
            staged: c"/.cantle-staging/1",
        },
        Task::Offer {
            path: c"/workspace/a",
            offered: c"/.cantle-staging/out/1",
            least_bytes: u64::MAX,
        },
    ];
    for task in tasks {
        let mut writer = Writer::new();
        writer.task(&task);
        let body = writer.into_bytes();
        assert_eq!(Task::decode(&mut Reader::new(&body)), Some(task));
        // Any cut is noticed.
        for length in 0..body.len() {
            assert_eq!(Task::decode(&mut Reader::new(&body[..length])), None);
        }
    }
}

#[test]
fn what_tasks_say_comes_back_as_it_was() {
    let kinds = [Kind::File, Kind::Directory, Kind::Link, Kind::Other];
    for (kind, name) in kinds
        .into_iter()
        .zip([&b""[..], b"a", b"\xff\n", &[b'x'; 255]])
    {
        let entry = Entry {
            kind,
            mode: 0o777,
            size_bytes: u64::MAX,
            name,
        };
        let said = [&entry.encode_head()[..], name].concat();
        assert_eq!(Entry::decode(&mut Reader::new(&said)), Some(entry));
        let cut = &said[..said.len() - 1];
        assert_eq!(Entry::decode(&mut Reader::new(cut)), None);
    }
    let reasons = [
        Reason::Errno,
        Reason::NotAFile,
        Reason::AlreadyThere,
        Reason::Outside,
        Reason::Incomplete,
        Reason::Left,
    ];
    for reason in reasons {
        let refusal = Refusal {
            reason,
            errno: 40,
            name: b"name",
        };
        let said = [&refusal.encode_head()[..], refusal.name].concat();
        assert_eq!(Refusal::decode(&mut Reader::new(&said)), Some(refusal));
        let cut = &said[..said.len() - 1];
        assert_eq!(Refusal::decode(&mut Reader::new(cut)), None);
    }
}

/// A body with a setup, a step and a command, one after the other.
fn body() -> Vec<u8> {
    let mut writer = Writer::new();
    writer.setup(&Setup {
        namespaces: 1,
        uid_map: c"0 0 1",
        gid_map: c"0 0 1",
        deny_setgroups: false,
        groups: 1,
    });
    writer.group(&Group {
        directory: c"/groups/ours",
        stop: c"",
        word: c"",
    });
    let root = Step::Root { path: c"/root" };
    let program = &[0; 16];
    writer.step(&root).optional(3, &Step::Filter { program });
    writer.into_bytes()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_body_that_is_damaged_is_read_to_some_end(
        changes in proptest::collection::vec((any::<Index>(), any::<u8>()), 0..8),
        length in any::<Index>(),
    ) {
        let mut body = body();
        for (at, byte) in changes {
            let at = at.index(body.len());
            body[at] = byte;
        }
        body.truncate(length.index(body.len()) + 1);
        let mut reader = Reader::new(&body);
        if let Some(setup) = reader.setup() {
            // As many as there can be; the supervisor stops at the first that isn't there.
            let groups = (0..setup.groups).map_while(|_| reader.group()).count();
            prop_assert!(groups <= body.len());
            let steps = std::iter::from_fn(|| reader.step()).count();
            prop_assert!(steps <= body.len());
        }
        let mut reader = Reader::new(&body);
        if let Some(spawn) = reader.spawn() {
            let strings = (0..spawn.arguments).map_while(|_| reader.string()).count();
            prop_assert!(strings <= body.len());
        }
    }

    #[test]
    fn a_message_that_is_read_means_what_is_written(bytes in proptest::collection::vec(any::<u8>(), 0..48)) {
        if let Some(order) = Order::decode(&bytes) {
            prop_assert_eq!(Order::decode(&order.encode()), Some(order));
        }
        if let Some(ready) = Ready::decode(&bytes) {
            prop_assert_eq!(Ready::decode(&ready.encode()), Some(ready));
        }
        if let Some(report) = Report::decode(&bytes) {
            prop_assert_eq!(Report::decode(&report.encode()), Some(report));
        }
    }

    #[test]
    fn a_frame_that_is_read_means_what_is_written(kind in 0..13_u8, rest in any::<[u8; HEADER_BYTES - 1]>()) {
        let mut bytes = [kind; HEADER_BYTES];
        bytes[1..].copy_from_slice(&rest);
        if let Some(request) = Request::decode(&bytes) {
            prop_assert_eq!(Request::decode(&request.encode()), Some(request));
        }
        bytes[1] %= 4;
        bytes[2..4].fill(0);
        if let Some(request) = Request::decode(&bytes) {
            prop_assert_eq!(Request::decode(&request.encode()), Some(request));
        }
        if let Some(answer) = Answer::decode(&bytes) {
            prop_assert_eq!(Answer::decode(&answer.encode()), Some(answer));
        }
    }
}
