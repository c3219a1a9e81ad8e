//! The status document, from what the bridge knows and has counted.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use super::matrix::ApiDifferences;
use super::servers::takes_requests;
use super::{time, timestamp};
use crate::activity::Activity;
use crate::activity::open_requests::OpenRequestKey;
use crate::activity::rates::{Rate, RateWindow};
use crate::activity::tap::{TapEntry, TapKind};
use crate::admin::now;
use crate::health::{Health, HealthEndpoint};
use crate::metrics::process;
use crate::status::timeline::{ServerSample, StatusSample, Timeline};
use crate::status::{
    API_VERSION, Bridge, Certificate, KIND, OpenRequests, Registry, Server, StatusDocument,
    StopImpact, Table, TappedRequest, TappedRequests, Traffic, TrafficRow,
};

/// The clients with open requests that are listed.
const MAX_OPEN_REQUEST_ROWS: usize = 100;

const SECONDS_PER_DAY: i64 = 24 * 60 * 60;

/// What the timeline compares.
pub(super) fn sample(health: &Health, servers: Vec<ServerSample>) -> StatusSample {
    let problems = health.problems(HealthEndpoint::Readyz);
    let expiries = health.live.expiries.load();
    let certificates =
        (expiries.iter()).map(|it| (it.flag.to_owned(), timestamp(signed(it.not_after))));
    StatusSample {
        servers,
        is_ready: problems.is_empty(),
        is_draining: health.drain.is_not_ready(),
        registry: registry(health),
        certificates: certificates.collect(),
        problems,
    }
}

fn registry(health: &Health) -> Option<Registry> {
    let backends = health.backends.load();
    let handle = backends
        .iter()
        .find_map(|it| it.cluster_handle.as_ref().ok())?;
    let status = handle.registry.borrow();
    Some(Registry {
        kind: status.kind.to_owned(),
        up: status.up,
        last_error: status.last_error.clone(),
    })
}

/// The inputs of a document besides the health of the bridge.
pub(super) struct DocumentInputs<'a> {
    pub(super) activity: &'a Activity,
    pub(super) rates: &'a RateWindow,
    pub(super) timeline: &'a Timeline,
    pub(super) differences: &'a ApiDifferences,
    pub(super) vanishing: &'a Table,
    pub(super) now: Instant,
}

pub(super) fn document(
    health: &Health,
    servers: &[ServerSample],
    inputs: &DocumentInputs<'_>,
) -> StatusDocument {
    let ApiDifferences {
        matrix,
        served_alone,
        lost_if_stopped,
    } = inputs.differences;
    let mut servers: Vec<Server> = servers.iter().map(|it| it.server.clone()).collect();
    for (server, served_alone) in servers.iter_mut().zip(served_alone) {
        server.serves_alone.clone_from(served_alone);
    }
    let names = ServerNames::of(&servers);
    let rates = inputs.rates.of(inputs.now, inputs.activity.traffic());
    let counts = inputs.activity.open.counts();
    let tapped = |kind| TappedRequests {
        requests: (inputs.activity.tap.entries(kind).into_iter())
            .map(|it| tapped_request(it, &names))
            .collect(),
        skipped: inputs.activity.tap.skipped(kind),
    };
    StatusDocument {
        kind: KIND.to_owned(),
        api_version: API_VERSION.to_owned(),
        time: time(SystemTime::now()),
        bridge: bridge(health, inputs.activity),
        if_stopped: if_stopped(&servers, lost_if_stopped, &counts, &rates),
        departed: inputs.timeline.departed(),
        matrix: matrix.clone(),
        traffic: traffic(&rates, inputs.rates.history(), &names),
        open: open_requests(counts, &names),
        rerouted: tapped(TapKind::Rerouted),
        refused: tapped(TapKind::Refused),
        certificates: certificates(health),
        timeline: inputs.timeline.events(),
        tables: vec![inputs.vanishing.clone()],
        servers,
    }
}

