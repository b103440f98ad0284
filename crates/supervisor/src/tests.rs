use std::ffi::CStr;

use proptest::prelude::*;
use proptest::sample::Index;

use crate::Writer;
use crate::frames::{Answer, Channel, HEADER_BYTES, Request, StdioMode};
use crate::tasks::{Entry, EntryKind, MAX_ERROR_BYTES, Task, TaskError, TaskErrorKind};
use crate::wire::{
    ControlGroup, FileAccess, MappedDirectory, Order, PlannedStep, Reader, Report, Setup,
    SetupReply, Spawn, StartStage, Step, Wire,
};

fn encoded<'b>(value: &impl Wire<'b>) -> Vec<u8> {
    let mut writer = Writer::new();
    writer.write(value);
    writer.into_bytes()
}

#[test]
fn orders_round_trip() {
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
        Order::Connect {
            port: u16::MAX,
            v6: true,
        },
    ];
    for order in orders {
        assert_eq!(Order::decode(&order.encode()), Some(order));
    }
    assert_eq!(Order::decode(&[0; 16]), None);
    assert_eq!(Order::decode(&Order::Setup.encode()[..15]), None);
}

#[test]
fn replies_and_reports_round_trip() {
    let answers = [
        SetupReply::Ready {
            missing: 1 << 63 | 1,
            landlock: 7,
        },
        SetupReply::Failed {
            step: SetupReply::BEFORE_STEPS,
            errno: 28,
        },
    ];
    for answer in answers {
        assert_eq!(SetupReply::decode(&answer.encode()), Some(answer));
    }
    let reports = [
        Report::Failed {
            stage: StartStage::Execute,
            errno: 2,
        },
        Report::Started { pid: 4_000_000 },
        Report::Ended {
            status: 0x7f00,
            alone: true,
        },
    ];
    for report in reports {
        assert_eq!(Report::decode(&report.encode()), Some(report));
    }
}

