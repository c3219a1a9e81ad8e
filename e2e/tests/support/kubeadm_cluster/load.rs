//! Clients of the load balancer that send requests all the time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::kubeadm_cluster::client::{Client, Request};

/// The pause between two requests of a client.
const PAUSE: Duration = Duration::from_millis(200);

/// What a client sends, request by request.
pub(crate) trait Traffic: Send + 'static {
    fn request(&mut self, number: usize) -> Request;

    /// What is wrong with the body of a response that has succeeded.
    fn problem(&mut self, _body: &str) -> Option<String> {
        None
    }
}

/// Clients, until they are told to end.
pub(crate) struct Load {
    client: Client,
    running: Vec<Running>,
}

struct Running {
    name: &'static str,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Outcome>,
}

/// What the requests of a client have come to.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) succeeded: usize,
    pub(crate) repeated: usize,
    pub(crate) failed: Vec<String>,
}

impl Load {
    pub(crate) fn new(client: Client) -> Self {
        Self {
            client,
            running: Vec::new(),
        }
    }

    /// Starts a client.
    pub(crate) fn add(&mut self, name: &'static str, mut traffic: impl Traffic) {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let client = self.client.clone();
        let thread = thread::spawn(move || {
            let mut outcome = Outcome::default();
            for number in 0.. {
                if stopped.load(Ordering::Relaxed) {
                    break;
                }
                outcome.record(&client, &mut traffic, number);
                thread::sleep(PAUSE);
            }
            outcome
        });
        self.running.push(Running { name, stop, thread });
    }

    /// Ends a client, after its request in flight.
    pub(crate) fn end(&mut self, name: &str) -> Outcome {
        let position = self.running.iter().position(|it| it.name == name);
        let running = self.running.remove(position.expect("the name of a client"));
        running.stop.store(true, Ordering::Relaxed);
        let outcome = running.thread.join().expect("a client");
        println!(
            "{name}: {} requests succeeded, {} were repeated, {} failed",
            outcome.succeeded,
            outcome.repeated,
            outcome.failed.len()
        );
        outcome
    }
}

impl Outcome {
    fn record(&mut self, client: &Client, traffic: &mut impl Traffic, number: usize) {
        let request = traffic.request(number);
        let answered = client.send_and_repeat(&request, &mut self.repeated);
        let problem = match &answered {
            Ok(body) => traffic.problem(body),
            Err(error) => Some(error.clone()),
        };
        match problem {
            None => self.succeeded += 1,
            Some(problem) => {
                eprintln!("request {number}: {problem}");
                self.failed.push(format!("request {number}: {problem}"));
            }
        }
    }
}

/// Reads of a namespace, and a new `ConfigMap` with each third request.
pub(crate) struct ReadsAndWrites;

const NAMESPACE: &str = "/api/v1/namespaces/default";

impl ReadsAndWrites {
    /// The names of the objects that this many requests have created.
    pub(crate) fn objects(requests: usize) -> impl Iterator<Item = String> {
        (0..requests).step_by(3).map(Self::object)
    }

    fn object(number: usize) -> String {
        format!("load-{number}")
    }
}

impl Traffic for ReadsAndWrites {
    fn request(&mut self, number: usize) -> Request {
        if !number.is_multiple_of(3) {
            return Request::get(NAMESPACE);
        }
        let object = format!(
            r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"{}"}}}}"#,
            Self::object(number)
        );
        Request::post(format!("{NAMESPACE}/configmaps"), &object)
    }
}
