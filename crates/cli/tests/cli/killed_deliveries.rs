//! Runs that are killed while they deliver to a bucket, at a chosen request, and resumed.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cantle_files::{FileStore, Files, MemoryRecords, SqliteRecords};
use rustix::process::Signal;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;

use crate::stores::{
    OpenBucket, UNDELIVERED, env, file_names, object, server, stored, unique_prefix, waiting,
    with_credentials,
};
use crate::support::{DEADLINE, TestEnv, peer, send, wait_for_exit};

/// The beginning of a request line, and the end of a name in it.
type HeldRequest = (&'static str, &'static str);

/// The object is stored, and what follows is not.
const STORED: HeldRequest = ("HEAD ", "c.txt ");
/// Before an object, before the result file, and after it.
const OTHERS: [HeldRequest; 3] = [
    ("PUT ", "c.txt "),
    ("PUT ", "cantle-result.json "),
    ("HEAD ", "cantle-result.json "),
];

#[cfg(feature = "s3")]
#[tokio::test]
async fn killed_while_it_delivers_to_s3_a_run_delivers_once_when_it_is_resumed() {
    let Some([url]) = peer("moto", ["CANTLE_TEST_S3_URL"]) else {
        return;
    };
    let credentials = |url: &str| crate::stores::s3_credentials(url);
    deliver_once("s3", &url, FileStore::s3, &credentials, STORED).await;
    if cantle_testkit::lane::is_full() {
        for held in OTHERS {
            deliver_once("s3", &url, FileStore::s3, &credentials, held).await;
        }
    }
}

/// In the full lane.
#[cfg(feature = "azure")]
#[tokio::test]
async fn killed_while_it_delivers_to_azure_a_run_delivers_once_when_it_is_resumed() {
    let variables = ["CANTLE_TEST_AZURE_URL", "CANTLE_TEST_AZURE_KEY"];
    let Some([url, key]) = peer("azurite", variables) else {
        return;
    };
    let credentials = |url: &str| crate::stores::azure_credentials(url, &key);
    for held in OTHERS.into_iter().chain([STORED]) {
        deliver_once("az", &url, FileStore::azure, &credentials, held).await;
    }
}

/// Kills a run at a request, with and without a catalogue, and checks what it has delivered after it was resumed.
async fn deliver_once(
    scheme: &str,
    url: &str,
    open: OpenBucket,
    credentials: &dyn Fn(&str) -> String,
    held: HeldRequest,
) {
    for has_catalogue in [false, true] {
        let relay = Relay::start(url, held).await;
        let prefix = unique_prefix();
        let place = format!("{scheme}://cantle/{prefix}");
        let server = server().await;
        let env = with_credentials(env(&server), &credentials(&relay.url));
        let (env, target) = match has_catalogue {
            true => {
                let env = env.set("CANTLE_STORE", &place);
                (env.set("CANTLE_CATALOGUE", "catalogue"), "files:")
            }
            false => (env, &*place),
        };
        let store = open("cantle", Some(&env.path("credentials"))).unwrap();
        let store = store.with_prefix(&prefix).unwrap();
        let objects = match has_catalogue {
            true => None,
            false => Some(Files::open(store.clone(), MemoryRecords::new())),
        };
        let objects = futures_util::future::OptionFuture::from(objects).await;
        let objects = objects.transpose().unwrap();

        let run = ["run", "Change it", "--input", "a.txt", "--output-dir"];
        let child = env.command(run.iter().chain(&[target])).spawn().unwrap();
        let is_held = timeout(DEADLINE, relay.is_held.notified()).await;
        send(&child, Signal::KILL);
        let killed = wait_for_exit(child).await;
        assert!(is_held.is_ok(), "{held:?}: {killed:?}");
        assert_eq!((killed.code, &*killed.stdout), (None, ""), "{killed:?}");
        *relay.held.lock().unwrap() = None;
        let run = waiting(&env);
        if let Some(files) = objects.as_ref().filter(|_| held != OTHERS[2]) {
            // Its presence says that the others are there.
            let key = format!("{run}/cantle-result.json");
            assert_eq!(object(files, &key).await, None, "{held:?}");
        }

        let resumed = env.run(["run", "--resume", &run]).await;
        let outcome = (resumed.code, &*resumed.stdout);
        assert_eq!(outcome, (Some(0), "done\n"), "{held:?}: {resumed:?}");
        assert_eq!(env.list(UNDELIVERED), [""; 0]);
        assert_eq!(server.requests().len(), 2, "no further model call");
        match &objects {
            Some(files) => check_objects(files, &place, &run).await,
            None => check_records(&env, store, held).await,
        }
    }
}

