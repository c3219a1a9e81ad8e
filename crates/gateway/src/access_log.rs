//! The access log: counts each request and its duration and, from `--v=2` on, writes a log line.
//! The entry is written when the response has ended in any way.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderValue, Method, StatusCode, Version};
use skewbridge_http_engine::server::ResponseRecord;
use skewbridge_peer_directory::{Identity, InFlightGuard, Peer};
use tokio::time::Instant;

use crate::activity::Activity;
use crate::activity::open_requests::{OpenRequestGuard, OpenRequestKey, program_name};
use crate::activity::tap::{TapEntry, TapKind, printable_prefix};
use crate::activity::traffic::{RouteReason, ServerTraffic};
use crate::backend_load::{BackendLoad, BackendRequest};
use crate::metrics::Metrics;
use crate::placement_rule::{Rule, RuleSet};

/// The status code of nginx for a request that ended without a response: the client disconnected,
/// or the bridge was stopped.
pub(crate) const STATUS_CLIENT_CLOSED_REQUEST: u16 = 499;

/// The id of a request in kube-apiserver's audit log.
const AUDIT_ID: &str = "audit-id";
const IMPERSONATE_USER: &str = "impersonate-user";

/// The maximum length of a text of a client in a log line. An Audit-ID is a UUID of 36 characters,
/// and a user name rarely has more than 100.
const MAX_LOGGED_CHARS: usize = 256;

/// The log entry of a request, written on drop.
#[derive(Debug)]
pub struct AccessLogEntry {
    metrics: Option<Metrics>,
    started: Instant,
    route: &'static str,
    verb: &'static str,
    code: u16,
    bytes: u64,
    complete: bool,
    line: Option<Box<Line>>,
    /// Counts the request as in flight at the peer that answers it.
    in_flight: Option<InFlightGuard>,
    /// Counts the request as in flight at its backend.
    backend: Option<BackendRequest>,
    /// The peer that answers it; `None` for the local server.
    answered_by: Option<Identity>,
    /// The placement rule by which a peer gets the request.
    placed: Option<Rule>,
    activity: Arc<Activity>,
    /// The local server.
    local_traffic: Option<Arc<ServerTraffic>>,
    user_agent: Option<HeaderValue>,
    long_running: Option<Box<LongRunning>>,
    tapped: Option<Box<(TapKind, TapEntry)>>,
}

