//! Health checks of the bridge, in the format of kube-apiserver.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Instant;

use arc_swap::ArcSwap;
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, DATE};
use http::{HeaderName, HeaderValue, Response, StatusCode};
use skewbridge_http_engine::drain::Drain;
use skewbridge_peer_directory::registry::RegistryStatus;
use skewbridge_peer_directory::{Peers, reachability};

use crate::cluster_state::ClusterHandle;
use crate::live_config::LiveConfig;
use crate::peer_config::PeeringDisabled;
use crate::self_test::SelfTest;

/// The health of upstream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UpstreamHealth {
    /// Not probed yet.
    Unknown,
    /// Upstream is ready.
    Ready,
    /// Upstream is not ready, or does not answer.
    NotReady(String),
}

/// The inputs of the checks.
#[derive(Debug, Clone)]
pub struct Health {
    /// Whether the bridge is shutting down.
    pub drain: Drain,
    /// The result of the last probe of upstream.
    pub upstream: Arc<ArcSwap<UpstreamHealth>>,
    /// The cluster snapshot, or why peering is disabled.
    pub cluster_handle: Result<Arc<ClusterHandle>, PeeringDisabled>,
    /// Whether upstream accepts users that the bridge asserts.
    pub self_test: Arc<SelfTest>,
    /// Certificates and CAs in use.
    pub live: Arc<LiveConfig>,
}

/// A health endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HealthEndpoint {
    /// Fails if the process must be restarted.
    Livez,
    /// Fails if clients must not be sent here.
    Readyz,
    /// The older endpoint, with the checks of `Readyz`.
    Healthz,
}

impl HealthEndpoint {
    fn as_str(self) -> &'static str {
        match self {
            Self::Livez => "livez",
            Self::Readyz => "readyz",
            Self::Healthz => "healthz",
        }
    }
}

/// A check and its result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    name: &'static str,
    problem: Option<String>,
    /// A note that does not make the check fail.
    note: Option<String>,
}

impl Check {
    fn new(name: &'static str, problem: Option<String>) -> Self {
        Self {
            name,
            problem,
            note: None,
        }
    }
}

impl Health {
    /// The checks of an endpoint.
    pub fn checks(&self, endpoint: HealthEndpoint) -> Vec<Check> {
        let mut checks = vec![Check::new("ping", None)];
        if endpoint == HealthEndpoint::Livez {
            return checks;
        }
        let upstream = match &**self.upstream.load() {
            UpstreamHealth::Ready => None,
            UpstreamHealth::Unknown => Some("no answer yet".to_owned()),
            UpstreamHealth::NotReady(cause) => Some(cause.clone()),
        };
        checks.push(Check::new("upstream", upstream));
        checks.push(Check {
            note: self.self_test.note(),
            ..Check::new("self-test", self.self_test.problem())
        });
        if let Ok(cluster_handle) = &self.cluster_handle {
            checks.push(registry_check(cluster_handle));
        }
        checks.push(match &self.cluster_handle {
            Err(why) => Check {
                note: Some(format!("local only, since {why}")),
                ..Check::new("peers", None)
            },
            Ok(cluster_handle) => {
                let cluster = cluster_handle.cluster.load();
                let problem =
                    (cluster.missing()).map(|it| format!("not known yet: {}", it.as_str()));
                let mut note = peers_note(&cluster.peers, &cluster_handle.registry.borrow());
                if let Some(mismatch_reason) = cluster_handle.local.mismatch_reason() {
                    note.push_str("; but ");
                    note.push_str(&mismatch_reason);
                }
                Check {
                    note: Some(note),
                    ..Check::new("peers", problem)
                }
            }
        });
        // Not a failure: requests to the local server work, and all bridges of a cluster would
        // fail at the same time.
        let conflicts = &self.live.conflicts;
        let conflicts = [conflicts.of_peering(), conflicts.callers.load_full()];
        let conflicts: Vec<_> = conflicts
            .iter()
            .filter_map(|it| it.as_ref().map(ToString::to_string))
            .collect();
        if !conflicts.is_empty() {
            checks.push(Check {
                note: Some(format!("in conflict: {}", conflicts.join("; "))),
                ..Check::new("ca-files", None)
            });
        }
        let shutting_down =
            (self.drain.is_not_ready()).then(|| "the bridge is shutting down".to_owned());
        checks.push(Check::new("shutdown", shutting_down));
        checks
    }

    /// Whether all checks of `/readyz` pass.
    pub fn is_ready(&self) -> bool {
        self.checks(HealthEndpoint::Readyz)
            .iter()
            .all(|check| check.problem.is_none())
    }
}

/// The check of the peer registry: it fails until addresses have been read once. Later failures are
/// a note.
fn registry_check(cluster_handle: &ClusterHandle) -> Check {
    let problem = cluster_handle.registry_unread();
    let registry = cluster_handle.registry.borrow();
    let note = match registry.error() {
        Some(error) => format!(
            "{} fails, known addresses stay in use: {error}",
            registry.kind
        ),
        None => registry.kind.to_owned(),
    };
    Check {
        note: Some(note),
        ..Check::new("registry", problem)
    }
}

/// How many peers a line lists: more than a cluster has control-plane nodes.
const MAX_NAMED_PEERS: usize = 10;

