//! What this bridge is doing: requests by server and reason, long-running requests that are
//! open, and the last rerouted and refused requests. Counted for the status page.
//!
//! Every request adds to a few atomics. Everything else has a bound.

pub(crate) mod observers;
pub(crate) mod open_requests;
pub(crate) mod rates;
pub(crate) mod tap;
pub(crate) mod traffic;

use std::collections::BTreeMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use skewbridge_peer_directory::Identity;

use self::observers::Observers;
use self::open_requests::OpenRequests;
use self::tap::Tap;
use self::traffic::{CountersSnapshot, RequestCounters, RouteReason, ServerTraffic};

/// Servers whose traffic is counted apart; that of further ones is counted together. A cluster has
/// three to seven, and a server that is replaced gets a new identity at most once for each upgrade.
const MAX_SERVERS: usize = 64;

/// The name of the servers that do not fit.
const OTHER_SERVERS: &str = "(others)";

/// What this bridge is doing.
#[derive(Debug, Default)]
pub(crate) struct Activity {
    servers: ArcSwap<BTreeMap<Arc<str>, Arc<ServerTraffic>>>,
    /// Requests that the bridge refused, or that no server answered.
    refused: RequestCounters,
    pub(crate) open: OpenRequests,
    pub(crate) tap: Tap,
    pub(crate) observers: Observers,
}

/// The counters of one server for one reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TrafficRow {
    /// The identity of the server; `None` for requests that no server answered.
    pub(crate) server: Option<Arc<str>>,
    pub(crate) reason: RouteReason,
    pub(crate) counters: CountersSnapshot,
}

impl Activity {
    /// The traffic of a server.
    pub(crate) fn server(&self, identity: &Identity) -> Arc<ServerTraffic> {
        self.server_named(identity.as_str())
    }

    fn server_named(&self, name: &str) -> Arc<ServerTraffic> {
        if let Some(known) = self.servers.load().get(name) {
            return known.clone();
        }
        let mut found = None;
        self.servers.rcu(|servers| {
            let name = if servers.len() < MAX_SERVERS || servers.contains_key(name) {
                name
            } else {
                OTHER_SERVERS
            };
            let mut servers = BTreeMap::clone(servers);
            let name: Arc<str> = name.into();
            let server = servers
                .entry(name.clone())
                .or_insert_with(|| Arc::new(ServerTraffic::new(name)));
            found = Some(server.clone());
            servers
        });
        found.unwrap_or_else(|| Arc::new(ServerTraffic::new(OTHER_SERVERS.into())))
    }

    /// Requests that the bridge refused, or that no server answered.
    pub(crate) fn refused(&self) -> &RequestCounters {
        &self.refused
    }

    /// All counters that are not zero.
    pub(crate) fn traffic(&self) -> Vec<TrafficRow> {
        let servers = self.servers.load();
        let of_servers = servers.values().flat_map(|server| {
            RouteReason::ALL.into_iter().map(|reason| TrafficRow {
                server: Some(server.name().clone()),
                reason,
                counters: server.counters(reason).snapshot(),
            })
        });
        let refused = TrafficRow {
            server: None,
            reason: RouteReason::Refused,
            counters: self.refused.snapshot(),
        };
        let all = of_servers.chain([refused]);
        all.filter(|row| row.counters.requests > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn servers_are_counted_apart_up_to_a_bound() {
        let activity = Activity::default();
        let count = |name: &str| {
            let identity = Identity::named(name).unwrap();
            let server = activity.server(&identity);
            let latency = Some(Duration::from_millis(1));
            server.counters(RouteReason::Local).add(200, latency);
        };
        for number in 0..MAX_SERVERS + 10 {
            count(&format!("apiserver-{number:03}"));
        }
        count("apiserver-000");
        let rows = activity.traffic();
        assert_eq!(rows.len(), MAX_SERVERS + 1);
        let of = |name: &str| {
            let row = rows.iter().find(|row| row.server.as_deref() == Some(name));
            row.map(|row| row.counters.requests)
        };
        assert_eq!(of("apiserver-000"), Some(2));
        assert_eq!(of(OTHER_SERVERS), Some(10));
        assert_eq!(of("apiserver-070"), None);
    }
}