/// A request that runs until its client or its server ends it.
#[derive(Debug)]
enum LongRunning {
    /// No server has accepted it yet.
    Requested { kind: &'static str, user: Box<str> },
    /// A server has accepted it.
    Open(#[expect(dead_code, reason = "counts until it is dropped")] OpenRequestGuard),
}

#[derive(Debug)]
struct Line {
    method: Method,
    path: String,
    version: Version,
    caller: String,
    peer: Option<Identity>,
    peer_host: Option<String>,
    unmet: RuleSet,
    client: SocketAddr,
    audit_id: Option<String>,
    impersonate_user: Option<String>,
}

impl AccessLogEntry {
    /// Begins the entry of a request that has just arrived.
    pub(crate) fn begin(metrics: &Metrics, activity: &Arc<Activity>) -> Self {
        Self {
            metrics: Some(metrics.clone()),
            started: Instant::now(),
            route: "unrouted",
            verb: "unknown",
            code: STATUS_CLIENT_CLOSED_REQUEST,
            bytes: 0,
            complete: false,
            line: None,
            in_flight: None,
            backend: None,
            answered_by: None,
            placed: None,
            activity: activity.clone(),
            local_traffic: None,
            user_agent: None,
            long_running: None,
            tapped: None,
        }
    }

    /// An entry that is not written.
    #[cfg(test)]
    pub(crate) fn none() -> Self {
        let mut record = Self::begin(&Metrics::new(), &Arc::default());
        record.metrics = None;
        record.code = 0;
        record
    }

    /// Adds a log line. The query and the part of the path after `/proxy/` are omitted, because
    /// both can contain secrets of the client and a workload.
    pub(crate) fn log(&mut self, head: &http::request::Parts, client: SocketAddr) {
        let path = logged_path(head.uri.path());
        self.line = Some(Box::new(Line {
            method: head.method.clone(),
            path,
            version: head.version,
            caller: String::new(),
            peer: None,
            peer_host: None,
            unmet: RuleSet::EMPTY,
            client,
            audit_id: logged(head.headers.get(AUDIT_ID)),
            impersonate_user: logged(head.headers.get(IMPERSONATE_USER)),
        }));
    }

    /// Takes the Audit-ID from a response: kube-apiserver generates one for each request without
    /// one.
    pub(crate) fn audit_id(&mut self, response: &HeaderMap) {
        if let Some(line) = &mut self.line
            && let Some(id) = logged(response.get(AUDIT_ID))
        {
            line.audit_id = Some(id);
        }
    }

    pub(crate) fn caller(&mut self, name: &str) {
        if let Some(line) = &mut self.line {
            name.clone_into(&mut line.caller);
        }
    }

    pub(crate) fn verb(&mut self, verb: &'static str) {
        self.verb = verb;
    }

    pub(crate) fn route(&mut self, route: &'static str) {
        self.route = route;
    }

    /// Sets the peer that answers the request.
    pub(crate) fn peer(&mut self, peer: &Peer, in_flight: InFlightGuard) {
        self.in_flight = Some(in_flight);
        self.answered_by = Some(peer.identity.clone());
        if let Some(line) = &mut self.line {
            line.peer = Some(peer.identity.clone());
            line.peer_host = peer.name().host().map(str::to_owned);
        }
    }

    /// The request is sent to the local server, maybe after a peer has not accepted it.
    pub(crate) fn local(&mut self) {
        self.in_flight = None;
        self.answered_by = None;
        if let Some(line) = &mut self.line {
            line.peer = None;
            line.peer_host = None;
        }
    }

    /// The peer that has answered the request; `None` for the local server.
    pub(crate) fn answered_by(&self) -> Option<&Identity> {
        self.answered_by.as_ref()
    }

    /// Sets the backend that has responded.
    pub(crate) fn answered_by_backend(&mut self, load: &Arc<BackendLoad>) {
        if let Some(request) = &mut self.backend {
            request.answered_by(load);
        }
    }

    /// Sets the backend that gets the request.
    pub(crate) fn backend(&mut self, request: BackendRequest) {
        self.backend = Some(request);
    }

    /// Sets the placement rule by which a peer gets the request.
    pub(crate) fn placed(&mut self, rule: Option<Rule>) {
        self.placed = rule;
    }

    /// Sets the server that gets the request unless a peer answers it.
    pub(crate) fn local_server(&mut self, traffic: &Arc<ServerTraffic>) {
        self.local_traffic = Some(traffic.clone());
    }

    pub(crate) fn user_agent(&mut self, user_agent: Option<HeaderValue>) {
        self.user_agent = user_agent;
    }

    /// The request is a watch, a log or a stream of this kind.
    pub(crate) fn long_running(&mut self, kind: &'static str, user: &str) {
        let user = printable_prefix(user).into();
        self.long_running = Some(Box::new(LongRunning::Requested { kind, user }));
    }

    /// A server has accepted the request: a long-running one counts as open from now on.
    pub(crate) fn accepted(&mut self) {
        // A header value keeps the whole head of its request in memory.
        let user_agent = self.user_agent.take();
        let Some(long_running) = &mut self.long_running else {
            return;
        };
        if let LongRunning::Requested { kind, user } = &mut **long_running
            && let Some(server) = (self.answered_by.as_ref())
                .map(|it| self.activity.server(it).name().clone())
                .or_else(|| self.local_traffic.as_ref().map(|it| it.name().clone()))
        {
            let key = OpenRequestKey {
                server,
                kind,
                user: std::mem::take(user),
                program: program_name(&text_of(user_agent.as_ref())),
            };
            **long_running = LongRunning::Open(self.activity.open.begin(key));
        }
    }

    /// The request is rerouted or refused: it is captured for the status page, if not too many others
    /// are. `verb` and `path` are without a query.
    pub(crate) fn tap(&mut self, kind: TapKind, verb: &str, path: &str, user: &str) {
        if let Some(tapped) = &mut self.tapped {
            tapped.0 = kind;
            return;
        }
        if !self.activity.tap.admits(kind, self.started.into_std()) {
            return;
        }
        let entry = TapEntry {
            at: SystemTime::now(),
            verb: printable_prefix(verb),
            path: printable_prefix(&logged_path(path)),
            user: printable_prefix(user),
            user_agent: printable_prefix(&text_of(self.user_agent.as_ref())),
            code: 0,
            duration: Duration::ZERO,
            server: None,
            rule: None,
        };
        self.tapped = Some(Box::new((kind, entry)));
    }

    /// Counts the request for the status page.
    fn count(&mut self, duration: Duration) {
        let is_refused = matches!(self.route, "rejected" | "unrouted");
        let latency = self.long_running.is_none().then_some(duration);
        let server = match (&self.answered_by, &self.local_traffic) {
            _ if is_refused => None,
            (Some(peer), _) => Some(self.activity.server(peer)),
            (None, _) if self.route == "peer" => None,
            (None, local) => local.clone(),
        };
        let reason = match (self.placed, self.route) {
            (Some(rule), _) if self.answered_by.is_some() => RouteReason::Placed(rule),
            (_, "discovery") => RouteReason::Discovery,
            (_, "stream") => RouteReason::Stream,
            _ => RouteReason::Local,
        };
        match &server {
            Some(server) => server.counters(reason).add(self.code, latency),
            None => self.activity.refused().add(self.code, latency),
        }
        if let Some(tapped) = self.tapped.take() {
            let (kind, entry) = *tapped;
            if kind == TapKind::Rerouted && self.answered_by.is_none() && self.route == "local" {
                return;
            }
            let entry = TapEntry {
                code: self.code,
                duration,
                server: self.answered_by.as_ref().map(ToString::to_string),
                rule: self.placed.map(Rule::as_str),
                ..entry
            };
            self.activity.tap.add(kind, entry);
        }
    }

    /// Sets the rules that the server of the request does not satisfy, and no better one accepted it.
    pub(crate) fn unmet(&mut self, unmet: RuleSet) {
        if let Some(line) = &mut self.line {
            line.unmet = unmet;
        }
    }

    pub(crate) fn status(&mut self, status: StatusCode) {
        self.code = status.as_u16();
    }

    /// The client left before there was a response.
    pub(crate) fn client_left(&mut self) {
        self.code = STATUS_CLIENT_CLOSED_REQUEST;
    }

    pub(crate) fn add_bytes(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
    }

    /// The response has reached the client whole. Until this is called, it is truncated: by the
    /// client, by upstream, or by the end of the bridge.
    pub(crate) fn complete(&mut self) {
        self.complete = true;
    }
}

impl ResponseRecord for AccessLogEntry {
    fn add_bytes(&mut self, bytes: usize) {
        self.add_bytes(bytes);
    }

    fn complete(&mut self) {
        self.complete();
    }

    fn client_left(&mut self) {
        self.client_left();
    }
}

impl Drop for AccessLogEntry {
    fn drop(&mut self) {
        let duration = self.started.elapsed();
        let Some(metrics) = &self.metrics else { return };
        metrics.request(self.route, self.verb, self.code, duration, self.bytes);
        self.count(duration);
        if let Some(line) = &self.line {
            tracing::info!(
                target: "skewbridge::access",
                client = %line.client,
                method = %line.method,
                path = %line.path,
                protocol = ?line.version,
                caller = %line.caller,
                impersonate_user = line.impersonate_user.as_deref(),
                route = self.route,
                upstream = self.backend.as_ref().map(|it| &**it.backend()),
                peer = line.peer.as_ref().map(tracing::field::display),
                peer_host = line.peer_host,
                placed = self.placed.map(Rule::as_str),
                unmet = (!line.unmet.is_empty()).then(|| tracing::field::display(line.unmet)),
                verb = self.verb,
                code = self.code,
                bytes = self.bytes,
                truncated = !self.complete,
                // The deprecated name of `truncated`.
                cut = !self.complete,
                audit_id = line.audit_id.as_deref(),
                duration_seconds = seconds(duration),
                "request"
            );
        }
    }
}

/// Seconds, rounded to microseconds to keep the text short.
fn seconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e6
}

/// A header value for a log line: truncated, and without control characters.
fn logged(value: Option<&HeaderValue>) -> Option<String> {
    let text = String::from_utf8_lossy(value?.as_bytes());
    Some(sanitized(&text))
}

/// Text of a client for a log line.
pub(crate) fn sanitized(text: &str) -> String {
    let printable = |letter: char| {
        if letter.is_control() {
            '\u{fffd}'
        } else {
            letter
        }
    };
    let mut letters = text.chars().map(printable);
    let mut out: String = letters.by_ref().take(MAX_LOGGED_CHARS).collect();
    if letters.next().is_some() {
        out.push('…');
    }
    out
}

/// A path without what follows `/proxy/`, which belongs to a workload.
fn logged_path(path: &str) -> String {
    match find_proxy(path) {
        Some(at) => format!("{}/proxy/…", &path[..at]),
        None => path.to_owned(),
    }
}

fn text_of(value: Option<&HeaderValue>) -> String {
    value.map_or_else(String::new, |it| {
        String::from_utf8_lossy(it.as_bytes()).into_owned()
    })
}

/// The position of `/proxy/` in a path, also if it is percent-encoded: kube-apiserver searches the
/// decoded path.
fn find_proxy(path: &str) -> Option<usize> {
    const PROXY: &[u8] = b"/proxy/";
    if !path.contains('%') {
        return path.find("/proxy/");
    }
    let mut decoded = Vec::with_capacity(path.len());
    let mut starts = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let [first, after @ ..] = rest {
        starts.push(path.len() - rest.len());
        let escaped = (after.get(..2))
            .filter(|_| *first == b'%')
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        decoded.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() {
            &after[2..]
        } else {
            after
        };
    }
    let at = decoded.windows(PROXY.len()).position(|it| it == PROXY)?;
    starts.get(at).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logged_path(path: &str) -> String {
        let (head, ()) = http::Request::get(path).body(()).unwrap().into_parts();
        let mut record = AccessLogEntry::none();
        record.log(&head, ([192, 0, 2, 1], 40_000).into());
        record.line.take().unwrap().path
    }

    #[test]
    fn the_query_and_the_path_after_proxy_are_not_logged() {
        let table = [
            ("/api/v1/pods?token=s", "/api/v1/pods"),
            ("/api/v1/nodes/a/proxy/s/t?u=s", "/api/v1/nodes/a/proxy/…"),
            ("/api/v1/nodes/a/proxy", "/api/v1/nodes/a/proxy"),
            ("/api/v1/proxy/nodes/a/s", "/api/v1/proxy/…"),
            ("/a/proxy/s/proxy/s", "/a/proxy/…"),
            ("/a/pr%6Fxy/s", "/a/proxy/…"),
            ("/a/pr%6fxy%2fs", "/a/proxy/…"),
            ("/a%2Fproxy%2Fs", "/a/proxy/…"),
            ("/%C3%A9/%70roxy/s", "/%C3%A9/proxy/…"),
            ("/proxy/s%", "/proxy/…"),
            ("/a%/b%2/c%zz/%+fproxy", "/a%/b%2/c%zz/%+fproxy"),
            ("/a/proxying/%20", "/a/proxying/%20"),
        ];
        for (path, expected) in table {
            assert_eq!(logged_path(path), expected, "{path}");
        }
    }

    #[test]
    fn text_of_clients_is_truncated_and_printable() {
        let long = "é".repeat(MAX_LOGGED_CHARS);
        for (text, expected) in [
            ("alice", "alice".to_owned()),
            (
                "a\nb\u{1b}[1m\u{85}",
                "a\u{fffd}b\u{fffd}[1m\u{fffd}".to_owned(),
            ),
            (&long, long.clone()),
            (&format!("{long}x"), format!("{long}…")),
        ] {
            assert_eq!(sanitized(text), expected);
        }
    }

    #[test]
    fn the_audit_id_of_the_response_replaces_that_of_the_request() {
        let request = http::Request::get("/").header(AUDIT_ID, "from-request");
        let (head, ()) = request.body(()).unwrap().into_parts();
        let mut record = AccessLogEntry::none();
        record.log(&head, ([192, 0, 2, 1], 40_000).into());
        let id = |record: &AccessLogEntry| record.line.as_ref().unwrap().audit_id.clone().unwrap();
        record.audit_id(&HeaderMap::new());
        assert_eq!(id(&record), "from-request");
        let mut response = HeaderMap::new();
        response.insert(AUDIT_ID, HeaderValue::from_static("from-response"));
        record.audit_id(&response);
        assert_eq!(id(&record), "from-response");
    }

    #[test]
    fn durations_are_seconds_with_microseconds() {
        for (nanos, expected) in [(1_234_567, 0.001_235), (90_000_000_000, 90.0), (499, 0.0)] {
            let duration = Duration::from_nanos(nanos);
            assert!((seconds(duration) - expected).abs() < f64::EPSILON);
        }
    }

    #[test]
    fn a_request_without_a_response_is_counted_as_499() {
        let metrics = Metrics::new();
        let total = |code: u16| {
            let sample = format!(
                "skewbridge_requests_total{{route=\"none\",destination=\"unrouted\",verb=\"unknown\",code=\"{code}\"}} 1"
            );
            metrics.text().contains(&sample)
        };
        let record = AccessLogEntry::begin(&metrics, &Arc::default());
        assert!(!total(499), "counted at its end");
        drop(record);
        assert!(total(499));
        let mut record = AccessLogEntry::begin(&metrics, &Arc::default());
        record.status(StatusCode::NO_CONTENT);
        drop(record);
        assert!(total(204));
        drop(AccessLogEntry::none());
    }
}