#[test]
fn bodies_round_trip() {
    let setup = Setup {
        namespaces: 0x6c02_0000,
        uid_map: c"0 0 1\n",
        gid_map: c"",
        deny_setgroups: true,
        groups: 1,
        mapped: 1,
        shared_group: c"",
        has_image: false,
        has_group: true,
    };
    let group = ControlGroup {
        directory: c"/groups/ours",
        stop: c"/groups/ours/pids.max",
        stop_value: c"0",
    };
    let mapped = MappedDirectory {
        path: c"/project",
        uid_map: c"1000 65534 1\n",
        gid_map: c"",
    };
    let steps = [
        Step::BindMapped {
            number: 0,
            source: c"/project",
            target: c"/view/project",
        },
        Step::Mount {
            source: c"tmpfs",
            target: c"/a b",
            kind: c"",
            flags: u64::MAX,
            data: c"size=1m",
        },
        Step::SetMountAttributes {
            target: c"/",
            set: 7,
        },
        Step::MakeDirectory {
            path: c"/x",
            mode: 0o755,
        },
        Step::OwnedDirectory {
            path: c"/workspace",
            identity: Some((1000, 1001)),
            mode: 0o755,
        },
        Step::OwnedDirectory {
            path: c"/tmp",
            identity: None,
            mode: 0o1777,
        },
        Step::MakeFile {
            path: c"/x/y",
            content: c"text",
        },
        Step::WriteFile {
            path: c"/proc/sys/user/max_inotify_instances",
            content: c"16",
        },
        Step::Symlink {
            path: c"/bin",
            target: c"usr/bin",
        },
        Step::PivotRoot { path: c"/root" },
        Step::Hostname { name: c"h" },
        Step::Loopback,
        Step::OpenDirectory { path: c"/tmp" },
        Step::Listen { port: 3128 },
        Step::DropPrivileges { identity: None },
        Step::DropPrivileges {
            identity: Some((65534, 65533)),
        },
        Step::Landlock { rules: 1 },
        Step::LandlockRule {
            path: c"/",
            access: 0xffff,
        },
        Step::Filter {
            program: &[1, 2, 3, 0, 0, 0, 0, 8],
        },
        Step::CommandFilter { program: &[] },
        Step::CommandIdentity {
            identity: Some((1000, 1001)),
            root: c"/",
        },
        Step::CommandIdentity {
            identity: None,
            root: c"/srv/one",
        },
        Step::CommandLimit {
            resource: 7,
            soft: 1,
            hard: u64::MAX,
        },
    ];
    let mut writer = Writer::new();
    writer.write(&setup).write(&group).write(&mapped);
    for (number, step) in steps.iter().enumerate() {
        if number % 2 == 0 {
            writer.step(step);
        } else {
            writer.optional_step(63, step);
        }
    }
    let body = writer.into_bytes();
    let mut reader = Reader::new(&body);
    assert_eq!(reader.read(), Some(setup));
    assert_eq!(reader.read(), Some(group));
    assert_eq!(reader.read(), Some(mapped));
    for (number, step) in steps.into_iter().enumerate() {
        let optional = (number % 2 == 1).then_some(63);
        assert_eq!(reader.read(), Some(PlannedStep { optional, step }));
    }
    assert!(reader.is_empty());
    assert_eq!(reader.read::<PlannedStep<'_>>(), None);

    let spawn = Spawn {
        directory: c"/workspace",
        takes_terminal: false,
        terminal: Some((24, 80)),
        files: FileAccess::ReadOnlyExcept {
            directory: c"/tmp/scratch",
            filter: &[1, 2, 3],
        },
        programs: 1,
        arguments: 2,
        variables: 0,
    };
    let mut writer = Writer::new();
    writer.write(&spawn).write(&c"/bin/sh");
    let body = writer.into_bytes();
    let mut reader = Reader::new(&body);
    assert_eq!(reader.read(), Some(spawn));
    assert_eq!(reader.read(), Some(c"/bin/sh"));
    // Every truncation is detected.
    for length in 0..body.len() {
        let mut reader = Reader::new(&body[..length]);
        let spawn = reader.read::<Spawn<'_>>();
        assert_eq!(spawn.and_then(|_| reader.read::<&CStr>()), None);
    }
}

#[test]
fn requests_round_trip() {
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
        Request::Resize {
            id,
            rows: u16::MAX,
            columns: 1,
        },
    ];
    for stdio in [StdioMode::Output, StdioMode::All, StdioMode::Terminal] {
        requests.push(Request::Spawn { id, stdio, length });
    }
    for channel in Channel::ALL {
        let credit = length;
        requests.push(Request::Grant {
            id,
            channel,
            credit,
        });
        requests.push(Request::Discard { id, channel });
    }
    for request in requests {
        assert_eq!(Request::decode(&request.encode()), Some(request));
    }
    assert_eq!(Request::decode(&[0; HEADER_BYTES]), None);
}

#[test]
fn answers_round_trip() {
    let (id, length, total) = (7, 1 << 40, u64::MAX);
    let mut answers = vec![
        Answer::Ready { length },
        Answer::Report { id, length },
        Answer::Gone { id },
        Answer::Taken { id, bytes: 1 },
        Answer::InputClosed { id },
    ];
    for channel in Channel::ALL {
        answers.push(Answer::Output {
            id,
            channel,
            length,
        });
        answers.push(Answer::Count { id, channel, total });
        answers.push(Answer::End { id, channel, total });
    }
    for answer in answers {
        assert_eq!(Answer::decode(&answer.encode()), Some(answer));
    }
    assert_eq!(Answer::decode(&[0xff; HEADER_BYTES]), None);
}

