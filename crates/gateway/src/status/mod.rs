//! The status document: what the bridge knows of the control plane and of its own requests, for the
//! status page, `/status.json` and `skewbridge status`.
//!
//! Unknown fields are ignored and missing ones have defaults, so that the command reads documents of
//! other releases.

pub(crate) mod page;
pub(crate) mod timeline;

use serde::{Deserialize, Serialize};

pub use self::timeline::Event;

/// The kind of the document.
pub const KIND: &str = "BridgeStatus";

/// The version of the document.
pub const API_VERSION: &str = "skewbridge.io/v1alpha1";

/// The status of the control plane and of this bridge.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StatusDocument {
    /// [`KIND`].
    pub kind: String,
    /// [`API_VERSION`].
    pub api_version: String,
    /// When the document was made, in RFC 3339 format.
    pub time: String,
    /// This bridge.
    pub bridge: Bridge,
    /// The servers of the control plane, by identity. Those behind this bridge come first.
    pub servers: Vec<Server>,
    /// Servers that have left in the last hour.
    pub departed: Vec<DepartedServer>,
    /// What only some of the servers serve.
    pub matrix: ApiMatrix,
    /// What happens if a server stops now.
    pub if_stopped: Vec<StopImpact>,
    /// Requests that have ended.
    pub traffic: Traffic,
    /// Watches, logs and streams that are open.
    pub open: Vec<OpenRequests>,
    /// The last requests that were sent to a peer.
    pub rerouted: TappedRequests,
    /// The last requests that the bridge refused, or that no server answered.
    pub refused: TappedRequests,
    /// The files with certificates that this bridge uses.
    pub certificates: Vec<Certificate>,
    /// What has changed in the last hour, the newest first.
    pub timeline: Vec<Event>,
    /// Further tables: calls to APIs that vanish (`vanishing`), by caller.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tables: Vec<Table>,
}

/// The bridge that answers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Bridge {
    /// Its version.
    pub version: String,
    /// Seconds since its start.
    pub uptime_seconds: u64,
    /// Whether all checks of `/readyz` pass.
    pub ready: bool,
    /// The checks that fail.
    pub problems: Vec<String>,
    /// Whether it is shutting down.
    pub draining: bool,
    /// Why it sends no request to another server because of what that serves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local_only: Option<String>,
    /// What must be read before requests can be routed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting_for: Option<String>,
    /// Where the addresses of peers come from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub registry: Option<Registry>,
    /// The resources whose fields differ between servers.
    pub differing_kinds: usize,
    /// Event streams of status pages that are open.
    pub viewers: usize,
}

/// The registry of peer addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Registry {
    /// `etcd`, `file`, `leases` and others.
    pub kind: String,
    /// Whether the last attempt to read and to publish succeeded.
    pub up: bool,
    /// The last error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
}

/// What is known of the state of a server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ServerState {
    /// The server behind this bridge is ready.
    Ready,
    /// The server behind this bridge is not ready, or does not answer.
    NotReady,
    /// The last poll of the peer and the last request to it were answered.
    Reachable,
    /// The peer cannot be reached.
    Unreachable,
    /// Not known yet.
    #[default]
    #[serde(other)]
    Unknown,
}

impl ServerState {
    /// Whether the server can be expected to answer.
    pub fn is_good(self) -> bool {
        matches!(self, Self::Ready | Self::Reachable)
    }

    /// The state in words.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "not known yet",
            Self::Ready => "ready",
            Self::NotReady => "not ready",
            Self::Reachable => "reachable",
            Self::Unreachable => "unreachable",
        }
    }
}