/// The names of servers by identity.
struct ServerNames(BTreeMap<String, String>);

impl ServerNames {
    fn of(servers: &[Server]) -> Self {
        let names = servers
            .iter()
            .map(|it| (it.identity.clone(), it.name().to_owned()));
        Self(names.collect())
    }

    fn get(&self, identity: &str) -> String {
        self.0
            .get(identity)
            .map_or(identity, String::as_str)
            .to_owned()
    }
}

fn bridge(health: &Health, activity: &Activity) -> Bridge {
    let problems = health.problems(HealthEndpoint::Readyz);
    let backends = health.backends.load();
    let first = backends.first();
    let clusters: Vec<_> = (backends.iter())
        .filter_map(|it| Some(it.cluster_handle.as_ref().ok()?.cluster.load_full()))
        .collect();
    let missing = clusters.iter().find_map(|it| it.missing());
    Bridge {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        uptime_seconds: now().saturating_sub(process::started()),
        ready: problems.is_empty(),
        problems,
        draining: health.drain.is_not_ready(),
        local_only: first
            .and_then(|it| it.cluster_handle.as_ref().err())
            .map(ToString::to_string),
        waiting_for: missing.map(|it| it.as_str().to_owned()),
        registry: registry(health),
        differing_kinds: clusters.iter().map(|it| it.fields.len()).max().unwrap_or(0),
        viewers: activity.observers.viewers(),
    }
}

fn if_stopped(
    servers: &[Server],
    lost_if_stopped: &[Vec<String>],
    counts: &[(OpenRequestKey, usize)],
    rates: &[Rate],
) -> Vec<StopImpact> {
    let all = servers.iter().zip(lost_if_stopped);
    let running = all.filter(|(it, _)| it.state.is_good());
    let answers = running.map(|(server, apis)| {
        let others = servers.iter().filter(|it| it.identity != server.identity);
        let remaining: Vec<_> = (others.filter(|it| takes_requests(it)))
            .map(|it| it.name().to_owned())
            .collect();
        let at_server = || {
            counts
                .iter()
                .filter(|(key, _)| *key.server == server.identity)
        };
        let number = |of: fn(&OpenRequestKey) -> bool| {
            at_server()
                .filter(|(key, _)| of(key))
                .map(|(_, count)| count)
                .sum()
        };
        let clients: BTreeSet<_> = at_server()
            .map(|(key, _)| (&key.user, &key.program))
            .collect();
        let rates = rates
            .iter()
            .filter(|it| it.server.as_deref() == Some(&server.identity));
        StopImpact {
            server: server.name().to_owned(),
            apis: apis.clone(),
            is_last: remaining.is_empty(),
            watches: number(|key| key.kind == "watch"),
            streams: number(|key| key.kind != "watch"),
            clients: clients.len(),
            requests_per_second: rounded_to_tenth(rates.map(|it| it.per_second).sum()),
            remaining,
        }
    });
    answers.collect()
}

fn traffic(rates: &[Rate], history: Vec<u64>, names: &ServerNames) -> Traffic {
    let milliseconds = |rate: &Rate, share| {
        let quantile = rate.last_minute.quantile(share)?;
        Some(quantile.as_secs_f64() * 1e3)
    };
    let rows: Vec<_> = (rates.iter())
        .map(|rate| TrafficRow {
            server: rate.server.as_deref().map(|it| names.get(it)),
            rule: rate.reason.as_str().to_owned(),
            per_second: rate.per_second,
            total: rate.total.requests,
            errors: rate.total.errors,
            errors_in_minute: rate.last_minute.errors,
            p50_milliseconds: milliseconds(rate, 0.5),
            p99_milliseconds: milliseconds(rate, 0.99),
        })
        .collect();
    let per_second: f64 = rows.iter().map(|it| it.per_second).sum();
    Traffic {
        per_second: rounded_to_tenth(per_second),
        total: rows.iter().map(|it| it.total).sum(),
        history,
        rows,
    }
}

