//! Of two servers of an API one is killed and restarted, and then each is replaced as in a rolling
//! upgrade, while clients of another server's bridge use the API without disruption.
//!
//! - While one of them is reachable, no read fails; and no write either, if the other
//!   terminates gracefully.
//! - Watches end cleanly and can be resumed elsewhere, without loss.
//! - A server that returns is used again within seconds.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;
use skewbridge_e2e::{
    ControlPlane, HttpClient, Protocol, Request, ResponseStream, ServerSpec, VersionSpecificApi,
    Via, old_and_new_versions,
};
use skewbridge_testkit::eventually;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::peer_pair::{
    OLD, PEER_DISCOVERY_TIMEOUT, record_keys, wait_until_record_points_to, wait_until_served,
};

/// How long a server that has returned may stay unused.
const REUSE_TIMEOUT: Duration = Duration::from_secs(10);

/// For an operation that takes a second on a busy machine.
const COMMAND_TIMEOUT: Duration = Duration::from_mins(1);

/// The interval between two requests of a client: a steady load, not a flood.
const REQUEST_INTERVAL: Duration = Duration::from_millis(10);

/// How many requests of each client have to succeed at each checkpoint.
const MIN_SUCCESSES: usize = 20;

/// Without it kube-apiserver keeps watches open when it is terminated, and waits a minute
/// for them.
const WATCH_TERMINATION_FLAG: &str = "--shutdown-watch-termination-grace-period=10s";

/// As an administrator would configure it for a rolling upgrade.
fn upgradable(version: &str) -> ServerSpec {
    ServerSpec::of(version)
        .peer()
        .flag(WATCH_TERMINATION_FLAG)
        .bridge_flag("--shutdown-delay-duration=2s")
        .bridge_flag("--shutdown-drain-timeout=10s")
}

/// The test blocks its thread while a process exits: the clients have their own threads.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_are_not_disrupted_when_one_of_two_peers_is_killed_or_replaced() {
    let Some([old, new]) = old_and_new_versions() else {
        return;
    };
    let servers = [
        ServerSpec::of(&old).peer(),
        upgradable(&new),
        upgradable(&new),
    ];
    let mut plane = ControlPlane::start(&servers).await;
    wait_until_served(
        &plane,
        &VersionSpecificApi::POLICIES,
        PEER_DISCOVERY_TIMEOUT,
    )
    .await;
    wait_until_both_are_used(&plane, PEER_DISCOVERY_TIMEOUT).await;

    let load = Load::default();
    let mut clients = JoinSet::new();
    for protocol in [Protocol::H1, Protocol::H2] {
        for _ in 0..2 {
            let client = plane.http_client(OLD, Via::Bridge, protocol);
            clients.spawn(read(client, load.member()));
        }
    }
    for (server, first) in [(1, KillOrder::Server), (2, KillOrder::Bridge)] {
        load.wait_until_all_succeed("before the kill").await;
        match first {
            KillOrder::Server => {
                plane.stop_server(server, "KILL");
                plane.stop_bridge(server, "KILL");
            }
            KillOrder::Bridge => {
                plane.stop_bridge(server, "KILL");
                plane.stop_server(server, "KILL");
            }
        }
        load.run_for(Duration::from_secs(2)).await;
        plane.start_server(server);
        plane.start_bridge(server);
        plane.wait_until_ready().await;
        let since = Instant::now();
        wait_until_both_are_used(&plane, REUSE_TIMEOUT).await;
        println!(
            "server {server} used again {:.1?} after readiness",
            since.elapsed()
        );
        load.wait_until_all_succeed("after the kill").await;
    }

    for protocol in [Protocol::H1, Protocol::H2] {
        for _ in 0..2 {
            let client = plane.http_client(OLD, Via::Bridge, protocol);
            clients.spawn(write(client, load.member()));
        }
        let client = plane.http_client(OLD, Via::Bridge, protocol);
        let follower = ResumingWatcher::start(client).await;
        clients.spawn(follower.follow(load.member()));
    }
    // A rolling upgrade: one after the other.
    for (server, then) in [
        (1, ServerTermination::Immediately),
        (2, ServerTermination::AfterDirectRequests),
    ] {
        load.wait_until_all_succeed("before the termination").await;
        let since = Instant::now();
        plane.stop_bridge(server, "TERM");
        println!("bridge {server} ended in {:.1?}", since.elapsed());
        if then == ServerTermination::AfterDirectRequests {
            let [key, _] = record_keys(&plane, server);
            let address = plane.servers[server].address;
            wait_until_record_points_to(&mut plane, &key, address).await;
            wait_until_both_are_used(&plane, REUSE_TIMEOUT).await;
        }
        plane.stop_server(server, "TERM");
        println!("server {server} ended in {:.1?}", since.elapsed());
        load.run_for(Duration::from_secs(2)).await;
        plane.start_server(server);
        plane.start_bridge(server);
        plane.wait_until_ready().await;
        wait_until_both_are_used(&plane, REUSE_TIMEOUT).await;
        load.wait_until_all_succeed("after the termination").await;
    }
    load.stop.send_replace(true);
    let ended = tokio::time::timeout(COMMAND_TIMEOUT, clients.join_all()).await;
    ended.expect("all clients have stopped");
    load.assert_no_failures();
    assert_writes_were_executed_once(&plane, &load).await;
}