/// A kube-apiserver.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(clippy::struct_excessive_bools)] // a JSON document
pub struct Server {
    /// The name of its identity Lease, or its address.
    pub identity: String,
    /// The host that it runs on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Whether it is behind this bridge.
    pub local: bool,
    /// The state.
    pub state: ServerState,
    /// Why it is not ready or not reachable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Its version, without build metadata: `1.36.4`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The version of its binary as it reports it: `v1.36.4`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub git_version: Option<String>,
    /// The version that it emulates, if it reports one: `1.35`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub emulated_version: Option<String>,
    /// The version that it is compatible with, if it reports one: `1.35`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_compatibility_version: Option<String>,
    /// Where this bridge reaches it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Whether a bridge answers in front of it.
    pub bridge: bool,
    /// Whether its bridge has announced its departure.
    pub bridge_left: bool,
    /// Whether its identity Lease has not expired. Always true of a local server.
    pub alive: bool,
    /// Whether it has not failed recently, so that it is preferred.
    pub healthy: bool,
    /// Which bridges reach it.
    pub reached_by: Vec<ReachedBy>,
    /// Requests of this bridge that are in flight there. Only of peers.
    pub requests_in_flight: usize,
    /// The resources and subresources that it serves.
    pub apis: usize,
    /// Those that no other server serves.
    pub serves_alone: Vec<String>,
    /// When its serving certificate expires, in RFC 3339 format, if this bridge has seen it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate_expires: Option<String>,
}

impl Server {
    /// The host, or the identity if the host is not known.
    pub fn name(&self) -> &str {
        self.host.as_deref().unwrap_or(&self.identity)
    }

    /// The version with the emulated one.
    pub fn version_text(&self) -> String {
        let Some(version) = &self.version else {
            return "version not known".to_owned();
        };
        match &self.emulated_version {
            Some(emulated) if !is_minor_of(emulated, version) => {
                format!("{version} emulates {emulated}")
            }
            _ => version.clone(),
        }
    }
}

/// Whether a version has this minor version: `1.36` and `1.36.4`.
fn is_minor_of(minor: &str, version: &str) -> bool {
    let rest = version.strip_prefix(minor);
    rest.is_some_and(|it| it.is_empty() || it.starts_with('.'))
}

/// Whether a bridge reaches a server.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReachedBy {
    /// The host of the server behind the bridge, or its identity; of a bridge in front of several servers,
    /// its own host.
    pub bridge: String,
    /// Whether it reaches the server.
    pub reached: bool,
}

/// A server that has left.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DepartedServer {
    /// When, in RFC 3339 format.
    pub time: String,
    /// The host, or the identity.
    pub name: String,
    /// The last known version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
}

/// What only some of the servers serve.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ApiMatrix {
    /// The names of the servers.
    pub servers: Vec<String>,
    /// The differences.
    pub rows: Vec<ApiMatrixRow>,
    /// The rows that do not fit.
    pub omitted: usize,
}

/// Resources of a group and version that the same servers serve.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ApiMatrixRow {
    /// `apps/v1`, or `v1` for the core group.
    pub group_version: String,
    /// Resources and subresources.
    pub resources: Vec<String>,
    /// Whether each server serves them; absent if that is not known.
    pub served_by: Vec<Option<bool>>,
}

/// What happens if a server stops now.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StopImpact {
    /// The host of the server, or its identity.
    pub server: String,
    /// The APIs that no other server that answers now serves: requests for them get 503.
    pub apis: Vec<String>,
    /// Whether no other server is reachable: every request gets 503.
    pub is_last: bool,
    /// Open watches at the server, through this bridge.
    pub watches: usize,
    /// Open logs and streams at the server, through this bridge.
    pub streams: usize,
    /// The clients of these.
    pub clients: usize,
    /// Requests per second to the server, through this bridge.
    pub requests_per_second: f64,
    /// The servers that remain.
    pub remaining: Vec<String>,
}

/// Requests that have ended.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Traffic {
    /// Requests per second, in the last 10 s.
    pub per_second: f64,
    /// Requests since the start of the bridge.
    pub total: u64,
    /// Requests in each second of the last minute, the oldest first.
    pub history: Vec<u64>,
    /// By server and placement rule.
    pub rows: Vec<TrafficRow>,
}