/// The clients with the most open requests first; streams before watches.
fn open_requests(counts: Vec<(OpenRequestKey, usize)>, names: &ServerNames) -> Vec<OpenRequests> {
    let rows = counts.into_iter().map(|(key, count)| OpenRequests {
        server: names.get(&key.server),
        kind: key.kind.to_owned(),
        user: key.user.into(),
        program: key.program.into(),
        count,
    });
    let mut rows: Vec<_> = rows.collect();
    rows.sort_by(|one, other| {
        let key = |it: &OpenRequests| (it.kind == "watch", std::cmp::Reverse(it.count));
        key(one)
            .cmp(&key(other))
            .then_with(|| one.user.cmp(&other.user))
    });
    rows.truncate(MAX_OPEN_REQUEST_ROWS);
    rows
}

fn tapped_request(entry: TapEntry, names: &ServerNames) -> TappedRequest {
    TappedRequest {
        time: time(entry.at),
        verb: entry.verb,
        path: entry.path,
        user: entry.user,
        user_agent: entry.user_agent,
        code: entry.code,
        milliseconds: u64::try_from(entry.duration.as_millis()).unwrap_or(u64::MAX),
        server: entry.server.map(|it| names.get(&it)),
        rule: entry.rule.map(str::to_owned),
    }
}

fn certificates(health: &Health) -> Vec<Certificate> {
    let today = SystemTime::now().duration_since(UNIX_EPOCH);
    let today = signed(today.unwrap_or_default().as_secs());
    let files = health.live.expiries.load();
    let certificates = files.iter().map(|file| Certificate {
        flag: file.flag.to_owned(),
        expires: timestamp(signed(file.not_after)),
        days_left: (signed(file.not_after) - today).div_euclid(SECONDS_PER_DAY),
    });
    let mut certificates: Vec<_> = certificates.collect();
    certificates.sort_by_key(|it| it.days_left);
    certificates
}

/// Rounded to a tenth; the sum of no values is a negative zero.
fn rounded_to_tenth(value: f64) -> f64 {
    (value * 10.0).round() / 10.0 + 0.0
}

