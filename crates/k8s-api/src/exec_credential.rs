//! `ExecCredential` (`client.authentication.k8s.io`), the input and output of credential plugins,
//! with the fields of KEP-2718 for plugins that proxy requests.
//!
//! The client passes a [`Spec`] in the environment variable [`EXEC_INFO`]; the plugin prints a
//! [`Status`] on standard output. No `Debug` and no error contains tokens, keys or the plugin
//! config of a cluster.
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
mod write;

use std::fmt;
use std::path::PathBuf;
use std::time::SystemTime;

use crate::secret::SecretString;

/// The environment variable with the input of a plugin.
pub const EXEC_INFO: &str = "KUBERNETES_EXEC_INFO";

/// The kind of the document, in both directions.
pub const KIND: &str = "ExecCredential";

/// The input or the output of a plugin.
#[derive(Debug, Clone, PartialEq)]
pub struct ExecCredential {
    /// The API version.
    pub version: Version,
    /// The input, from the client.
    pub spec: Spec,
    /// The output, from the plugin.
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

/// The input of a plugin: `ExecCredentialSpec`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Spec {
    /// The cluster, if the kubeconfig has `provideClusterInfo`.
    pub cluster: Option<Cluster>,
    /// Whether standard input is the user's terminal.
    pub interactive: bool,
    /// A file that the client keeps locked while it is alive (KEP-2718, "Proxy Shutdown"): a plugin
    /// that acquires the lock exits.
    pub lock_file_path: Option<PathBuf>,
}

/// The cluster for which a credential is requested.
#[derive(Clone, Default, PartialEq)]
pub struct Cluster {
    /// `https://HOST:PORT`
    pub server: String,
    /// The name that its certificate must match, if not the host.
    pub tls_server_name: Option<String>,
    /// Disables verification of its certificate.
    pub insecure_skip_tls_verify: bool,
    /// CA certificates in PEM; empty means the system roots.
    pub certificate_authority_data: Vec<u8>,
    /// The proxy URL. May contain a password.
    pub proxy_url: Option<SecretString>,
    /// Disables compression of responses.
    pub disable_compression: bool,
    /// The plugin config of the cluster in the kubeconfig. May be secret.
    pub config: Option<serde_json::Value>,
}

/// The output of a plugin: `ExecCredentialStatus`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Status {
    /// When the credential expires.
    pub expiration_timestamp: Option<SystemTime>,
    /// A bearer token for the cluster.
    pub token: Option<SecretString>,
    /// A certificate with its intermediates, in PEM: for the cluster, or for the proxy
    /// if there is a [`Status::proxy_config`].
    pub client_certificate_data: Option<String>,
    /// Its key, in PEM.
    pub client_key_data: Option<SecretString>,
    /// The plugin's proxy, if it is one (KEP-2718).
    pub proxy_config: Option<ProxyConfig>,
}

/// The address and the CA of a plugin's proxy: `ProxyConfig`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProxyConfig {
    /// `unix:///PATH`, or `https://127.0.0.1:PORT`.
    pub url: String,
    /// CAs in PEM that sign the proxy's certificate.
    pub certificate_authority_data: Vec<u8>,
}

/// Why a document is invalid. Contains no part of the document except kind and version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseError {
    /// Empty input.
    #[error("it is empty; an {KIND} in JSON is expected")]
    Empty,
    /// Not JSON, or not an object.
    #[error("it is not JSON from line {line}, column {column} on; an {KIND} is expected")]
    NotJson {
        /// Counted from 1.
        line: usize,
        /// Counted from 1.
        column: usize,
    },
    /// Truncated input.
    #[error("it ends before its JSON does; an {KIND} is expected")]
    Truncated,
    /// Another kind of document.
    #[error("its kind is {0:?}, not {KIND}")]
    Kind(String),
    /// A version that is not known.
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
        /// The reason, as the end of a sentence.
        cause: &'static str,
    },
}

impl ExecCredential {
    /// The input of a plugin.
    pub fn request(version: Version, spec: Spec) -> Self {
        Self {
            version,
            spec,
            status: None,
        }
    }

    /// The output of a plugin.
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

/// Omits possible secrets: the user info of URLs and the plugin config.
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
