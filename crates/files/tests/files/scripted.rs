//! Servers that speak S3 and are slow or lie.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use cantle_files::{FileStore, Files, FilesError, FilesErrorKind, MemoryRecords, NewFile};

/// A fault of the server, which begins when a test sets it.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// It replaces an object that was to be created.
    IgnoresConditions,
    /// It accepts an object, and keeps nothing.
    KeepsNothing,
    /// It keeps the first half.
    KeepsHalf,
    /// It answers with other bytes.
    OtherContent,
    /// It answers with fewer bytes than it announces.
    BrokenContent,
    /// It announces, and sends, half of an object.
    HalfContent,
    /// It reads a request with content, and does not answer.
    StalledUpload,
    /// It sends half of an object, and then nothing.
    StalledDownload,
    /// It sends an object byte by byte, with pauses.
    DrippedDownload,
}

#[derive(Default)]
struct State {
    objects: HashMap<String, Vec<u8>>,
    fault: Option<Fault>,
    /// Connections that stay open.
    stalled: Vec<TcpStream>,
}

/// A server in threads, each of which ends with its connection.
struct Server {
    state: Arc<Mutex<State>>,
    store: FileStore,
}

impl Server {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(Mutex::new(State::default()));
        let weak = Arc::downgrade(&state);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let Some(state) = weak.upgrade() else { return };
                thread::spawn(move || answer(&state, stream.unwrap()));
            }
        });
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let lines = format!(
            "AWS_ACCESS_KEY_ID=a\nAWS_SECRET_ACCESS_KEY=b\nAWS_ALLOW_HTTP=true\nAWS_ENDPOINT_URL=http://{address}"
        );
        file.write_all(lines.as_bytes()).unwrap();
        let store = FileStore::s3("b", Some(file.path())).unwrap();
        Self { state, store }
    }

    fn fail(&self, fault: Fault) {
        self.state.lock().unwrap().fault = Some(fault);
    }
}

/// Answers one request, and closes the connection.
fn answer(state: &Mutex<State>, stream: TcpStream) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        match line.trim_end() {
            "" => break,
            line => lines.push(line.to_ascii_lowercase()),
        }
    }
    let mut request = lines.first()?.split(' ');
    let (method, path) = (request.next()?, request.next()?.to_owned());
    let header = |name: &str| lines.iter().find_map(|line| line.strip_prefix(name));
    let length = header("content-length: ").unwrap_or("0").parse().ok()?;
    let mut content = vec![0; length];
    reader.read_exact(&mut content).ok()?;

    let mut state = state.lock().unwrap();
    let mut stream = stream;
    let fault = state.fault;
    let head = |status: &str, length: usize| {
        format!(
            "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nETag: \"e\"\r\n\
             Last-Modified: Wed, 25 Nov 2026 12:00:00 GMT\r\nConnection: close\r\n\r\n"
        )
    };
    let stored = state.objects.get(&path).cloned();
    let answer = match (method, fault, stored) {
        ("put", Some(Fault::StalledUpload), _) => {
            state.stalled.push(stream);
            return None;
        }
        // The catalogue's claim is no file.
        ("put", fault, Some(_))
            if header("if-none-match: ").is_some()
                && !matches!(fault, Some(Fault::IgnoresConditions)) =>
        {
            head("412 Exists", 0).into_bytes()
        }
        ("put", ..) => {
            match fault {
                Some(Fault::KeepsNothing) => {}
                Some(Fault::KeepsHalf) => {
                    content.truncate(length / 2);
                    state.objects.insert(path, content);
                }
                _ => drop(state.objects.insert(path, content)),
            }
            head("200 OK", 0).into_bytes()
        }
        ("head", _, Some(content)) => head("200 OK", content.len()).into_bytes(),
        ("get", fault, Some(mut content)) => {
            let length = content.len();
            match fault {
                Some(Fault::OtherContent) => content.reverse(),
                Some(Fault::HalfContent | Fault::BrokenContent | Fault::StalledDownload) => {
                    content.truncate(length / 2);
                }
                _ => {}
            }
            let announced = match fault {
                Some(Fault::HalfContent) => content.len(),
                _ => length,
            };
            let mut answer = head("200 OK", announced).into_bytes();
            answer.extend(content);
            answer
        }
        _ => head("404 Not Found", 0).into_bytes(),
    };
    if matches!((method, fault), ("get", Some(Fault::DrippedDownload))) {
        drop(state);
        let (head, content) = answer.split_at(answer.len().checked_sub(12)?);
        stream.write_all(head).ok()?;
        for byte in content {
            thread::sleep(Duration::from_secs(5));
            stream.write_all(&[*byte]).ok()?;
        }
        return Some(());
    }
    stream.write_all(&answer).ok()?;
    if matches!((method, fault), ("get", Some(Fault::StalledDownload))) {
        state.stalled.push(stream);
    }
    Some(())
}