fn signed(seconds: u64) -> i64 {
    i64::try_from(seconds).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::matrix::DifferencesCache;
    use super::super::servers::columns;
    use super::*;
    use crate::activity::traffic::{CountersSnapshot, RouteReason};
    use crate::status::ServerState;

    fn server(name: &str, state: ServerState) -> Server {
        Server {
            identity: format!("apiserver-{name}"),
            host: Some(name.to_owned()),
            state,
            local: state == ServerState::Ready,
            healthy: state.is_good(),
            ..Server::default()
        }
    }

    fn open_at(
        server: &str,
        kind: &'static str,
        user: &str,
        count: usize,
    ) -> (OpenRequestKey, usize) {
        let key = OpenRequestKey {
            server: format!("apiserver-{server}").into(),
            kind,
            user: user.into(),
            program: "kubelet".into(),
        };
        (key, count)
    }

    #[test]
    fn the_impact_of_a_stop_counts_what_only_that_server_has() {
        let counts = [
            open_at("a", "watch", "x", 3),
            open_at("a", "exec", "x", 1),
            open_at("a", "watch", "y", 4),
            open_at("b", "watch", "z", 2),
        ];
        let rate = |server: &str, reason| Rate {
            server: Some(format!("apiserver-{server}").into()),
            reason,
            total: CountersSnapshot::default(),
            per_second: 1.5,
            last_minute: CountersSnapshot::default(),
        };
        let rates = [
            rate("a", RouteReason::Local),
            rate("a", RouteReason::Discovery),
            rate("b", RouteReason::Local),
        ];
        let servers = [
            server("a", ServerState::Ready),
            server("b", ServerState::Reachable),
            server("c", ServerState::Unreachable),
        ];
        let lost_if_stopped = [vec!["v1 x".to_owned()], vec![], vec!["v1 y".to_owned()]];
        let found = if_stopped(&servers, &lost_if_stopped, &counts, &rates);
        assert_eq!(found.len(), 2, "the third one is stopped already");
        let a = &found[0];
        assert_eq!(
            (&*a.server, &a.apis, a.is_last),
            ("a", &vec!["v1 x".to_owned()], false)
        );
        assert_eq!((a.watches, a.streams, a.clients), (7, 1, 2));
        assert!((a.requests_per_second - 3.0).abs() < f64::EPSILON);
        assert_eq!(a.remaining, ["b"]);
        let sole = if_stopped(&servers[..1], &lost_if_stopped, &counts, &rates);
        assert!(sole[0].is_last && sole[0].remaining.is_empty());
    }

    /// A and B serve X, and B restarts for its upgrade.
    #[test]
    fn a_stop_loses_an_api_that_only_an_unreachable_server_serves_too() {
        let sample = |server: Server, resource: &str| {
            let text = serde_json::json!({"kind": "APIGroupDiscoveryList",
                "apiVersion": "apidiscovery.k8s.io/v2", "items": [{"metadata": {"name": "apps"},
                "versions": [{"version": "v1", "resources": [
                    {"resource": resource, "verbs": ["get"], "scope": "Cluster"}]}]}]});
            let document = skewbridge_discovery::Document::parse(text.to_string().as_bytes());
            let index = skewbridge_discovery::Index::new(&[&document.unwrap()]);
            ServerSample {
                server,
                index: Some(index.into()),
            }
        };
        let apis = |state: ServerState, is_listed: bool| {
            let mut samples = [
                sample(server("a", ServerState::Ready), "x"),
                sample(server("b", state), "x"),
                sample(server("c", ServerState::Reachable), "y"),
            ];
            samples[1].server.healthy = is_listed;
            let columns = columns(&samples);
            let now = Instant::now();
            let differences = DifferencesCache::default().of(columns, now, |_, _| false);
            let servers: Vec<_> = samples.iter().map(|it| it.server.clone()).collect();
            let mut found = if_stopped(&servers, &differences.lost_if_stopped, &[], &[]);
            let a = found.swap_remove(0);
            assert!(a.remaining.contains(&"c".to_owned()) && !a.is_last);
            (a.apis, a.remaining.len())
        };
        let x = || vec!["apps/v1 x".to_owned()];
        for (state, is_listed, expected) in [
            (ServerState::Reachable, true, (vec![], 2)),
            // It has failed recently, and no other server serves the API.
            (ServerState::Reachable, false, (vec![], 2)),
            (ServerState::Unreachable, false, (x(), 1)),
            (ServerState::Unknown, false, (x(), 1)),
            (ServerState::NotReady, false, (x(), 1)),
            // Behind a balancer, and no longer listed.
            (ServerState::Ready, false, (x(), 1)),
            (ServerState::Ready, true, (vec![], 2)),
        ] {
            assert_eq!(apis(state, is_listed), expected, "{state:?} {is_listed}");
        }
    }

    #[test]
    fn streams_come_before_watches_and_the_list_has_a_bound() {
        let names = ServerNames::of(&[server("a", ServerState::Ready)]);
        let counts = vec![
            open_at("a", "watch", "x", 9),
            open_at("a", "exec", "x", 1),
            open_at("b", "portforward", "y", 2),
        ];
        let found = open_requests(counts, &names);
        let rows: Vec<_> = found
            .iter()
            .map(|it| (&*it.server, &*it.kind, it.count))
            .collect();
        let expected = [
            ("apiserver-b", "portforward", 2),
            ("a", "exec", 1),
            ("a", "watch", 9),
        ];
        assert_eq!(rows, expected);
        let many = (0..=MAX_OPEN_REQUEST_ROWS).map(|it| open_at("a", "watch", &it.to_string(), 1));
        assert_eq!(
            open_requests(many.collect(), &names).len(),
            MAX_OPEN_REQUEST_ROWS
        );
    }
}