/// How many of the known peers are reachable, and why the others are not. An unreachable peer does
/// not make the bridge unready, because all other requests are still served.
fn peers_note(peers: &Peers, registry: &RegistryStatus) -> String {
    let now = Instant::now();
    let unreachable: Vec<_> = (peers.peers.iter())
        .filter_map(|peer| {
            let reachability = reachability(peer, registry, now);
            Some(format!("{}: {}", peer.name(), reachability.problem()?))
        })
        .collect();
    let known = peers.peers.len();
    let mut note = format!("{} of {known} reachable", known - unreachable.len());
    if !unreachable.is_empty() {
        let named = &unreachable[..unreachable.len().min(MAX_NAMED_PEERS)];
        let _ = write!(note, "; unreachable: {}", named.join("; "));
    }
    if unreachable.len() > MAX_NAMED_PEERS {
        let _ = write!(note, "; and {} more", unreachable.len() - MAX_NAMED_PEERS);
    }
    // A check is one line, also if an error text has several.
    note.replace(['\n', '\r'], " ")
}

/// The response of a health endpoint, with kube-apiserver's `?verbose` and `?exclude=`.
pub fn response(
    endpoint: HealthEndpoint,
    checks: &[Check],
    query: Option<&str>,
) -> Response<Bytes> {
    let mut verbose = false;
    let mut excluded = Vec::new();
    for pair in query.unwrap_or_default().split('&') {
        match pair.split_once('=').unwrap_or((pair, "")) {
            ("verbose", _) => verbose = true,
            ("exclude", name) => excluded.push(name),
            _ => {}
        }
    }
    let mut lines = String::new();
    let mut failed = false;
    for check in checks {
        // Writing to a String does not fail.
        let _ = match &check.problem {
            _ if excluded.contains(&check.name) => {
                writeln!(lines, "[+]{} excluded: ok", check.name)
            }
            None => match &check.note {
                None => writeln!(lines, "[+]{} ok", check.name),
                Some(note) => writeln!(lines, "[+]{} ok: {note}", check.name),
            },
            Some(problem) => {
                failed = true;
                writeln!(lines, "[-]{} failed: {problem}", check.name)
            }
        };
    }
    excluded.retain(|name| !checks.iter().any(|check| check.name == *name));
    if !excluded.is_empty() {
        let names: Vec<_> = excluded.iter().map(|name| format!("{name:?}")).collect();
        let _ = writeln!(
            lines,
            "warn: some health checks cannot be excluded: no matches for {}",
            names.join(",")
        );
    }
    let endpoint = endpoint.as_str();
    if failed {
        let _ = writeln!(lines, "{endpoint} check failed");
        text(StatusCode::INTERNAL_SERVER_ERROR, lines)
    } else if verbose {
        let _ = writeln!(lines, "{endpoint} check passed");
        text(StatusCode::OK, lines)
    } else {
        text(StatusCode::OK, "ok".to_owned())
    }
}

/// The response for a single check, as in `/readyz/upstream`.
pub fn single_check(
    endpoint: HealthEndpoint,
    checks: &[Check],
    name: &str,
) -> Option<Response<Bytes>> {
    let check = checks.iter().find(|check| check.name == name)?;
    Some(response(endpoint, std::slice::from_ref(check), None))
}

/// The response of `/readyz` on the main port while the bridge itself is not ready.
pub(crate) fn not_ready(problem: &str) -> Response<Bytes> {
    let check = Check::new("skewbridge", Some(problem.to_owned()));
    response(HealthEndpoint::Readyz, &[check], None)
}

/// A plain-text response with the headers of kube-apiserver's health endpoints.
pub(crate) fn text(status: StatusCode, body: String) -> Response<Bytes> {
    let mut response = Response::new(Bytes::new());
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(
        CONTENT_TYPE,
        HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    headers.insert(CONTENT_LENGTH, body.len().into());
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    headers.insert(DATE, skewbridge_http_engine::http_date::now());
    headers.insert(
        HeaderName::from_static("x-content-type-options"),
        HeaderValue::from_static("nosniff"),
    );
    *response.body_mut() = body.into();
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &'static str, problem: Option<&str>) -> Check {
        Check::new(name, problem.map(str::to_owned))
    }

    fn get(checks: &[Check], query: &str) -> (u16, String) {
        let response = response(HealthEndpoint::Readyz, checks, Some(query));
        let body = String::from_utf8(response.body().to_vec()).unwrap();
        (response.status().as_u16(), body)
    }

    #[test]
    fn responses_have_the_format_of_kube_apiserver() {
        let good = [check("ping", None), check("upstream", None)];
        let bad = [check("ping", None), check("upstream", Some("refused"))];
        let rows = [
            (&good, "", 200, "ok"),
            (
                &good,
                "verbose",
                200,
                "[+]ping ok\n[+]upstream ok\nreadyz check passed\n",
            ),
            (
                &bad,
                "",
                500,
                "[+]ping ok\n[-]upstream failed: refused\nreadyz check failed\n",
            ),
            (&bad, "exclude=upstream", 200, "ok"),
            (
                &bad,
                "exclude=upstream&verbose=1",
                200,
                "[+]ping ok\n[+]upstream excluded: ok\nreadyz check passed\n",
            ),
            (
                &good,
                "exclude=etcd&verbose",
                200,
                "[+]ping ok\n[+]upstream ok\nwarn: some health checks cannot be excluded: no matches for \"etcd\"\nreadyz check passed\n",
            ),
        ];
        for (checks, query, code, body) in rows {
            assert_eq!(get(checks, query), (code, body.to_owned()), "{query}");
        }
    }
}
