//! Kubeconfig files, read as kubectl reads them: several files are merged, paths are relative
//! to their file.
//!
//! A [`Kubeconfig`] has contexts, clusters and users. A [`Target`] is one of its contexts with
//! its cluster and user.
//!
//! ```
//! use std::path::Path;
//! use skewbridge_client::kubeconfig::Kubeconfig;
//!
//! # fn main() -> Result<(), skewbridge_client::Error> {
//! let text = "
//! current-context: dev
//! contexts: [{name: dev, context: {cluster: local, namespace: web}}]
//! clusters: [{name: local, cluster: {server: 'https://127.0.0.1:6443'}}]
//! ";
//! let config = Kubeconfig::parse(text, Path::new("/home/me/.kube/config"))?;
//! let target = config.target(None)?;
//! assert_eq!(target.server(), "https://127.0.0.1:6443");
//! assert_eq!(target.namespace.as_deref(), Some("web"));
//! # Ok(())
//! # }
//! ```

mod file;
mod find;
mod secret_file;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

pub(crate) use secret_file::read_secret_file;
pub use skewbridge_k8s_api::exec_credential::Version as ExecVersion;

use crate::Secret;
use crate::error::{Entry, Error};

/// The merged kubeconfig files.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Kubeconfig {
    /// The context that is used by default.
    pub current_context: Option<String>,
    /// Contexts by name.
    pub contexts: BTreeMap<String, Context>,
    /// Clusters by name.
    pub clusters: BTreeMap<String, Cluster>,
    /// Users by name.
    pub users: BTreeMap<String, User>,
    /// The files that were read, for messages.
    files: Vec<PathBuf>,
}

/// A cluster, a user and a namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Context {
    /// The name of a cluster.
    pub cluster: String,
    /// The name of a user; empty for anonymous access.
    pub user: String,
    /// The namespace of requests that name none.
    pub namespace: Option<String>,
}

/// A cluster's server and how it is verified.
#[derive(Clone, Default, PartialEq)]
pub struct Cluster {
    /// `https://HOST:PORT`
    pub server: String,
    /// The name that the certificate must match, if not the host.
    pub tls_server_name: Option<String>,
    /// Whether the certificate is not verified.
    pub insecure_skip_tls_verify: bool,
    /// CAs in PEM that sign the certificate; by default the system's.
    pub certificate_authority: Option<PemSource>,
    /// The URL of a proxy. Kept secret, as it may contain a password.
    pub proxy_url: Option<Secret>,
    /// The cluster's configuration for credential plugins (the extension
    /// `client.authentication.k8s.io/exec`).
    pub exec_config: Option<serde_json::Value>,
}

/// A user's credentials.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct User {
    /// A client certificate chain in PEM.
    pub client_certificate: Option<PemSource>,
    /// The certificate's key.
    pub client_key: Option<PemSource>,
    /// A bearer token.
    pub token: Option<Secret>,
    /// A file that contains a bearer token; takes precedence over [`User::token`].
    pub token_file: Option<PathBuf>,
    /// For basic authentication.
    pub username: Option<String>,
    /// For basic authentication.
    pub password: Option<Secret>,
    /// A credential plugin.
    pub exec: Option<Exec>,
    /// The user to impersonate.
    pub impersonate: Impersonation,
    /// Why this user cannot be used. Other users of the same file still can.
    pub problem: Option<String>,
}

/// The user to impersonate.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Impersonation {
    /// The user name.
    pub user: Option<String>,
    /// The UID.
    pub uid: Option<String>,
    /// The groups.
    pub groups: Vec<String>,
    /// Extra fields.
    pub extra: BTreeMap<String, Vec<String>>,
}

/// A credential plugin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exec {
    /// The program: a path, or a name to be searched in `$PATH`.
    pub command: PathBuf,
    /// Its arguments. They may contain passwords.
    pub args: Vec<Secret>,
    /// Environment variables beside our own. They may contain passwords.
    pub env: Vec<(String, Secret)>,
    /// The API version of its input and output.
    pub api_version: ExecVersion,
    /// How to install it.
    pub install_hint: Option<String>,
    /// Whether its input includes the cluster.
    pub provide_cluster_info: bool,
    /// Whether it may prompt the user.
    pub interactive_mode: InteractiveMode,
}

