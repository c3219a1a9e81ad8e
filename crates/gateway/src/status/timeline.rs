//! What has changed: the difference of two samples as events, and the events of the last hour.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use skewbridge_discovery::Index;
use skewbridge_peer_directory::MicroTime;

use super::{DepartedServer, Registry, Server};

/// How long events are kept.
const EVENT_RETENTION: Duration = Duration::from_hours(1);

/// The events that are kept.
const MAX_EVENTS: usize = 200;

/// The APIs that an event names.
const MAX_NAMED_APIS: usize = 5;

/// Something that has changed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Event {
    /// When the bridge noticed it, in RFC 3339 format.
    pub time: String,
    /// `good`, `bad` or `neutral`.
    pub tone: String,
    /// The host of the server, or its identity; absent for the bridge itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// What has changed.
    pub text: String,
}

/// What is compared.
#[derive(Debug, Clone, Default)]
pub(crate) struct StatusSample {
    pub(crate) servers: Vec<ServerSample>,
    pub(crate) is_ready: bool,
    pub(crate) problems: Vec<String>,
    pub(crate) is_draining: bool,
    pub(crate) registry: Option<Registry>,
    /// Flags of files with certificates, and the ends of their validity.
    pub(crate) certificates: Vec<(String, String)>,
}

/// A server, and what it serves.
#[derive(Debug, Clone, Default)]
pub(crate) struct ServerSample {
    pub(crate) server: Server,
    pub(crate) index: Option<Arc<Index>>,
}

#[derive(Debug, Clone, Copy)]
enum Tone {
    Good,
    Bad,
    Neutral,
}

impl Tone {
    fn of(is_good: bool) -> Self {
        if is_good { Self::Good } else { Self::Bad }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Bad => "bad",
            Self::Neutral => "neutral",
        }
    }
}

/// What has changed between two samples.
pub(crate) fn diff(before: &StatusSample, after: &StatusSample, at: SystemTime) -> Vec<Event> {
    let mut changes = Changes {
        time: MicroTime::from(at).to_string(),
        events: Vec::new(),
    };
    let find = |sample: &'_ StatusSample, identity: &str| {
        let mut servers = sample.servers.iter();
        let found = servers.find(|it| it.server.identity == identity);
        found.cloned()
    };
    for old in &before.servers {
        match find(after, &old.server.identity) {
            None => changes.add(
                Tone::Neutral,
                Some(&old.server),
                "left the control plane".to_owned(),
            ),
            Some(new) => changes.compare_server(old, &new),
        }
    }
    for new in &after.servers {
        if find(before, &new.server.identity).is_none() {
            let server = &new.server;
            let text = format!(
                "is known: {}, {}",
                server.version_text(),
                server.state.as_str()
            );
            changes.add(Tone::Neutral, Some(server), text);
        }
    }
    changes.compare_bridge(before, after);
    changes.events
}

struct Changes {
    time: String,
    events: Vec<Event>,
}

impl Changes {
    fn add(&mut self, tone: Tone, server: Option<&Server>, text: String) {
        self.events.push(Event {
            time: self.time.clone(),
            tone: tone.as_str().to_owned(),
            server: server.map(|it| it.name().to_owned()),
            text,
        });
    }

    fn compare_server(&mut self, before: &ServerSample, after: &ServerSample) {
        let (old, new) = (&before.server, &after.server);
        if old.state != new.state {
            let why = match &new.problem {
                Some(problem) if !new.state.is_good() => format!(": {problem}"),
                _ => String::new(),
            };
            let text = format!("is {}{why}", new.state.as_str());
            self.add(Tone::of(new.state.is_good()), Some(new), text);
        }
        if new.version.is_some() && old.version_text() != new.version_text() {
            let text = match &old.version {
                Some(_) => format!(
                    "runs {} (before: {})",
                    new.version_text(),
                    old.version_text()
                ),
                None => format!("runs {}", new.version_text()),
            };
            self.add(Tone::Neutral, Some(new), text);
        }
        if old.bridge_left != new.bridge_left {
            let text = if new.bridge_left {
                "its bridge has left"
            } else {
                "its bridge is back"
            };
            self.add(Tone::Neutral, Some(new), text.to_owned());
        }
        if let (Some(old), Some(index)) = (&before.index, &after.index)
            && !Arc::ptr_eq(old, index)
        {
            for (verb, apis) in [
                ("serves", index.difference(&[old])),
                ("no longer serves", old.difference(&[index])),
            ] {
                if !apis.is_empty() {
                    let text = format!("{verb} {}", summarized(&apis));
                    self.add(Tone::Neutral, Some(new), text);
                }
            }
        }
    }

