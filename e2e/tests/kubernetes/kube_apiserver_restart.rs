//! A kube-apiserver is restarted while clients of its bridge read, write and watch.
//!
//! The guarantees:
//! - A client's connection to the bridge stays open, and each request gets a response.
//! - While the server is unreachable, that is a 503 Status with `Retry-After`, and the request
//!   has not been executed. Responses of the server itself while it stops and starts are
//!   forwarded unchanged.
//! - 502 is only for a write that was cut in flight: it may have been executed, once. A read is
//!   sent again instead.
//! - Watches end as they end without a bridge: cleanly.
//! - When the server is back, clients that retry get responses. The bridge does not report it as ready
//!   before it is.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use skewbridge_e2e::{
    ControlPlane, HttpClient, Protocol, Request, ServerSpec, Via, control_planes,
    has_custom_control_planes, newest, versions,
};
use skewbridge_testkit::{Response, eventually};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// From the readiness of the server to the time when all clients succeed again.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(30);

/// For an operation that takes seconds on a busy machine.
const COMMAND_TIMEOUT: Duration = Duration::from_mins(1);

/// From the exit of the server to the time when all clients have been rejected.
const REJECTION_TIMEOUT: Duration = Duration::from_secs(20);

/// How many requests of each client have to succeed before and after.
const MIN_SUCCESSES: usize = 20;

/// The interval between two requests of a client: a steady load, not a flood.
const REQUEST_INTERVAL: Duration = Duration::from_millis(5);

/// The retry delay of a client: shorter than the 1 s of the responses, to see more of the
/// restart.
const RETRY_DELAY: Duration = Duration::from_millis(50);

/// Without it kube-apiserver keeps watches open when it is terminated, and waits a minute
/// for them.
const WATCH_TERMINATION_FLAG: &str = "--shutdown-watch-termination-grace-period=10s";

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// The test blocks its thread while the server exits: the clients have their own threads.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_survive_a_restart() {
    for version in restarted_versions() {
        println!("kube-apiserver {version}");
        check_restart(&version).await;
    }
}

/// The newest version of each control plane by default; all versions with custom control
/// planes.
fn restarted_versions() -> Vec<String> {
    if has_custom_control_planes() {
        return versions();
    }
    let control_planes = control_planes();
    let newest = control_planes.iter().map(|plane| newest(plane).to_owned());
    newest.collect()
}

async fn check_restart(version: &str) {
    let server = ServerSpec::of(version).flag(WATCH_TERMINATION_FLAG);
    let mut plane = ControlPlane::start(&[server]).await;
    let load = Load::default();
    let mut clients = JoinSet::new();
    for protocol in [Protocol::H1, Protocol::H2] {
        let client = || {
            let address = plane.servers[0].at(Via::Bridge);
            HttpClient::new(plane.client("admin"), address, protocol)
        };
        for _ in 0..2 {
            clients.spawn(read(client(), load.member()));
            clients.spawn(write(client(), load.member()));
        }
        clients.spawn(watch(client(), load.member()));
    }
    load.wait_until_all_succeed("before the restart", COMMAND_TIMEOUT)
        .await;

    // The new process accepts TCP connections long before it answers TLS handshakes, and the bridge
    // waits for these: a client would meet no rejection if the server were started at once.
    plane.stop_server(0, "TERM");
    load.wait_until_all_were_rejected().await;
    let is_reported_ready = async |plane: &ControlPlane| {
        let check = plane.admin_page(0, "/readyz/upstream").await;
        check == "ok"
    };
    let what = "the bridge reports that the server has stopped";
    eventually(what, COMMAND_TIMEOUT, async || {
        !is_reported_ready(&plane).await
    })
    .await;
    plane.start_server(0);
    let what = "the bridge reports the server as ready";
    eventually(what, COMMAND_TIMEOUT, async || {
        is_reported_ready(&plane).await
    })
    .await;
    let readyz = plane.status(0, Via::Server, "/readyz").await;
    assert_eq!(readyz, 200, "the server is not ready yet");
    load.wait_until_all_succeed("after the restart", RECOVERY_TIMEOUT)
        .await;

    load.stop.send_replace(true);
    let ended = tokio::time::timeout(COMMAND_TIMEOUT, clients.join_all()).await;
    ended.expect("all clients have stopped");
    let bridge = plane.servers[0].bridge_process.as_mut();
    assert!(bridge.unwrap().is_running());
    assert_writes_match_their_responses(&plane, &load).await;
}

