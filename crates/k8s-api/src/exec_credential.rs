//! The protocol between a client and a credential plugin: `client.authentication.k8s.io`
//! `ExecCredential`, with the fields that KEP-2718 adds for plugins that proxy the client's
//! requests.
//!
//! The client writes a [`Spec`] (the environment variable [`EXEC_INFO`]); the plugin responds
//! with a [`Status`] on its standard output. Tokens, keys and the plugin configuration of a
//! cluster appear in no `Debug` output and in no error.
//!
//! ```
//! use skewbridge_k8s_api::exec_credential::{ExecCredential, Spec, Version};
//!
//! let request = ExecCredential::request(Version::V1, Spec {
//!     lock_file_path: Some("/run/user/1000/skewbridge-1/lock".into()),
//!     ..Spec::default()
//! });
//! let parsed = ExecCredential::parse(request.to_json().expose().as_bytes()).unwrap();
//! assert_eq!(parsed.spec, request.spec);
//! ```

mod read;
mod sensitive;
mod timestamp;
mod write;

use std::fmt;
use std::path::PathBuf;
use std::time::SystemTime;

pub use sensitive::Sensitive;

/// The environment variable that holds the request to a plugin.
pub const EXEC_INFO: &str = "KUBERNETES_EXEC_INFO";

/// The kind of the document, in both directions.
pub const KIND: &str = "ExecCredential";

/// A request to a plugin, or its response.
#[derive(Debug, Clone, PartialEq)]
pub struct ExecCredential {
    /// The API version of the document.
    pub version: Version,
    /// The request of the client.
    pub spec: Spec,
    /// The response of the plugin.
    pub status: Option<Status>,
}

/// A version of `client.authentication.k8s.io`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Version {
    /// Since Kubernetes 1.22.
    V1,
    /// Since Kubernetes 1.11.
    V1Beta1,
}

/// The request of a client: `ExecCredentialSpec`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Spec {
    /// The cluster, if the kubeconfig has `provideClusterInfo`.
    pub cluster: Option<Cluster>,
    /// Whether the plugin's standard input is connected to the user's terminal.
    pub interactive: bool,
    /// A file that the client keeps locked while it runs (KEP-2718, "Proxy Shutdown"): a
    /// plugin that acquires the lock has no client left, and exits.
    pub lock_file_path: Option<PathBuf>,
}

/// The cluster for which a credential is requested.
#[derive(Clone, Default, PartialEq)]
pub struct Cluster {
    /// `https://HOST:PORT`
    pub server: String,
    /// The name expected in the server certificate, if it differs from the host.
    pub tls_server_name: Option<String>,
    /// Whether the server certificate is not verified.
    pub insecure_skip_tls_verify: bool,
    /// CA certificates in PEM that sign the server certificate; empty for the system's CAs.
    pub certificate_authority_data: Vec<u8>,
    /// The proxy to the cluster. It may contain a password.
    pub proxy_url: Option<Sensitive>,
    /// Whether the client requests uncompressed responses.
    pub disable_compression: bool,
    /// The plugin configuration for this cluster in the kubeconfig. It may contain secrets.
    pub config: Option<serde_json::Value>,
}

/// The response of a plugin: `ExecCredentialStatus`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Status {
    /// When the credential expires.
    pub expiration_timestamp: Option<SystemTime>,
    /// A bearer token for the cluster.
    pub token: Option<Sensitive>,
    /// A certificate with its intermediates, in PEM: for the cluster, or for the proxy if
    /// [`Status::proxy_config`] is set.
    pub client_certificate_data: Option<String>,
    /// The key of the certificate, in PEM.
    pub client_key_data: Option<Sensitive>,
    /// The address at which the plugin proxies requests, if it does (KEP-2718).
    pub proxy_config: Option<ProxyConfig>,
}

/// The address of a plugin's proxy and the CA of its certificate: `ProxyConfig`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProxyConfig {
    /// `unix:///PATH`, or `https://127.0.0.1:PORT`.
    pub url: String,
    /// CA certificates in PEM that sign the proxy's certificate.
    pub certificate_authority_data: Vec<u8>,
}

/// Why a document is invalid. The error contains nothing of the document but its kind and
/// version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseError {
    /// The document is empty.
    #[error("it is empty; an {KIND} in JSON is expected")]
    Empty,
    /// The document is not JSON, or not a JSON object.
    #[error("it is not JSON from line {line}, column {column} on; an {KIND} is expected")]
    NotJson {
        /// The line, counted from 1.
        line: usize,
        /// The column, counted from 1.
        column: usize,
    },
    /// The document is incomplete.
    #[error("it ends before its JSON does; an {KIND} is expected")]
    Incomplete,
    /// The document has another kind.
    #[error("its kind is {0:?}, not {KIND}")]
    Kind(String),
    /// The API version is not supported.
    #[error("its apiVersion is {found:?}, which is neither {v1} nor {v1beta1}", v1 = Version::V1, v1beta1 = Version::V1Beta1)]
    Version {
        /// The version in the document.
        found: String,
    },
    /// A field has an invalid value.
    #[error("{field} {cause}")]
    Field {
        /// `status.proxyConfig.url`
        field: &'static str,
        /// The reason.
        cause: &'static str,
    },
}

impl ExecCredential {
    /// Creates the request of a client.
    pub fn request(version: Version, spec: Spec) -> Self {
        Self {
            version,
            spec,
            status: None,
        }
    }

    /// Creates the response of a plugin.
    pub fn response(version: Version, status: Status) -> Self {
        Self {
            version,
            spec: Spec::default(),
            status: Some(status),
        }
    }
}

impl Version {
    /// `client.authentication.k8s.io/v1`
    pub fn as_str(self) -> &'static str {
        match self {
            Self::V1 => "client.authentication.k8s.io/v1",
            Self::V1Beta1 => "client.authentication.k8s.io/v1beta1",
        }
    }

    /// The version with this name.
    pub fn of(name: &str) -> Option<Self> {
        [Self::V1, Self::V1Beta1]
            .into_iter()
            .find(|version| version.as_str() == name)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Omits what may contain a password: credentials in the URL, and the plugin configuration.
impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, rest) = self
            .server
            .split_at(self.server.find("://").map_or(0, |at| at + 3));
        let rest = rest.rsplit_once('@').map_or(rest, |(_, rest)| rest);
        f.debug_struct("Cluster")
            .field("server", &format_args!("{scheme}{rest}"))
            .field("tls_server_name", &self.tls_server_name)
            .field("insecure_skip_tls_verify", &self.insecure_skip_tls_verify)
            .finish_non_exhaustive()
    }
}