    fn compare_bridge(&mut self, before: &StatusSample, after: &StatusSample) {
        if before.is_draining != after.is_draining {
            self.add(Tone::Bad, None, "the bridge is shutting down".to_owned());
        } else if before.is_ready != after.is_ready {
            let text = match after.problems.first() {
                Some(problem) if !after.is_ready => format!("the bridge is not ready: {problem}"),
                _ if !after.is_ready => "the bridge is not ready".to_owned(),
                _ => "the bridge is ready".to_owned(),
            };
            self.add(Tone::of(after.is_ready), None, text);
        }
        if let (Some(old), Some(new)) = (&before.registry, &after.registry)
            && old.up != new.up
        {
            let kind = &new.kind;
            let text = match &new.last_error {
                Some(error) if !new.up => format!("the registry {kind} fails: {error}"),
                _ if !new.up => format!("the registry {kind} fails"),
                _ => format!("the registry {kind} works again"),
            };
            self.add(Tone::of(new.up), None, text);
        }
        for (flag, expires) in &after.certificates {
            let old = before.certificates.iter().find(|(it, _)| it == flag);
            if old.is_some_and(|(_, old)| old != expires) {
                let day = expires.get(..10).unwrap_or(expires);
                let text = format!("a new file of {flag} is in use, which expires on {day}");
                self.add(Tone::Good, None, text);
            }
        }
    }
}

/// The number of these APIs and the first of them.
fn summarized(apis: &[String]) -> String {
    let first = apis.iter().take(MAX_NAMED_APIS).map(String::as_str);
    let first: Vec<_> = first.collect();
    let more = match apis.len().saturating_sub(MAX_NAMED_APIS) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let (number, noun) = (apis.len(), if apis.len() == 1 { "API" } else { "APIs" });
    format!("{number} {noun}: {}{more}", first.join(", "))
}

/// The events of the last hour.
#[derive(Debug, Default)]
pub(crate) struct Timeline {
    last: Option<StatusSample>,
    /// The newest first.
    events: VecDeque<(SystemTime, Event)>,
    departed: VecDeque<(SystemTime, String, DepartedServer)>,
}

impl Timeline {
    /// Compares a sample with the last one. Returns whether there are new events.
    pub(crate) fn record(&mut self, sample: StatusSample, at: SystemTime) -> bool {
        let is_old = |since: SystemTime| {
            at.duration_since(since)
                .is_ok_and(|it| it > EVENT_RETENTION)
        };
        while self.events.back().is_some_and(|(since, _)| is_old(*since)) {
            self.events.pop_back();
        }
        self.departed.retain(|(since, ..)| !is_old(*since));
        let Some(before) = self.last.replace(sample) else {
            return false;
        };
        let Some(after) = &self.last else {
            return false;
        };
        let events = diff(&before, after, at);
        let is_known = |identity: &str| {
            after
                .servers
                .iter()
                .any(|it| it.server.identity == identity)
        };
        self.departed.retain(|(_, identity, _)| !is_known(identity));
        for old in before.servers.iter().map(|it| &it.server) {
            if !is_known(&old.identity) {
                let departed = DepartedServer {
                    time: MicroTime::from(at).to_string(),
                    name: old.name().to_owned(),
                    version: old.version.clone(),
                };
                self.departed
                    .push_front((at, old.identity.clone(), departed));
                self.departed.truncate(MAX_EVENTS);
            }
        }
        let has_new_events = !events.is_empty();
        for event in events {
            self.events.push_front((at, event));
        }
        self.events.truncate(MAX_EVENTS);
        has_new_events
    }

    /// The newest first.
    pub(crate) fn events(&self) -> Vec<Event> {
        self.events.iter().map(|(_, event)| event.clone()).collect()
    }

