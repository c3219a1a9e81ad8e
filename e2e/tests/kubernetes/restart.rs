//! A kube-apiserver is restarted while clients of its bridge read, write and
//! watch.
//!
//! What is promised, and no more:
//! - A client's connection to the bridge lasts, and each request gets an answer.
//! - While the server cannot be reached, that is a 503 Status with `Retry-After`,
//!   and then nothing has been done. What the server itself says while it stops
//!   and starts is passed on as it is.
//! - 502 is only for a write that was cut off in flight: it may have been done,
//!   once. A read is asked again instead.
//! - Watches end as they end without a bridge: cleanly.
//! - When the server is back, whoever asks again is answered.

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

/// From when the server is ready again to when everybody is served again.
const RECOVERY: Duration = Duration::from_secs(30);

/// For what takes seconds on a busy machine.
const COMMAND_TIMEOUT: Duration = Duration::from_mins(1);

/// From when the server is gone to when everybody has noticed.
const REFUSAL: Duration = Duration::from_secs(20);

/// How much has to succeed before and after, of each client.
const ENOUGH: usize = 20;

/// Between two requests of a client: a steady load, not a flood.
const PAUSE: Duration = Duration::from_millis(5);

/// How long a client waits before it asks again; it is told 1 s, and asks more
/// often to see more of the restart.
const BEFORE_RETRY: Duration = Duration::from_millis(50);

/// Without it kube-apiserver leaves watches open when it is told to end, and
/// waits a minute for them.
const END_WATCHES: &str = "--shutdown-watch-termination-grace-period=10s";

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// The test itself blocks while the server ends: the clients have threads of
/// their own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_ride_out_a_restart() {
    for version in restarted() {
        println!("kube-apiserver {version}");
        ride_out(&version).await;
    }
}

/// The newest of each plane is enough for every day; whoever chooses others has
/// the time for each version.
fn restarted() -> Vec<String> {
    if has_custom_control_planes() {
        return versions();
    }
    let control_planes = control_planes();
    let newest = control_planes.iter().map(|plane| newest(plane).to_owned());
    newest.collect()
}

async fn ride_out(version: &str) {
    let server = ServerSpec::of(version).flag(END_WATCHES);
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
    load.everybody_succeeds("before the restart", COMMAND_TIMEOUT)
        .await;

    plane.restart_server(0);
    load.everybody_was_refused().await;
    let address = plane.servers[0].at(Via::Server);
    plane.wait_for_ready("the server is back", address).await;
    load.everybody_succeeds("after the restart", RECOVERY).await;

    load.stop.send_replace(true);
    let ended = tokio::time::timeout(COMMAND_TIMEOUT, clients.join_all()).await;
    ended.expect("the clients end");
    let bridge = plane.servers[0].bridge_process.as_mut();
    assert!(bridge.unwrap().is_running());
    every_write_was_done_as_it_was_answered(&plane, &load).await;
}

/// What the clients share.
#[derive(Default)]
struct Load {
    stop: watch::Sender<bool>,
    members: Mutex<Vec<Arc<Count>>>,
    writes: Arc<Mutex<HashMap<String, Fate>>>,
}

/// How one client is doing.
#[derive(Default)]
struct Count {
    succeeded: AtomicUsize,
    refused: AtomicUsize,
}

/// What a client was told about a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Done,
    NotDone,
    Unknown,
}

/// A client's view of the load.
struct Member {
    stop: watch::Receiver<bool>,
    count: Arc<Count>,
    writes: Arc<Mutex<HashMap<String, Fate>>>,
    number: usize,
}

impl Load {
    fn member(&self) -> Member {
        let mut members = self.members.lock().unwrap();
        let count = Arc::<Count>::default();
        members.push(count.clone());
        Member {
            stop: self.stop.subscribe(),
            count,
            writes: self.writes.clone(),
            number: members.len(),
        }
    }

    async fn everybody_succeeds(&self, when: &str, within: Duration) {
        let before = self.counts(|count| &count.succeeded);
        eventually(when, within, async || {
            let now = self.counts(|count| &count.succeeded);
            now.iter()
                .zip(&before)
                .all(|(now, then)| *now >= then + ENOUGH)
        })
        .await;
    }