/// The shared state of the clients.
#[derive(Default)]
struct Load {
    stop: watch::Sender<bool>,
    members: Mutex<Vec<Arc<Count>>>,
    writes: Arc<Mutex<HashMap<String, WriteOutcome>>>,
}

/// The counts of one client.
#[derive(Default)]
struct Count {
    succeeded: AtomicUsize,
    refused: AtomicUsize,
}

/// The outcome of a write as reported to the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WriteOutcome {
    Done,
    NotDone,
    Unknown,
}

/// The load as seen by one client.
struct LoadClientState {
    stop: watch::Receiver<bool>,
    count: Arc<Count>,
    writes: Arc<Mutex<HashMap<String, WriteOutcome>>>,
    number: usize,
}

impl Load {
    fn member(&self) -> LoadClientState {
        let mut members = self.members.lock().unwrap();
        let count = Arc::<Count>::default();
        members.push(count.clone());
        LoadClientState {
            stop: self.stop.subscribe(),
            count,
            writes: self.writes.clone(),
            number: members.len(),
        }
    }

    async fn wait_until_all_succeed(&self, when: &str, within: Duration) {
        let before = self.counts(|count| &count.succeeded);
        eventually(when, within, async || {
            let now = self.counts(|count| &count.succeeded);
            now.iter()
                .zip(&before)
                .all(|(now, then)| *now >= then + MIN_SUCCESSES)
        })
        .await;
    }

    /// During the exit of the server or after it: no client hangs.
    async fn wait_until_all_were_rejected(&self) {
        eventually("all clients are rejected", REJECTION_TIMEOUT, async || {
            let times = self.counts(|count| &count.refused);
            times.iter().all(|times| *times > 0)
        })
        .await;
    }

    fn counts(&self, of: impl Fn(&Count) -> &AtomicUsize) -> Vec<usize> {
        let members = self.members.lock().unwrap();
        let counts = members
            .iter()
            .map(|count| of(count).load(Ordering::Relaxed));
        counts.collect()
    }
}

impl LoadClientState {
    fn is_running(&self) -> bool {
        !*self.stop.borrow()
    }

    /// Returns when the load is to stop.
    async fn stopped(&self) {
        let _ = self.stop.clone().wait_for(|stop| *stop).await;
    }

    async fn succeeded(&self) {
        self.count.succeeded.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(REQUEST_INTERVAL).await;
    }

    async fn refused(&self) {
        self.count.refused.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(RETRY_DELAY).await;
    }
}

/// The origin of a response: kube-apiserver adds an audit ID to each of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    Server,
    Bridge,
}

fn origin(headers: &[(String, String)]) -> Origin {
    let own = |(name, _): &(String, String)| name.eq_ignore_ascii_case("audit-id");
    if headers.iter().any(own) {
        Origin::Server
    } else {
        Origin::Bridge
    }
}

/// The errors of kube-apiserver itself while it stops and starts: 503 "apiserver is
/// shutting down", 429 "storage is (re)initializing", 500 of a hook. Errors about the
/// identity of the client or about missing APIs are not among them.
fn is_transient(status: u16) -> bool {
    status == 429 || status >= 500
}

/// Asserts a Status with this code and a retry delay.
fn assert_retriable(response: &Response) {
    let text = response.text();
    assert!(response.header("retry-after").is_some(), "{text}");
    let status: serde_json::Value = serde_json::from_slice(&response.body).expect("a Status");
    assert_eq!(status["kind"], "Status", "{text}");
    assert_eq!(status["code"], response.status, "{text}");
}

