//! Of two servers that serve something one dies and returns, and then each ends
//! and returns as in a rolling upgrade, while clients of another server's bridge
//! ask for it: nobody notices.
//!
//! - While one of them can be reached, no read fails; and no write either, if
//!   the other ends in order.
//! - Watches end cleanly and can be resumed elsewhere, without loss.
//! - Who returns is used again within seconds.

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
    OLD, PEER_DISCOVERY_TIMEOUT, keys, wait_until_record_points_to, wait_until_served,
};

/// How long who returns may be without work.
const USED_AGAIN: Duration = Duration::from_secs(10);

/// For what takes a second on a busy machine.
const COMMAND_TIMEOUT: Duration = Duration::from_mins(1);

/// Between two requests of a client: a steady load, not a flood.
const PAUSE: Duration = Duration::from_millis(10);

/// How much has to succeed of each client, wherever that is waited for.
const ENOUGH: usize = 20;

/// Without it kube-apiserver leaves watches open when it is told to end, and
/// waits a minute for them.
const END_WATCHES: &str = "--shutdown-watch-termination-grace-period=10s";

/// As an administrator would have it for a rolling upgrade.
fn upgraded(version: &str) -> ServerSpec {
    ServerSpec::of(version)
        .peer()
        .flag(END_WATCHES)
        .bridge_flag("--shutdown-delay-duration=2s")
        .bridge_flag("--shutdown-drain-timeout=10s")
}

/// The test itself blocks while a process ends: the clients have threads of
/// their own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_two_peers_dies_returns_and_ends_and_nobody_notices() {
    let Some([old, new]) = old_and_new_versions() else {
        return;
    };
    let servers = [ServerSpec::of(&old).peer(), upgraded(&new), upgraded(&new)];
    let mut plane = ControlPlane::start(&servers).await;
    wait_until_served(
        &plane,
        &VersionSpecificApi::POLICIES,
        PEER_DISCOVERY_TIMEOUT,
    )
    .await;
    both_are_used(&plane, PEER_DISCOVERY_TIMEOUT).await;

    let load = Load::default();
    let mut clients = JoinSet::new();
    for protocol in [Protocol::H1, Protocol::H2] {
        for _ in 0..2 {
            let client = plane.http_client(OLD, Via::Bridge, protocol);
            clients.spawn(read(client, load.member()));
        }
    }
    for (server, first) in [(1, First::Server), (2, First::Bridge)] {
        load.everybody_succeeds("before it dies").await;
        match first {
            First::Server => {
                plane.stop_server(server, "KILL");
                plane.stop_bridge(server, "KILL");
            }
            First::Bridge => {
                plane.stop_bridge(server, "KILL");
                plane.stop_server(server, "KILL");
            }
        }
        load.goes_on_for(Duration::from_secs(2)).await;
        plane.start_server(server);
        plane.start_bridge(server);
        plane.wait_until_ready().await;
        let since = Instant::now();
        both_are_used(&plane, USED_AGAIN).await;
        println!(
            "server {server} used again {:.1?} after readiness",
            since.elapsed()
        );
        load.everybody_succeeds("after it died").await;
    }

    for protocol in [Protocol::H1, Protocol::H2] {
        for _ in 0..2 {
            let client = plane.http_client(OLD, Via::Bridge, protocol);
            clients.spawn(write(client, load.member()));
        }
        let client = plane.http_client(OLD, Via::Bridge, protocol);
        let follower = Follower::start(client).await;
        clients.spawn(follower.follow(load.member()));
    }
    // A rolling upgrade: one after the other.
    for (server, then) in [(1, Then::AtOnce), (2, Then::WhenItIsAskedItself)] {
        load.everybody_succeeds("before it ends").await;
        let since = Instant::now();
        plane.stop_bridge(server, "TERM");
        println!("bridge {server} ended in {:.1?}", since.elapsed());
        if then == Then::WhenItIsAskedItself {
            let [key, _] = keys(&plane, server);
            let address = plane.servers[server].address;
            wait_until_record_points_to(&mut plane, &key, address).await;
            both_are_used(&plane, USED_AGAIN).await;
        }
        plane.stop_server(server, "TERM");
        println!("server {server} ended in {:.1?}", since.elapsed());
        load.goes_on_for(Duration::from_secs(2)).await;
        plane.start_server(server);
        plane.start_bridge(server);
        plane.wait_until_ready().await;
        both_are_used(&plane, USED_AGAIN).await;
        load.everybody_succeeds("after it ended").await;
    }
    load.stop.send_replace(true);
    let ended = tokio::time::timeout(COMMAND_TIMEOUT, clients.join_all()).await;
    ended.expect("the clients end");
    load.nothing_failed();
    every_write_was_done_once(&plane, &load).await;
}

/// What of a server and its bridge dies a moment before the other.
#[derive(Debug, Clone, Copy)]
enum First {
    Server,
    Bridge,
}

