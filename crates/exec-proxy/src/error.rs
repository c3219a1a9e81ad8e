//! Why a plugin cannot serve, with advice. No error contains a secret.

use std::io;
use std::path::PathBuf;

/// Why a plugin cannot serve.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The process was not started by a client.
    #[error(
        "$KUBERNETES_EXEC_INFO is not set: this is a credential plugin, to be named in a \
         kubeconfig's users[].user.exec and started by a client"
    )]
    NotAPlugin,
    /// The client's input cannot be parsed.
    #[error("$KUBERNETES_EXEC_INFO: {0}")]
    ExecInfo(#[from] skewbridge_k8s_api::exec_credential::ParseError),
    /// The client's input does not contain the cluster.
    #[error(
        "$KUBERNETES_EXEC_INFO has no spec.cluster: set provideClusterInfo: true in the \
         kubeconfig's users[].user.exec"
    )]
    NoCluster,
    /// The client does not support plugins that are proxies.
    #[error(
        "$KUBERNETES_EXEC_INFO has no spec.lockFilePath: the client does not support plugins \
         that are proxies (KEP-2718); run it under `skewbridge run -- ...`"
    )]
    NoLockFile,
    /// The client's lock cannot be awaited.
    #[error("spec.lockFilePath {}: {cause}", path.display())]
    LockFile {
        /// The file.
        path: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
    /// The cluster's configuration cannot be used.
    #[error("spec.cluster: {0}")]
    Cluster(String),
    /// The plugin cannot listen.
    #[error("cannot listen at {at}: {cause}")]
    Listen {
        /// The address or path.
        at: String,
        /// The system's error.
        cause: io::Error,
    },
    /// A certificate for the listener or for a client cannot be made.
    #[error("cannot make a certificate: {0}")]
    Certificate(String),
    /// The shared instance cannot be reached or cannot be started.
    #[error("the shared instance at {}: {cause}", path.display())]
    Shared {
        /// Its path.
        path: PathBuf,
        /// The cause.
        cause: String,
    },
    /// There is no directory for the path of a shared instance.
    #[error(
        "$XDG_RUNTIME_DIR is not set to a directory that only this user can enter, which a shared \
         instance needs; leave out --shared"
    )]
    NoRuntimeDir,
    /// The credential cannot be printed.
    #[error("cannot write to standard output: {0}")]
    Output(io::Error),
    /// Signals cannot be awaited.
    #[error("cannot wait for signals: {0}")]
    Signals(io::Error),
}

impl Error {
    pub(crate) fn certificate(cause: impl std::fmt::Display) -> Self {
        Self::Certificate(cause.to_string())
    }
}