/// Which of a server and its bridge is killed first.
#[derive(Debug, Clone, Copy)]
enum KillOrder {
    Server,
    Bridge,
}

/// When a server is terminated whose bridge has stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ServerTermination {
    Immediately,
    /// From 1.36 on a server publishes its own address every 10 s, if there is no other.
    AfterDirectRequests,
}

/// Waits until the old server's bridge has sent a request to each of the others since now.
async fn wait_until_both_are_used(plane: &ControlPlane, within: Duration) {
    let before = [1, 2].map(|server| request_count(plane, server));
    eventually("both peers are used", within, async || {
        plane
            .status(OLD, Via::Bridge, VersionSpecificApi::POLICIES.path)
            .await;
        let now = [1, 2].map(|server| request_count(plane, server));
        now.iter().zip(before).all(|(now, then)| *now > then)
    })
    .await;
}

/// How many requests a server has received, by its audit log.
fn request_count(plane: &ControlPlane, server: usize) -> usize {
    let log = std::fs::read_to_string(&plane.servers[server].audit_log).unwrap_or_default();
    log.matches(VersionSpecificApi::POLICIES.path).count()
}

/// The shared state of the clients.
#[derive(Default)]
struct Load {
    stop: watch::Sender<bool>,
    members: Mutex<Vec<Arc<AtomicUsize>>>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// Unexpected events.
    failures: Mutex<Vec<String>>,
    /// The names of created objects by their label.
    written: Mutex<HashMap<String, String>>,
    /// The number of ADDED events of each watch, by object.
    seen: Mutex<Vec<HashMap<String, usize>>>,
    /// How often watches were resumed.
    resumed: AtomicUsize,
}

/// The load as seen by one client.
struct LoadClientState {
    stop: watch::Receiver<bool>,
    succeeded: Arc<AtomicUsize>,
    shared: Arc<Shared>,
    number: usize,
}

impl Load {
    fn member(&self) -> LoadClientState {
        let mut members = self.members.lock().unwrap();
        let succeeded = Arc::<AtomicUsize>::default();
        members.push(succeeded.clone());
        LoadClientState {
            stop: self.stop.subscribe(),
            succeeded,
            shared: self.shared.clone(),
            number: members.len(),
        }
    }

    fn counts(&self) -> Vec<usize> {
        let members = self.members.lock().unwrap();
        members
            .iter()
            .map(|it| it.load(Ordering::Relaxed))
            .collect()
    }

    async fn wait_until_all_succeed(&self, when: &str) {
        let before = self.counts();
        eventually(when, COMMAND_TIMEOUT, async || {
            let now = self.counts();
            now.iter()
                .zip(&before)
                .all(|(now, then)| *now >= then + MIN_SUCCESSES)
        })
        .await;
        self.assert_no_failures();
    }

    /// Lets the clients run for a while.
    async fn run_for(&self, time: Duration) {
        sleep(time).await;
        self.wait_until_all_succeed("goes on").await;
    }

    fn assert_no_failures(&self) {
        let failures = self.shared.failures.lock().unwrap();
        assert!(failures.is_empty(), "of {:?}: {failures:#?}", self.counts());
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

    fn failed(&self, what: String) {
        self.shared.failures.lock().unwrap().push(what);
    }

    fn succeeded(&self) {
        self.succeeded.fetch_add(1, Ordering::Relaxed);
    }
}

async fn read(mut client: HttpClient, member: LoadClientState) {
    while member.is_running() {
        match client
            .send(&Request::get(VersionSpecificApi::POLICIES.path))
            .await
        {
            Ok(response) if response.status == 200 => member.succeeded(),
            Ok(response) => member.failed(format!(
                "{} to a read: {}",
                response.status,
                response.text()
            )),
            Err(error) => member.failed(format!("a read: {error}")),
        }
        sleep(REQUEST_INTERVAL).await;
    }
}

/// Objects with generated names: an object that is created twice would exist twice.
async fn write(mut client: HttpClient, member: LoadClientState) {
    let special = VersionSpecificApi::TAINT_RULES;
    for attempt in 0.. {
        if !member.is_running() {
            return;
        }
        let label = format!("{}-{attempt}", member.number);
        let mut object: Value = serde_json::from_str(&special.object("")).unwrap();
        object["metadata"] = serde_json::json!(
            {"generateName": format!("load-{label}-"), "labels": {"attempt": label}});
        let request =
            Request::new("POST", special.path).body("application/json", &object.to_string());
        match client.send(&request).await {
            Ok(response) if response.status == 201 => {
                let object: Value = serde_json::from_slice(&response.body).unwrap();
                let name = name_of(&object);
                member.shared.written.lock().unwrap().insert(label, name);
                member.succeeded();
            }
            Ok(response) => {
                member.failed(format!(
                    "{} to a write: {}",
                    response.status,
                    response.text()
                ));
            }
            Err(error) => member.failed(format!("a write: {error}")),
        }
        sleep(REQUEST_INTERVAL * 2).await;
    }
}

fn name_of(object: &Value) -> String {
    object["metadata"]["name"].as_str().unwrap().to_owned()
}

/// A client that watches, and resumes its watch where it ended.
struct ResumingWatcher {
    client: HttpClient,
    version: String,
    seen: HashMap<String, usize>,
}

impl ResumingWatcher {
    async fn start(mut client: HttpClient) -> Self {
        let list = client
            .send(&Request::get(VersionSpecificApi::TAINT_RULES.path))
            .await;
        let list: Value = serde_json::from_slice(&list.unwrap().body).unwrap();
        let items = list["items"].as_array().unwrap();
        Self {
            client,
            version: list["metadata"]["resourceVersion"]
                .as_str()
                .unwrap()
                .to_owned(),
            seen: items.iter().map(|it| (name_of(it), 1)).collect(),
        }
    }