/// When a server is told to end whose bridge has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Then {
    AtOnce,
    /// From 1.36 on a server publishes its own address every 10 s, if there is
    /// no other.
    WhenItIsAskedItself,
}

/// Waits until the old server's bridge has sent something to each of the
/// others since now.
async fn both_are_used(plane: &ControlPlane, within: Duration) {
    let before = [1, 2].map(|server| times_used(plane, server));
    eventually("both peers are used", within, async || {
        plane
            .status(OLD, Via::Bridge, VersionSpecificApi::POLICIES.path)
            .await;
        let now = [1, 2].map(|server| times_used(plane, server));
        now.iter().zip(before).all(|(now, then)| *now > then)
    })
    .await;
}

/// How often a server was asked, by its own account.
fn times_used(plane: &ControlPlane, server: usize) -> usize {
    let log = std::fs::read_to_string(&plane.servers[server].audit_log).unwrap_or_default();
    log.matches(VersionSpecificApi::POLICIES.path).count()
}

/// What the clients share.
#[derive(Default)]
struct Load {
    stop: watch::Sender<bool>,
    members: Mutex<Vec<Arc<AtomicUsize>>>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// What should not have happened.
    failures: Mutex<Vec<String>>,
    /// The names of created objects by their label.
    written: Mutex<HashMap<String, String>>,
    /// What each watch has seen: how often which object was added.
    seen: Mutex<Vec<HashMap<String, usize>>>,
    /// How often watches were resumed.
    resumed: AtomicUsize,
}

/// A client's view of the load.
struct Member {
    stop: watch::Receiver<bool>,
    succeeded: Arc<AtomicUsize>,
    shared: Arc<Shared>,
    number: usize,
}

impl Load {
    fn member(&self) -> Member {
        let mut members = self.members.lock().unwrap();
        let succeeded = Arc::<AtomicUsize>::default();
        members.push(succeeded.clone());
        Member {
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

    async fn everybody_succeeds(&self, when: &str) {
        let before = self.counts();
        eventually(when, COMMAND_TIMEOUT, async || {
            let now = self.counts();
            now.iter()
                .zip(&before)
                .all(|(now, then)| *now >= then + ENOUGH)
        })
        .await;
        self.nothing_failed();
    }

    /// Watches its clients for a while.
    async fn goes_on_for(&self, time: Duration) {
        sleep(time).await;
        self.everybody_succeeds("goes on").await;
    }

    fn nothing_failed(&self) {
        let failures = self.shared.failures.lock().unwrap();
        assert!(failures.is_empty(), "of {:?}: {failures:#?}", self.counts());
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

    fn failed(&self, what: String) {
        self.shared.failures.lock().unwrap().push(what);
    }

    fn succeeded(&self) {
        self.succeeded.fetch_add(1, Ordering::Relaxed);
    }
}

async fn read(mut client: HttpClient, member: Member) {
    while member.goes_on() {
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
        sleep(PAUSE).await;
    }
}

/// Objects named by the server: one that is made twice would be there twice.
async fn write(mut client: HttpClient, member: Member) {
    let special = VersionSpecificApi::TAINT_RULES;
    for attempt in 0.. {
        if !member.goes_on() {
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
        sleep(PAUSE * 2).await;
    }
}

fn name_of(object: &Value) -> String {
    object["metadata"]["name"].as_str().unwrap().to_owned()
}

/// A client that watches, and resumes its watch where it ended.
struct Follower {
    client: HttpClient,
    version: String,
    seen: HashMap<String, usize>,
}

impl Follower {
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

    async fn follow(mut self, member: Member) {
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
            if !member.goes_on() {
                member.shared.seen.lock().unwrap().push(self.seen);
                return;
            }
            member.shared.resumed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Until it ends, or all that was written has been seen and there is no
    /// more to come.
    async fn events(&mut self, mut stream: ResponseStream, member: &Member) -> Result<(), String> {
        let mut text = Vec::new();
        loop {
            let next = tokio::select! {
                next = stream.next() => next,
                () = member.stopped() => {
                    // The others have stopped writing when nothing comes.
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
                    return Err(format!("an event that nobody caused: {event}"));
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

async fn every_write_was_done_once(plane: &ControlPlane, load: &Load) {
    let mut client = plane.http_client(OLD, Via::Bridge, Protocol::H2);
    let list = client
        .send(&Request::get(VersionSpecificApi::TAINT_RULES.path))
        .await;
    let list: Value = serde_json::from_slice(&list.unwrap().body).unwrap();
    let written = load.shared.written.lock().unwrap();
    let mut there = HashMap::<_, Vec<_>>::new();
    for object in list["items"].as_array().unwrap() {
        let label = object["metadata"]["labels"]["attempt"].as_str().unwrap();
        there.entry(label).or_default().push(name_of(object));
    }
    for (label, name) in &*written {
        assert_eq!(
            there.get(label.as_str()),
            Some(&vec![name.clone()]),
            "{label}"
        );
    }
    assert_eq!(there.len(), written.len(), "what nobody was told of");

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