async fn read(mut client: HttpClient, member: LoadClientState) {
    while member.is_running() {
        let request = Request::get("/api/v1/namespaces");
        let response = client.send(&request).await.expect("an answer to a read");
        match (origin(&response.headers), response.status) {
            (Origin::Server, 200) => member.succeeded().await,
            (Origin::Bridge, 503) => {
                assert_retriable(&response);
                member.refused().await;
            }
            (Origin::Server, status) if is_transient(status) => member.refused().await,
            (origin, status) => panic!("{origin:?}: {status} to a read: {}", response.text()),
        }
    }
}

/// Objects with generated names: an object that is created twice would exist twice.
async fn write(mut client: HttpClient, member: LoadClientState) {
    for attempt in 0.. {
        if !member.is_running() {
            return;
        }
        let label = format!("{}-{attempt}", member.number);
        let map = format!(
            r#"{{"kind":"ConfigMap","apiVersion":"v1",
                "metadata":{{"generateName":"load-{label}-","labels":{{"attempt":"{label}"}}}}}}"#
        );
        let request = Request::new("POST", MAPS).body("application/json", &map);
        let response = client.send(&request).await.expect("an answer to a write");
        let fate = match (origin(&response.headers), response.status) {
            (Origin::Server, 201) => WriteOutcome::Done,
            (Origin::Bridge, 503) => {
                assert_retriable(&response);
                WriteOutcome::NotDone
            }
            (Origin::Bridge, 502) => WriteOutcome::Unknown,
            (Origin::Server, status) if is_transient(status) => WriteOutcome::Unknown,
            (origin, status) => panic!("{origin:?}: {status} to a write: {}", response.text()),
        };
        member.writes.lock().unwrap().insert(label, fate);
        match fate {
            WriteOutcome::Done => member.succeeded().await,
            WriteOutcome::NotDone | WriteOutcome::Unknown => member.refused().await,
        }
    }
}

/// Each event counts as a success, each end as a rejection. After the last write no event
/// arrives, so the client does not wait for one before it stops.
async fn watch(client: HttpClient, member: LoadClientState) {
    let request = Request::get(&format!("{MAPS}?watch=true&timeoutSeconds=600"));
    while member.is_running() {
        let mut stream = client.stream(&request).await.expect("an answer to a watch");
        match (origin(&stream.headers), stream.status) {
            (Origin::Server, 200) => loop {
                let next = tokio::select! {
                    next = stream.next() => next,
                    () = member.stopped() => return,
                };
                match next.expect("a clean end of a watch") {
                    Some(_events) => member.count.succeeded.fetch_add(1, Ordering::Relaxed),
                    None => break,
                };
            },
            (Origin::Bridge, 503) => {}
            (Origin::Server, status) if is_transient(status) => {}
            (origin, status) => panic!("{origin:?}: {status} to a watch"),
        }
        member.refused().await;
    }
}

async fn assert_writes_match_their_responses(plane: &ControlPlane, load: &Load) {
    let address = plane.servers[0].at(Via::Server);
    let mut client = HttpClient::new(plane.client("admin"), address, Protocol::H2);
    let list = client.send(&Request::get(MAPS)).await.unwrap();
    let list: serde_json::Value = serde_json::from_slice(&list.body).unwrap();
    let mut times = HashMap::<&str, usize>::new();
    for map in list["items"].as_array().unwrap() {
        if let Some(label) = map["metadata"]["labels"]["attempt"].as_str() {
            *times.entry(label).or_default() += 1;
        }
    }
    let writes = load.writes.lock().unwrap();
    for (label, fate) in &*writes {
        let times = times.remove(label.as_str()).unwrap_or_default();
        let allowed = match fate {
            WriteOutcome::Done => 1..=1,
            WriteOutcome::NotDone => 0..=0,
            WriteOutcome::Unknown => 0..=1,
        };
        assert!(
            allowed.contains(&times),
            "{label}: {fate:?}, but created {times} times"
        );
    }
    assert!(times.is_empty(), "unexpected objects: {times:?}");
}
