//! A watch through the load balancer, which goes on where it was when its server ends it.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde_json::Value;

use crate::kubeadm_cluster::client::{Client, Request};

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// Before a watch is opened again.
const PAUSE: Duration = Duration::from_secs(1);

/// A watch of the `ConfigMap`s of the namespace `default`.
pub(crate) struct Watch {
    state: Arc<State>,
    thread: JoinHandle<()>,
}

#[derive(Default)]
struct State {
    stop: AtomicBool,
    curl: Mutex<Option<Child>>,
    seen: Mutex<Seen>,
}

/// What a watch has delivered.
#[derive(Debug, Default, Clone)]
pub(crate) struct Seen {
    /// The names of objects that were added.
    pub(crate) added: BTreeSet<String>,
    /// How often it was opened.
    pub(crate) opened: usize,
    /// Errors that make a client list again.
    pub(crate) failed: Vec<String>,
}

impl Watch {
    pub(crate) fn start(client: Client) -> Self {
        let list = client.send_and_repeat(&Request::get(CONFIG_MAPS), &mut 0);
        let list: Value = serde_json::from_str(&list.expect("a list")).expect("JSON");
        let mut version = resource_version(&list).expect("a resource version");
        let state = Arc::new(State::default());
        let shared = state.clone();
        let thread = thread::spawn(move || {
            while !shared.stop.load(Ordering::Relaxed) {
                shared.follow(&client, &mut version);
                thread::sleep(PAUSE);
            }
        });
        Self { state, thread }
    }

    pub(crate) fn seen(&self) -> Seen {
        self.state.seen.lock().unwrap().clone()
    }

    pub(crate) fn finish(self) -> Seen {
        self.state.stop.store(true, Ordering::Relaxed);
        if let Some(curl) = &mut *self.state.curl.lock().unwrap() {
            let _ = curl.kill();
        }
        self.thread.join().expect("the watch");
        self.state.seen.lock().unwrap().clone()
    }
}

impl State {
    /// Until the stream ends.
    fn follow(&self, client: &Client, version: &mut String) {
        let path =
            format!("{CONFIG_MAPS}?watch=true&allowWatchBookmarks=true&resourceVersion={version}");
        let mut curl = client.curl(&path);
        // Without the name of curl, for which Kubernetes formats a Status over several lines.
        let curl = curl.args(["-N", "-A", "watch"]);
        let curl = curl.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut curl = curl.spawn().expect("curl");
        let events = BufReader::new(curl.stdout.take().expect("a pipe"));
        *self.curl.lock().unwrap() = Some(curl);
        self.seen.lock().unwrap().opened += 1;
        let mut incomplete = None::<String>;
        for line in events.lines().map_while(Result::ok) {
            // Only the last line may be incomplete.
            if let Some(line) = incomplete.take() {
                self.seen.lock().unwrap().failed.push(line);
            }
            match serde_json::from_str::<Value>(&line) {
                Ok(event) => self.record(&event, version),
                Err(_) => incomplete = Some(line),
            }
        }
        if let Some(mut curl) = self.curl.lock().unwrap().take() {
            let _ = curl.kill();
            let _ = curl.wait();
        }
    }

    fn record(&self, event: &Value, version: &mut String) {
        let mut seen = self.seen.lock().unwrap();
        let object = &event["object"];
        match event["type"].as_str() {
            Some("ERROR") => seen.failed.push(event.to_string()),
            Some(kind) => {
                if kind == "ADDED" {
                    let name = object["metadata"]["name"].as_str().unwrap_or_default();
                    seen.added.insert(name.to_owned());
                }
                if let Some(newer) = resource_version(object) {
                    *version = newer;
                }
            }
            // A Status: one with 503 or 429 is sent again, anything else is wrong.
            None if event["code"] == 503 || event["code"] == 429 => {}
            None => seen.failed.push(event.to_string()),
        }
    }
}

fn resource_version(object: &Value) -> Option<String> {
    Some(object["metadata"]["resourceVersion"].as_str()?.to_owned())
}