#[test]
fn tasks_round_trip() {
    let path = c"/a path";
    let tasks = [
        Task::Read {
            path,
            offset: 1 << 40,
            length: u64::MAX,
        },
        Task::Write { path, mode: 0o755 },
        Task::Stat { path },
        Task::List { path },
        Task::MakeDirectory { path },
        Task::Remove { path },
        Task::Rename {
            from: path,
            to: c"/",
        },
        Task::FindProgram { count: 3 },
        Task::Connect { port: 80 },
    ];
    for task in tasks {
        let body = encoded(&task);
        assert_eq!(Reader::new(&body).read(), Some(task));
        // Every truncation is detected.
        for length in 0..body.len() {
            assert_eq!(Reader::new(&body[..length]).read::<Task<'_>>(), None);
        }
    }
}

#[test]
fn task_results_round_trip() {
    let kinds = [
        EntryKind::File,
        EntryKind::Directory,
        EntryKind::Link,
        EntryKind::Other,
    ];
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
        let bytes = encoded(&entry);
        assert_eq!(Reader::new(&bytes).read(), Some(entry));
        let cut = &bytes[..bytes.len() - 1];
        assert_eq!(Reader::new(cut).read::<Entry<'_>>(), None);
    }
    let kinds = [
        TaskErrorKind::Errno,
        TaskErrorKind::NotAFile,
        TaskErrorKind::AlreadyExists,
        TaskErrorKind::Outside,
        TaskErrorKind::Incomplete,
        TaskErrorKind::NotEmpty,
    ];
    for kind in kinds {
        let error = TaskError {
            kind,
            errno: 40,
            name: &[b'x'; 255],
        };
        let bytes = encoded(&error);
        assert_eq!(bytes.len(), MAX_ERROR_BYTES);
        assert_eq!(Reader::new(&bytes).read(), Some(error));
        let cut = &bytes[..bytes.len() - 1];
        assert_eq!(Reader::new(cut).read::<TaskError<'_>>(), None);
    }
}

/// A body with a setup, a control group and two steps.
fn body() -> Vec<u8> {
    let mut writer = Writer::new();
    writer.write(&Setup {
        namespaces: 1,
        uid_map: c"0 0 1",
        gid_map: c"0 0 1",
        deny_setgroups: false,
        groups: 1,
        mapped: 0,
        shared_group: c"",
        has_image: false,
        has_group: false,
    });
    writer.write(&ControlGroup {
        directory: c"/groups/ours",
        stop: c"",
        stop_value: c"",
    });
    let root = Step::PivotRoot { path: c"/root" };
    let program = &[0; 16];
    writer
        .step(&root)
        .optional_step(3, &Step::Filter { program });
    writer.into_bytes()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn corrupted_body_is_read_without_panic(
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
        if let Some(setup) = reader.read::<Setup<'_>>() {
            // The supervisor stops at the first missing one.
            let groups = (0..setup.groups).map_while(|_| reader.read::<ControlGroup<'_>>()).count();
            prop_assert!(groups <= body.len());
            let steps = std::iter::from_fn(|| reader.read::<PlannedStep<'_>>()).count();
            prop_assert!(steps <= body.len());
        }
        let mut reader = Reader::new(&body);
        if let Some(spawn) = reader.read::<Spawn<'_>>() {
            let strings = (0..spawn.arguments).map_while(|_| reader.read::<&CStr>()).count();
            prop_assert!(strings <= body.len());
        }
    }

    #[test]
    fn decoded_message_round_trips(bytes in proptest::collection::vec(any::<u8>(), 0..48)) {
        if let Some(order) = Order::decode(&bytes) {
            prop_assert_eq!(Order::decode(&order.encode()), Some(order));
        }
        if let Some(ready) = SetupReply::decode(&bytes) {
            prop_assert_eq!(SetupReply::decode(&ready.encode()), Some(ready));
        }
        if let Some(report) = Report::decode(&bytes) {
            prop_assert_eq!(Report::decode(&report.encode()), Some(report));
        }
    }

    #[test]
    fn decoded_frame_round_trips(kind in 0..15_u8, rest in any::<[u8; HEADER_BYTES - 1]>()) {
        let mut bytes = [kind; HEADER_BYTES];
        bytes[1..].copy_from_slice(&rest);
        // The channel or stdio mode of the variants that have one.
        bytes[5] %= 4;
        if let Some(request) = Request::decode(&bytes) {
            prop_assert_eq!(Request::decode(&request.encode()), Some(request));
        }
        if let Some(answer) = Answer::decode(&bytes) {
            prop_assert_eq!(Answer::decode(&answer.encode()), Some(answer));
        }
    }
}