    /// Servers that have left and not returned, the newest first.
    pub(crate) fn departed(&self) -> Vec<DepartedServer> {
        self.departed.iter().map(|(.., it)| it.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use skewbridge_discovery::Document;

    use super::*;
    use crate::status::ServerState;

    fn server(name: &str) -> ServerSample {
        ServerSample {
            server: Server {
                identity: format!("apiserver-{name}"),
                host: Some(name.to_owned()),
                state: ServerState::Reachable,
                version: Some("1.34.4".to_owned()),
                ..Server::default()
            },
            index: None,
        }
    }

    fn sample() -> StatusSample {
        StatusSample {
            servers: vec![server("cp-1"), server("cp-2")],
            is_ready: true,
            registry: Some(Registry {
                kind: "etcd".to_owned(),
                up: true,
                last_error: None,
            }),
            certificates: vec![(
                "--tls-cert-file".to_owned(),
                "2027-01-02T00:00:00Z".to_owned(),
            )],
            ..StatusSample::default()
        }
    }

    fn index(resources: &[&str]) -> Arc<Index> {
        let resources: Vec<_> = (resources.iter())
            .map(|name| serde_json::json!({"resource": name, "verbs": ["get"], "scope": "Cluster"}))
            .collect();
        let text = serde_json::json!({"kind": "APIGroupDiscoveryList",
            "apiVersion": "apidiscovery.k8s.io/v2", "items": [{"metadata": {"name": "apps"},
            "versions": [{"version": "v1", "resources": resources}]}]});
        let document = Document::parse(text.to_string().as_bytes()).unwrap();
        Arc::new(Index::new(&[&document]))
    }

    #[test]
    fn each_change_is_one_event() {
        type Change = fn(&mut StatusSample);
        type Expected = &'static [(&'static str, &'static str, &'static str)];
        let table: [(Change, Expected); 12] = [
            (|_| {}, &[]),
            (
                |it| {
                    it.servers[1].server.state = ServerState::Unreachable;
                    it.servers[1].server.problem = Some("refused".to_owned());
                },
                &[("bad", "cp-2", "is unreachable: refused")],
            ),
            (
                |it| it.servers[1].server.state = ServerState::Ready,
                &[("good", "cp-2", "is ready")],
            ),
            (
                |it| it.servers[0].server.version = Some("1.36.4".to_owned()),
                &[("neutral", "cp-1", "runs 1.36.4 (before: 1.34.4)")],
            ),
            (
                |it| it.servers[0].server.emulated_version = Some("1.33".to_owned()),
                &[(
                    "neutral",
                    "cp-1",
                    "runs 1.34.4 emulates 1.33 (before: 1.34.4)",
                )],
            ),
            (
                |it| it.servers[0].server.bridge_left = true,
                &[("neutral", "cp-1", "its bridge has left")],
            ),
            (
                |it| {
                    it.servers.remove(0);
                },
                &[("neutral", "cp-1", "left the control plane")],
            ),
            (
                |it| it.servers.push(server("cp-3")),
                &[("neutral", "cp-3", "is known: 1.34.4, reachable")],
            ),
            (
                |it| it.servers[0].index = Some(index(&["deployments", "daemonsets"])),
                &[
                    ("neutral", "cp-1", "serves 1 API: apps/v1 deployments"),
                    (
                        "neutral",
                        "cp-1",
                        "no longer serves 1 API: apps/v1 replicasets",
                    ),
                ],
            ),
            (
                |it| {
                    it.is_ready = false;
                    it.problems = vec!["upstream: refused".to_owned()];
                },
                &[("bad", "", "the bridge is not ready: upstream: refused")],
            ),
            (
                |it| it.registry.as_mut().unwrap().up = false,
                &[("bad", "", "the registry etcd fails")],
            ),
            (
                |it| it.certificates[0].1 = "2028-01-02T00:00:00Z".to_owned(),
                &[(
                    "good",
                    "",
                    "a new file of --tls-cert-file is in use, which expires on 2028-01-02",
                )],
            ),
        ];
        for (change, expected) in table {
            let mut before = sample();
            before.servers[0].index = Some(index(&["daemonsets", "replicasets"]));
            let mut after = before.clone();
            change(&mut after);
            let events = diff(&before, &after, SystemTime::UNIX_EPOCH);
            let found: Vec<_> = (events.iter())
                .map(|it| {
                    (
                        &*it.tone,
                        it.server.as_deref().unwrap_or_default(),
                        &*it.text,
                    )
                })
                .collect();
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn events_are_kept_for_an_hour_and_up_to_a_bound() {
        let mut timeline = Timeline::default();
        let start = SystemTime::UNIX_EPOCH;
        let mut next = sample();
        assert!(!timeline.record(next.clone(), start));
        for minute in 1..=90 {
            next.is_ready = !next.is_ready;
            let at = start + Duration::from_mins(minute);
            assert!(timeline.record(next.clone(), at));
        }
        assert_eq!(timeline.events().len(), 61);
        assert_eq!(timeline.events()[0].time, "1970-01-01T01:30:00.000000Z");
        for _ in 0..2 * MAX_EVENTS {
            next.is_ready = !next.is_ready;
            timeline.record(next.clone(), start + Duration::from_mins(91));
        }
        assert_eq!(timeline.events().len(), MAX_EVENTS);
    }

    #[test]
    fn a_server_that_left_is_shown_until_it_returns() {
        let mut timeline = Timeline::default();
        let at = SystemTime::UNIX_EPOCH;
        timeline.record(sample(), at);
        let mut less = sample();
        less.servers.pop();
        timeline.record(less, at);
        let departed = timeline.departed();
        assert_eq!((departed.len(), &*departed[0].name), (1, "cp-2"));
        timeline.record(sample(), at);
        assert!(timeline.departed().is_empty());
    }
}