/// Each file has one record, whose object exists. Only an object that was stored has no record.
async fn check_records(env: &TestEnv, store: FileStore, held: HeldRequest) {
    let records = stored(env).await;
    let names = ["b.txt", "c.txt", "cantle-result.json", "é__.txt"];
    assert_eq!(file_names(&records), names);
    for record in &records {
        let id = record["id"].as_str().unwrap();
        let content = env.run(["files", "get", id, "-"]).await;
        let text = match record["filename"].as_str().unwrap() {
            "b.txt" => "2\n",
            "c.txt" => "3\n",
            "é__.txt" => "4\n",
            _ => &content.stdout,
        };
        let got = (content.code, &*content.stdout);
        assert_eq!(got, (Some(0), text), "{content:?}");
    }
    let catalogue = SqliteRecords::open(env.path("catalogue")).await.unwrap();
    let files = Files::open(store, catalogue).await.unwrap();
    let orphans = files.sweep(Duration::ZERO).await.unwrap().objects;
    assert_eq!(orphans, u64::from(held.0 == "HEAD "), "{held:?}");
    assert_eq!(stored(env).await, records);
}

/// Every object has the key that the result file names.
async fn check_objects(files: &Files, place: &str, run: &str) {
    let get = async |name: &str| object(files, &format!("{run}/{name}")).await;
    let result = get("cantle-result.json").await.unwrap();
    let result: Value = serde_json::from_str(&result).unwrap();
    let texts = [
        ("dir/b.txt", "2\n"),
        ("c.txt", "3\n"),
        ("%C3%A9 %23.txt", "4\n"),
    ];
    for (output, (name, text)) in result["outputs"].as_array().unwrap().iter().zip(texts) {
        assert_eq!(output["path"], format!("{place}/{run}/{name}"));
        assert_eq!(get(name).await.as_deref(), Some(text));
    }
}

/// A relay to a server that holds one request back.
struct Relay {
    url: String,
    held: Arc<Mutex<Option<HeldRequest>>>,
    is_held: Arc<Notify>,
    task: AbortHandle,
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Relay {
    async fn start(url: &str, request: HeldRequest) -> Self {
        let mut url = url::Url::parse(url).unwrap();
        let to = url.socket_addrs(|| None).unwrap()[0];
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        url.set_port(Some(port)).unwrap();
        let held = Arc::new(Mutex::new(Some(request)));
        let is_held = Arc::new(Notify::new());
        let passing = pass_all(listener, to, Arc::clone(&held), Arc::clone(&is_held));
        Self {
            url: url.as_str().trim_end_matches('/').to_owned(),
            held,
            is_held,
            task: tokio::spawn(passing).abort_handle(),
        }
    }
}

async fn pass_all(
    listener: TcpListener,
    to: SocketAddr,
    held: Arc<Mutex<Option<HeldRequest>>>,
    is_held: Arc<Notify>,
) {
    // They end with the task.
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        let (held, is_held) = (Arc::clone(&held), Arc::clone(&is_held));
        connections.spawn(async move {
            let server = TcpStream::connect(to).await.unwrap();
            let (mut from_server, mut to_server) = server.into_split();
            let (mut from_client, mut to_client) = client.into_split();
            let requests = async {
                let mut chunk = vec![0; 1 << 16];
                while let Ok(length @ 1..) = from_client.read(&mut chunk).await {
                    // A request follows the answer to the one before, so it begins a chunk.
                    let line = chunk[..length].split(|byte| *byte == b'\r').next();
                    let line = String::from_utf8_lossy(line.unwrap());
                    let request = *held.lock().unwrap();
                    if request.is_some_and(|(method, name)| {
                        line.starts_with(method) && line.contains(name)
                    }) {
                        is_held.notify_one();
                        std::future::pending::<()>().await;
                    }
                    if to_server.write_all(&chunk[..length]).await.is_err() {
                        break;
                    }
                }
                let _ = to_server.shutdown().await;
            };
            let _ = tokio::join!(requests, tokio::io::copy(&mut from_server, &mut to_client));
        });
    }
}