async fn files(server: &Server) -> Files {
    Files::open(server.store.clone(), MemoryRecords::new())
        .await
        .unwrap()
}

async fn put(files: &Files, name: &str) -> Result<cantle_files::FileRecord, FilesError> {
    files
        .put_bytes("alice", NewFile::named(name), "hello, world")
        .await
}

#[tokio::test]
async fn the_store_of_another_catalogue_is_refused_whatever_the_server_knows() {
    for fault in [None, Some(Fault::IgnoresConditions)] {
        let server = Server::start();
        server.state.lock().unwrap().fault = fault;
        let records = Arc::new(MemoryRecords::new());
        for _ in 0..2 {
            let own = Files::open(server.store.clone(), Arc::clone(&records));
            own.await.unwrap();
        }
        let other = Files::open(server.store.clone(), MemoryRecords::new()).await;
        let kind = other.unwrap_err().kind();
        assert_eq!(kind, FilesErrorKind::Configuration, "{fault:?}");
    }
}

#[tokio::test]
async fn a_store_that_does_not_keep_what_it_accepts_is_found_out() {
    for (fault, problem) in [
        (Fault::KeepsNothing, "does not have it"),
        (Fault::KeepsHalf, "has 6 bytes of 12"),
    ] {
        let server = Server::start();
        let files = files(&server).await;
        server.fail(fault);
        let error = put(&files, "a.txt").await.unwrap_err();
        assert_eq!(error.kind(), FilesErrorKind::Store);
        let message = error.to_string();
        let names_it = message.contains("_a.txt`") && message.ends_with(problem);
        assert!(names_it, "{message}");
        assert_eq!(files.list("alice", None, 10).await.unwrap(), []);
    }
}

#[tokio::test]
async fn a_store_that_returns_something_else_is_an_error_that_names_the_file() {
    for (fault, kind) in [
        (Fault::OtherContent, FilesErrorKind::Damaged),
        (Fault::HalfContent, FilesErrorKind::Damaged),
    ] {
        let server = Server::start();
        let files = files(&server).await;
        let record = put(&files, "a.txt").await.unwrap();
        let content = files.read_bytes("alice", record.id, 100).await.unwrap();
        assert_eq!(content, "hello, world");
        server.fail(fault);
        let error = files.read_bytes("alice", record.id, 100).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{fault:?}: {error:?}");
        assert!(error.to_string().contains("`a.txt`"), "{error}");
    }
}

/// In the full lane: the deadlines are those of users.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_stalls_is_an_error_within_the_deadline() {
    if !cantle_testkit::lane::is_full() {
        cantle_testkit::lane::skip(
            "the deadlines of a store that stalls are tested in the full lane",
        );
        return;
    }
    let begun = Instant::now();
    let upload = async {
        let server = Server::start();
        let files = files(&server).await;
        server.fail(Fault::StalledUpload);
        let error = put(&files, "a.txt").await.unwrap_err();
        assert_eq!(files.list("alice", None, 10).await.unwrap(), []);
        error
    };
    let download = async |fault| {
        let server = Server::start();
        let files = files(&server).await;
        let record = put(&files, "a.txt").await.unwrap();
        server.fail(fault);
        files.read_bytes("alice", record.id, 100).await.unwrap_err()
    };
    let (stalled, broken) = (Fault::StalledDownload, Fault::BrokenContent);
    let dripped = download(Fault::DrippedDownload);
    let errors = tokio::join!(upload, download(stalled), download(broken), dripped);
    for error in <[_; 4]>::from(errors) {
        assert_eq!(error.kind(), FilesErrorKind::Store, "{error:?}");
    }
    assert!(begun.elapsed() < Duration::from_secs(200));
}