/// Whether a credential plugin reads from the terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InteractiveMode {
    /// Never.
    Never,
    /// If there is a terminal.
    IfAvailable,
    /// Always: there has to be a terminal.
    Always,
}

/// PEM data: inline, or in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PemSource {
    /// Inline.
    Data(Secret),
    /// In a file.
    File(PathBuf),
}

/// A context with its cluster and user.
#[derive(Debug, Clone, PartialEq)]
pub struct Target {
    /// The name of the context.
    pub context: String,
    /// The name of the cluster.
    pub cluster_name: String,
    /// The cluster.
    pub cluster: Cluster,
    /// The name of the user.
    pub user_name: String,
    /// The user.
    pub user: User,
    /// The namespace of requests that name none.
    pub namespace: Option<String>,
}

impl Kubeconfig {
    /// The named context, or the current one, with its cluster and user.
    pub fn target(&self, context: Option<&str>) -> Result<Target, Error> {
        let name = match (context, &self.current_context) {
            (Some(name), _) => name,
            (None, Some(name)) => name,
            (None, None) => {
                return Err(Error::NoCurrentContext {
                    files: self.files(),
                    available: self.contexts.keys().cloned().collect(),
                });
            }
        };
        let context = self.look_up(Entry::Context, &self.contexts, name)?;
        let cluster = self.look_up(Entry::Cluster, &self.clusters, &context.cluster)?;
        let user = match context.user.as_str() {
            "" => User::default(),
            user => self.look_up(Entry::User, &self.users, user)?.clone(),
        };
        if let Some(cause) = user.problem {
            return Err(Error::Invalid {
                entry: Entry::User,
                name: context.user.clone(),
                cause,
            });
        }
        Ok(Target {
            context: name.to_owned(),
            cluster_name: context.cluster.clone(),
            cluster: cluster.clone(),
            user_name: context.user.clone(),
            user,
            namespace: context.namespace.clone(),
        })
    }

    /// Merges another file; existing entries take precedence.
    #[must_use]
    pub fn merge(mut self, other: Self) -> Self {
        fn fill<T>(available: &mut BTreeMap<String, T>, other: BTreeMap<String, T>) {
            for (name, entry) in other {
                available.entry(name).or_insert(entry);
            }
        }
        self.current_context = self.current_context.or(other.current_context);
        fill(&mut self.contexts, other.contexts);
        fill(&mut self.clusters, other.clusters);
        fill(&mut self.users, other.users);
        self.files.extend(other.files);
        self
    }

    fn look_up<'a, T>(
        &self,
        entry: Entry,
        entries: &'a BTreeMap<String, T>,
        name: &str,
    ) -> Result<&'a T, Error> {
        entries.get(name).ok_or_else(|| Error::Missing {
            entry,
            name: name.to_owned(),
            files: self.files(),
            available: entries.keys().cloned().collect(),
        })
    }

    fn files(&self) -> String {
        let files: Vec<_> = self
            .files
            .iter()
            .map(|path| path.display().to_string())
            .collect();
        files.join(", ")
    }
}

/// Leaves out a password in a URL.
impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster")
            .field("server", &without_password(&self.server))
            .field("tls_server_name", &self.tls_server_name)
            .field("insecure_skip_tls_verify", &self.insecure_skip_tls_verify)
            .field("certificate_authority", &self.certificate_authority)
            .field("proxy_url", &self.proxy_url)
            .finish_non_exhaustive()
    }
}

/// A URL without its user and password.
fn without_password(url: &str) -> String {
    let (scheme, rest) = url.split_at(url.find("://").map_or(0, |with_server| with_server + 3));
    let rest = rest.rsplit_once('@').map_or(rest, |(_, rest)| rest);
    format!("{scheme}{rest}")
}

impl Target {
    /// The server's URL without a password, for display.
    pub fn server(&self) -> String {
        without_password(&self.cluster.server)
    }

    /// The same user at another server of the same cluster, with the same CAs. The server's
    /// certificate must match its own host name, unless a name is given.
    #[must_use]
    pub fn with_server(mut self, server: &str, tls_server_name: Option<&str>) -> Self {
        server.clone_into(&mut self.cluster.server);
        self.cluster.tls_server_name = tls_server_name.map(str::to_owned);
        self
    }
}
