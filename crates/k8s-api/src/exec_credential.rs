//! What a client and a credential plugin say to each other:
//! `client.authentication.k8s.io` `ExecCredential`, with the fields that KEP-2718
//! adds for plugins that proxy the client's requests.
//!
//! The client writes a [`Spec`] (the environment variable [`EXEC_INFO`]), the plugin
//! answers with a [`Status`] on its standard output. Tokens, keys and what a cluster
//! has for its plugins are shown by no `Debug` and repeated by no error.
//!
//! ```
//! use skewbridge_k8s_api::exec_credential::{ExecCredential, Spec, Version};
//!
//! let asked = ExecCredential::request(Version::V1, Spec {
//!     lock_file_path: Some("/run/user/1000/skewbridge-1/lock".into()),
//!     ..Spec::default()
//! });
//! let told = ExecCredential::parse(asked.to_json().expose().as_bytes()).unwrap();
//! assert_eq!(told.spec, asked.spec);
//! ```

mod read;
mod write;

use std::fmt;
use std::path::PathBuf;
use std::time::SystemTime;

use crate::secret::SecretString;

/// The environment variable in which a plugin finds what it is asked.
pub const EXEC_INFO: &str = "KUBERNETES_EXEC_INFO";

/// The kind of the document, in both directions.
pub const KIND: &str = "ExecCredential";

/// A question to a plugin, or its answer.
#[derive(Debug, Clone, PartialEq)]
pub struct ExecCredential {
    /// In which version it is written.
    pub version: Version,
    /// What the client says.
    pub spec: Spec,
    /// What the plugin says.
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

/// What the client says to a plugin: `ExecCredentialSpec`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Spec {
    /// The cluster, if the kubeconfig has `provideClusterInfo`.
    pub cluster: Option<Cluster>,
    /// Whether the plugin's standard input is the user's.
    pub interactive: bool,
    /// A file that the client keeps locked for as long as it lives (KEP-2718, "Proxy
    /// Shutdown"): a plugin that gets the lock is alone, and quits.
    pub lock_file_path: Option<PathBuf>,
}

/// The cluster that a plugin is asked for.
#[derive(Clone, Default, PartialEq)]
pub struct Cluster {
    /// `https://HOST:PORT`
    pub server: String,
    /// The name that its certificate has to be for, if not the host.
    pub tls_server_name: Option<String>,
    /// Whether its certificate does not matter.
    pub insecure_skip_tls_verify: bool,
    /// CAs in PEM that sign its certificate; without, those of the system.
    pub certificate_authority_data: Vec<u8>,
    /// The proxy on the way. It may have a password.
    pub proxy_url: Option<SecretString>,
    /// Whether answers come as they are.
    pub disable_compression: bool,
    /// What the kubeconfig has for plugins of this cluster. It may be secret.
    pub config: Option<serde_json::Value>,
}

/// What a plugin says: `ExecCredentialStatus`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Status {
    /// Until when it may be used.
    pub expiration_timestamp: Option<SystemTime>,
    /// A bearer token for the cluster.
    pub token: Option<SecretString>,
    /// A certificate with its intermediates, in PEM: for the cluster, or for the proxy
    /// if there is a [`Status::proxy_config`].
    pub client_certificate_data: Option<String>,
    /// Its key, in PEM.
    pub client_key_data: Option<SecretString>,
    /// Where the plugin proxies requests, if it does (KEP-2718).
    pub proxy_config: Option<ProxyConfig>,
}

/// Where a plugin's proxy listens, and who vouches for it: `ProxyConfig`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProxyConfig {
    /// `unix:///PATH`, or `https://127.0.0.1:PORT`.
    pub url: String,
    /// CAs in PEM that sign the proxy's certificate.
    pub certificate_authority_data: Vec<u8>,
}

/// What is wrong with a document. What stands in it is never repeated, but for its
/// kind and version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseError {
    /// There is nothing.
    #[error("it is empty; an {KIND} in JSON is expected")]
    Empty,
    /// No JSON, or JSON of something else.
    #[error("it is not JSON from line {line}, column {column} on; an {KIND} is expected")]
    NotJson {
        /// Counted from 1.
        line: usize,
        /// Counted from 1.
        column: usize,
    },
    /// It ends in the middle.
    #[error("it ends before its JSON does; an {KIND} is expected")]
    CutOff,
    /// Another kind of document.
    #[error("its kind is {0:?}, not {KIND}")]
    Kind(String),
    /// A version that is not known.
    #[error("its apiVersion is {found:?}, which is neither {v1} nor {v1beta1}", v1 = Version::V1, v1beta1 = Version::V1Beta1)]
    Version {
        /// The one it says.
        found: String,
    },
    /// A field that cannot be what it is.
    #[error("{field} {cause}")]
    Field {
        /// `status.proxyConfig.url`
        field: &'static str,
        /// In words.
        cause: &'static str,
    },
}

impl ExecCredential {
    /// What a client says to a plugin.
    pub fn request(version: Version, spec: Spec) -> Self {
        Self {
            version,
            spec,
            status: None,
        }
    }

    /// What a plugin answers.
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

    /// The version of this name.
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

/// Without what may be a password: in a URL, or in what is meant for plugins.
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
