//! Kubeconfig files, as kubectl reads them: several of them merged, paths in
//! them relative to the file, and the context that is used.

mod file;
mod find;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

pub use skewbridge_api::exec_credential::Version as ExecVersion;

use crate::error::{Entry, Error};
use crate::secret::Secret;

/// All kubeconfig files together.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Kubeconfig {
    /// The context that is used unless another one is asked for.
    pub current_context: Option<String>,
    /// By name.
    pub contexts: BTreeMap<String, Context>,
    /// By name.
    pub clusters: BTreeMap<String, Cluster>,
    /// By name.
    pub users: BTreeMap<String, User>,
    /// What was read, for messages.
    files: Vec<PathBuf>,
}

/// Who talks to which cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Context {
    /// The name of a cluster.
    pub cluster: String,
    /// The name of a user; empty for nobody in particular.
    pub user: String,
    /// The namespace of requests that name none.
    pub namespace: Option<String>,
}

/// Where a cluster is, and how it proves to be it.
#[derive(Clone, Default, PartialEq)]
pub struct Cluster {
    /// `https://HOST:PORT`
    pub server: String,
    /// The name that its certificate has to be for, if not the host.
    pub tls_server_name: Option<String>,
    /// Whether its certificate does not matter.
    pub insecure_skip_tls_verify: bool,
    /// CAs in PEM that sign its certificate; without, those of the system.
    pub certificate_authority: Option<PemSource>,
    /// The proxy on the way. Kept secret, as it may have a password.
    pub proxy_url: Option<Secret>,
    /// What the cluster has for credential plugins (the extension
    /// `client.authentication.k8s.io/exec`).
    pub exec_config: Option<serde_json::Value>,
}

/// How a user proves to be one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct User {
    /// A certificate in PEM, with its chain.
    pub client_certificate: Option<PemSource>,
    /// Its key.
    pub client_key: Option<PemSource>,
    /// A bearer token.
    pub token: Option<Secret>,
    /// A file that holds one, and counts before [`User::token`].
    pub token_file: Option<PathBuf>,
    /// With a password.
    pub username: Option<String>,
    /// With a name.
    pub password: Option<Secret>,
    /// A program that knows.
    pub exec: Option<Exec>,
    /// Whose role to take.
    pub impersonate: Impersonation,
    /// Why this user cannot be used, if so. Others in the same file can.
    pub problem: Option<String>,
}

/// Somebody else, whom a user may act as.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Impersonation {
    /// The name.
    pub user: Option<String>,
    /// The UID.
    pub uid: Option<String>,
    /// The groups.
    pub groups: Vec<String>,
    /// The rest.
    pub extra: BTreeMap<String, Vec<String>>,
}

/// A credential plugin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exec {
    /// The program: a path, or a name to be found in `$PATH`.
    pub command: PathBuf,
    /// Its arguments. Some take passwords so.
    pub args: Vec<Secret>,
    /// What it finds in its environment, beside ours. May hold passwords.
    pub env: Vec<(String, Secret)>,
    /// The version in which it speaks.
    pub api_version: ExecVersion,
    /// How to get it.
    pub install_hint: Option<String>,
    /// Whether it is told about the cluster.
    pub provide_cluster_info: bool,
    /// Whether it may ask the user.
    pub interactive_mode: InteractiveMode,
}

/// Whether a credential plugin reads from the terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InteractiveMode {
    /// It does not.
    Never,
    /// If there is one.
    IfAvailable,
    /// There has to be one.
    Always,
}

/// Something in PEM: as it is, or in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PemSource {
    /// Here.
    Data(Secret),
    /// There.
    File(PathBuf),
}

/// A context with what it names.
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
    /// The context of this name, or the current one, with its cluster and user.
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

    /// Adds a further file: what is there already, counts.
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

/// Without what may be a password in a URL.
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
    /// Where the server is, as it can be shown: without a password.
    pub fn server(&self) -> String {
        without_password(&self.cluster.server)
    }

    /// The same user at another server: of the same cluster, so by the same CAs.
    /// The name in its certificate is its own, unless it is given.
    #[must_use]
    pub fn with_server(mut self, server: &str, tls_server_name: Option<&str>) -> Self {
        server.clone_into(&mut self.cluster.server);
        self.cluster.tls_server_name = tls_server_name.map(str::to_owned);
        self
    }
}
