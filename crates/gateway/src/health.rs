//! Health checks of the bridge, in the format of kube-apiserver.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use arc_swap::{ArcSwap, ArcSwapOption};
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, DATE};
use http::{HeaderName, HeaderValue, Response, StatusCode};
use skewbridge_http_engine::drain::Drain;
use skewbridge_peer_directory::registry::RegistryStatus;
use skewbridge_peer_directory::{Peers, reachability};

use crate::cluster_state::ClusterHandle;
use crate::live_config::LiveConfig;
use crate::local_health::LocalHealth;
use crate::peer_config::PeeringDisabled;
use crate::self_test::SelfTest;
use crate::server_report::ServerReport;

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
    /// The health of each server behind the bridge; at least one.
    pub backends: Arc<ArcSwap<Vec<BackendHealth>>>,
    /// Requests are spread over several servers.
    pub is_balanced: bool,
    /// Certificates and CAs in use.
    pub live: Arc<LiveConfig>,
}

/// The health of one kube-apiserver behind the bridge, and the state of the bridge with it as the
/// local server.
#[derive(Debug, Clone)]
pub struct BackendHealth {
    /// Host and port.
    pub name: String,
    /// The result of the last probe of upstream.
    pub upstream: Arc<ArcSwap<UpstreamHealth>>,
    /// What it reported of itself in the last probe.
    pub(crate) report: Arc<ArcSwapOption<ServerReport>>,
    /// Whether it gets no new requests because the `EndpointSlices` no longer list it.
    pub is_draining: Arc<AtomicBool>,
    /// The name of its check among those of several.
    pub check_name: String,
    /// Whether its APIs were read after its last outage.
    pub local_health: Arc<LocalHealth>,
    /// The cluster snapshot, or why peering is disabled.
    pub cluster_handle: Result<Arc<ClusterHandle>, PeeringDisabled>,
    /// Whether upstream accepts users that the bridge asserts.
    pub self_test: Arc<SelfTest>,
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
    name: Cow<'static, str>,
    problem: Option<String>,
    /// A note that does not make the check fail.
    note: Option<String>,
}

impl Check {
    fn new(name: impl Into<Cow<'static, str>>, problem: Option<String>) -> Self {
        Self {
            name: name.into(),
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
        match self.backends.load().as_slice() {
            [sole] if !self.is_balanced => checks.extend(sole.checks()),
            many => checks.extend(checks_of_many(many)),
        }
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

    /// The checks of an endpoint that fail, each with its cause.
    pub(crate) fn problems(&self, endpoint: HealthEndpoint) -> Vec<String> {
        let checks = self.checks(endpoint).into_iter();
        let failing = checks.filter_map(|it| Some(format!("{}: {}", it.name, it.problem?)));
        failing.collect()
    }

    /// Whether all checks of `/readyz` pass.
    pub fn is_ready(&self) -> bool {
        self.checks(HealthEndpoint::Readyz)
            .iter()
            .all(|check| check.problem.is_none())
    }
}

impl BackendHealth {
    fn checks(&self) -> Vec<Check> {
        let upstream = match &**self.upstream.load() {
            UpstreamHealth::Ready => None,
            UpstreamHealth::Unknown => Some("no answer yet".to_owned()),
            UpstreamHealth::NotReady(cause) => Some(cause.clone()),
        };
        let mut checks = vec![
            Check::new("upstream", upstream),
            Check {
                note: self.self_test.note(),
                ..Check::new("self-test", self.self_test.problem())
            },
        ];
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
                for kind in &cluster.policies.kinds {
                    // Writing to a String does not fail.
                    let _ = match kind.objects {
                        Some(objects) => write!(
                            note,
                            "; {objects} {} that not all servers enforce",
                            kind.resource
                        ),
                        None => write!(note, "; {} cannot be read", kind.resource),
                    };
                }
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
        checks
    }

    /// Whether other backends are preferred until its APIs have been read.
    fn is_awaited(&self) -> bool {
        self.cluster_handle.is_ok() && !self.local_health.is_confirmed_everywhere()
    }

    /// Why it is not ready: its failed checks.
    fn problem(&self) -> Option<String> {
        if self.is_draining.load(Ordering::Relaxed) {
            return Some("it is not listed in the EndpointSlices of default/kubernetes".to_owned());
        }
        let failed = self.checks().into_iter();
        let failed = failed.filter_map(|it| Some(format!("{}: {}", it.name, it.problem?)));
        let failed: Vec<_> = failed.collect();
        (!failed.is_empty()).then(|| failed.join("; ").replace(['\n', '\r'], " "))
    }
}

/// One check for each of several backends. They fail only together: one ready backend serves all
/// requests.
fn checks_of_many(backends: &[BackendHealth]) -> Vec<Check> {
    let problems: Vec<_> = backends.iter().map(BackendHealth::problem).collect();
    let is_any_ready = problems.contains(&None);
    let checks = backends.iter().zip(problems).map(|(backend, problem)| {
        let (problem, note) = match problem {
            Some(problem) if is_any_ready => (
                None,
                Some(format!("{} is not ready: {problem}", backend.name)),
            ),
            Some(problem) => (Some(format!("{}: {problem}", backend.name)), None),
            None if backend.is_awaited() => {
                let note = "its APIs have not been read since it has returned";
                (None, Some(format!("{} is not ready: {note}", backend.name)))
            }
            None => (None, Some(backend.name.clone())),
        };
        Check {
            note,
            ..Check::new(backend.check_name.clone(), problem)
        }
    });
    checks.collect()
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
            _ if excluded.contains(&&*check.name) => {
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

/// The same result, without names and causes: for clients that have proved no identity.
pub(crate) fn brief(response: &Response<Bytes>) -> Response<Bytes> {
    let body = if response.status() == StatusCode::OK {
        "ok"
    } else {
        "not ok"
    };
    text(response.status(), body.to_owned())
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