/// Requests to one server for one reason.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TrafficRow {
    /// The host of the server, or its identity; absent for refused requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// `local`, `discovery`, `stream`, the placement rule, or `refused`.
    pub rule: String,
    /// Requests per second, in the last 10 s.
    pub per_second: f64,
    /// Requests since the start of the bridge.
    pub total: u64,
    /// Responses of 500 and higher since the start of the bridge.
    pub errors: u64,
    /// The same in the last minute.
    pub errors_in_minute: u64,
    /// The median of the last minute in milliseconds; without long-running requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p50_milliseconds: Option<f64>,
    /// The 99th percentile of the last minute in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99_milliseconds: Option<f64>,
}

/// Open requests of one client at one server.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OpenRequests {
    /// The host of the server, or its identity.
    pub server: String,
    /// `watch`, `log`, `exec`, `attach`, `portforward`, `proxy` or `other`.
    pub kind: String,
    /// The user, as far as the bridge knows it.
    pub user: String,
    /// Name and version of the program.
    pub program: String,
    /// Their number.
    pub count: usize,
}

/// Captured requests.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TappedRequests {
    /// The newest first.
    pub requests: Vec<TappedRequest>,
    /// Requests since the start of the bridge that were not captured, because there were too many in a
    /// second.
    pub skipped: u64,
}

/// A captured request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TappedRequest {
    /// When it arrived, in RFC 3339 format.
    pub time: String,
    /// The verb, or the method of a request that was refused before its target was parsed.
    pub verb: String,
    /// Without a query.
    pub path: String,
    /// The user, as far as the bridge knows it.
    pub user: String,
    /// The user agent.
    pub user_agent: String,
    /// The status code; 499 if the client left.
    pub code: u16,
    /// The time until its end.
    pub milliseconds: u64,
    /// The host of the peer that answered, or its identity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// The placement rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
}

/// A file with certificates.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Certificate {
    /// The flag that names the file.
    pub flag: String,
    /// When the first of its certificates expires, in RFC 3339 format.
    pub expires: String,
    /// Days until then; negative afterwards.
    pub days_left: i64,
}

/// A table of text.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Table {
    /// The identifier of its section in the page: letters and dashes.
    pub id: String,
    /// The heading.
    pub title: String,
    /// What the table shows.
    pub caption: String,
    /// The headings of the columns.
    pub columns: Vec<String>,
    /// The rows, each with as many cells as there are columns.
    pub rows: Vec<Vec<String>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_of_other_releases_are_read() {
        let text = r#"{"kind":"BridgeStatus","bridge":{"ready":true,"mood":1},"servers":[
            {"identity":"a","state":"hibernating"},{"state":"notReady","host":"cp-1"}],"new":[]}"#;
        let document: StatusDocument = serde_json::from_str(text).unwrap();
        assert!(document.bridge.ready);
        let states: Vec<_> = document.servers.iter().map(|it| it.state).collect();
        assert_eq!(states, [ServerState::Unknown, ServerState::NotReady]);
        assert_eq!(document.servers[1].name(), "cp-1");
    }

    #[test]
    fn an_emulated_version_is_shown_if_it_differs() {
        for (version, emulated, expected) in [
            (None, None, "version not known"),
            (Some("1.36.4"), None, "1.36.4"),
            (Some("1.36.4"), Some("1.36"), "1.36.4"),
            (Some("1.36.4"), Some("1.35"), "1.36.4 emulates 1.35"),
            (Some("1.36.4"), Some("1.3"), "1.36.4 emulates 1.3"),
        ] {
            let server = Server {
                version: version.map(str::to_owned),
                emulated_version: emulated.map(str::to_owned),
                ..Server::default()
            };
            assert_eq!(server.version_text(), expected);
        }
    }
}