    /// While the server ended, or since: nobody hangs in the past.
    async fn everybody_was_refused(&self) {
        eventually("everybody is refused", REFUSAL, async || {
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

impl Member {
    fn goes_on(&self) -> bool {
        !*self.stop.borrow()
    }

    /// Returns when the load is to end.
    async fn stopped(&self) {
        let _ = self.stop.clone().wait_for(|stop| *stop).await;
    }

    async fn succeeded(&self) {
        self.count.succeeded.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(PAUSE).await;
    }

    async fn refused(&self) {
        self.count.refused.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(BEFORE_RETRY).await;
    }
}

/// Whose answer it is: kube-apiserver gives each of its own an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Speaker {
    Server,
    Bridge,
}

fn speaker(headers: &[(String, String)]) -> Speaker {
    let own = |(name, _): &(String, String)| name.eq_ignore_ascii_case("audit-id");
    if headers.iter().any(own) {
        Speaker::Server
    } else {
        Speaker::Bridge
    }
}

/// What kube-apiserver itself says while it stops and starts: 503 "apiserver is
/// shutting down", 429 "storage is (re)initializing", 500 of a hook. A doubt
/// about who the caller is or what there is would be another matter.
fn comes_and_goes(status: u16) -> bool {
    status == 429 || status >= 500
}

/// A Status of this code that tells when to ask again.
fn assert_retriable(response: &Response) {
    let text = response.text();
    assert!(response.header("retry-after").is_some(), "{text}");
    let status: serde_json::Value = serde_json::from_slice(&response.body).expect("a Status");
    assert_eq!(status["kind"], "Status", "{text}");
    assert_eq!(status["code"], response.status, "{text}");
}

async fn read(mut client: HttpClient, member: Member) {
    while member.goes_on() {
        let request = Request::get("/api/v1/namespaces");
        let response = client.send(&request).await.expect("an answer to a read");
        match (speaker(&response.headers), response.status) {
            (Speaker::Server, 200) => member.succeeded().await,
            (Speaker::Bridge, 503) => {
                assert_retriable(&response);
                member.refused().await;
            }
            (Speaker::Server, status) if comes_and_goes(status) => member.refused().await,
            (who, status) => panic!("{who:?}: {status} to a read: {}", response.text()),
        }
    }
}

/// Objects named by the server: one that is made twice would be there twice.
async fn write(mut client: HttpClient, member: Member) {
    for attempt in 0.. {
        if !member.goes_on() {
            return;
        }
        let label = format!("{}-{attempt}", member.number);
        let map = format!(
            r#"{{"kind":"ConfigMap","apiVersion":"v1",
                "metadata":{{"generateName":"load-{label}-","labels":{{"attempt":"{label}"}}}}}}"#
        );
        let request = Request::new("POST", MAPS).body("application/json", &map);
        let response = client.send(&request).await.expect("an answer to a write");
        let fate = match (speaker(&response.headers), response.status) {
            (Speaker::Server, 201) => Fate::Done,
            (Speaker::Bridge, 503) => {
                assert_retriable(&response);
                Fate::NotDone
            }
            (Speaker::Bridge, 502) => Fate::Unknown,
            (Speaker::Server, status) if comes_and_goes(status) => Fate::Unknown,
            (who, status) => panic!("{who:?}: {status} to a write: {}", response.text()),
        };
        member.writes.lock().unwrap().insert(label, fate);
        match fate {
            Fate::Done => member.succeeded().await,
            Fate::NotDone | Fate::Unknown => member.refused().await,
        }
    }
}

/// Each event counts as a success, each end as a refusal. Once nobody writes any
/// more no event comes either, so it does not wait for one to be told to stop.
async fn watch(client: HttpClient, member: Member) {
    let request = Request::get(&format!("{MAPS}?watch=true&timeoutSeconds=600"));
    while member.goes_on() {
        let mut stream = client.stream(&request).await.expect("an answer to a watch");
        match (speaker(&stream.headers), stream.status) {
            (Speaker::Server, 200) => loop {
                let next = tokio::select! {
                    next = stream.next() => next,
                    () = member.stopped() => return,
                };
                match next.expect("a clean end of a watch") {
                    Some(_events) => member.count.succeeded.fetch_add(1, Ordering::Relaxed),
                    None => break,
                };
            },
            (Speaker::Bridge, 503) => {}
            (Speaker::Server, status) if comes_and_goes(status) => {}
            (who, status) => panic!("{who:?}: {status} to a watch"),
        }
        member.refused().await;
    }
}

async fn every_write_was_done_as_it_was_answered(plane: &ControlPlane, load: &Load) {
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
            Fate::Done => 1..=1,
            Fate::NotDone => 0..=0,
            Fate::Unknown => 0..=1,
        };
        assert!(
            allowed.contains(&times),
            "{label}: {fate:?}, but there {times} times"
        );
    }
    assert!(times.is_empty(), "nobody asked for {times:?}");
}