    async fn follow(mut self, member: LoadClientState) {
        loop {
            let path = format!(
                "{}?watch=true&timeoutSeconds=600&resourceVersion={}",
                VersionSpecificApi::TAINT_RULES.path,
                self.version
            );
            match self.client.stream(&Request::get(&path)).await {
                Ok(stream) if stream.status == 200 => {
                    if let Err(problem) = self.events(stream, &member).await {
                        member.failed(problem);
                    }
                }
                Ok(stream) => member.failed(format!("{} to a watch", stream.status)),
                Err(error) => member.failed(format!("a watch: {error}")),
            }
            if !member.is_running() {
                member.shared.seen.lock().unwrap().push(self.seen);
                return;
            }
            member.shared.resumed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Until the stream ends, or all written objects have been seen and no more will come.
    async fn events(
        &mut self,
        mut stream: ResponseStream,
        member: &LoadClientState,
    ) -> Result<(), String> {
        let mut text = Vec::new();
        loop {
            let next = tokio::select! {
                next = stream.next() => next,
                () = member.stopped() => {
                    // The writers have stopped if nothing arrives.
                    match tokio::time::timeout(Duration::from_secs(3), stream.next()).await {
                        Ok(next) => next,
                        Err(_) => return Ok(()),
                    }
                }
            };
            let piece = next.map_err(|error| format!("a watch was cut: {error}"))?;
            let Some(piece) = piece else {
                if text.is_empty() {
                    return Ok(());
                }
                return Err("a watch ended within an event".to_owned());
            };
            text.extend(piece);
            while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = text.drain(..=end).collect();
                let event: Value = serde_json::from_slice(&line).map_err(|it| it.to_string())?;
                if event["type"] != "ADDED" {
                    return Err(format!("an unexpected event: {event}"));
                }
                let object = &event["object"];
                let version = object["metadata"]["resourceVersion"].as_str().unwrap();
                version.clone_into(&mut self.version);
                *self.seen.entry(name_of(object)).or_default() += 1;
                member.succeeded();
            }
        }
    }
}

async fn assert_writes_were_executed_once(plane: &ControlPlane, load: &Load) {
    let mut client = plane.http_client(OLD, Via::Bridge, Protocol::H2);
    let list = client
        .send(&Request::get(VersionSpecificApi::TAINT_RULES.path))
        .await;
    let list: Value = serde_json::from_slice(&list.unwrap().body).unwrap();
    let written = load.shared.written.lock().unwrap();
    let mut existing = HashMap::<_, Vec<_>>::new();
    for object in list["items"].as_array().unwrap() {
        let label = object["metadata"]["labels"]["attempt"].as_str().unwrap();
        existing.entry(label).or_default().push(name_of(object));
    }
    for (label, name) in &*written {
        assert_eq!(
            existing.get(label.as_str()),
            Some(&vec![name.clone()]),
            "{label}"
        );
    }
    assert_eq!(existing.len(), written.len(), "unreported writes");

    let seen = load.shared.seen.lock().unwrap();
    for seen in &*seen {
        for (label, name) in &*written {
            assert_eq!(seen.get(name), Some(&1), "{label} {name} by a watch");
        }
    }
    println!(
        "{:?} requests and events, {} objects, {} watches resumed {} times",
        load.counts(),
        written.len(),
        seen.len(),
        load.shared.resumed.load(Ordering::Relaxed)
    );
    assert!(load.shared.resumed.load(Ordering::Relaxed) > 0);
}
