//! What keeps a plugin from serving, and what to do about it. None of it holds a
//! secret.

use std::io;
use std::path::PathBuf;

/// Why there is no plugin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Nobody has asked.
    #[error(
        "$KUBERNETES_EXEC_INFO is not set: this is a credential plugin, to be named in a \
         kubeconfig's users[].user.exec and started by a client"
    )]
    NotAPlugin,
    /// What the client asks cannot be understood.
    #[error("$KUBERNETES_EXEC_INFO: {0}")]
    ExecInfo(#[from] skewbridge_k8s_api::exec_credential::ParseError),
    /// The client does not say which cluster it means.
    #[error(
        "$KUBERNETES_EXEC_INFO has no spec.cluster: set provideClusterInfo: true in the \
         kubeconfig's users[].user.exec"
    )]
    NoCluster,
    /// The client knows nothing of plugins that are proxies.
    #[error(
        "$KUBERNETES_EXEC_INFO has no spec.lockFilePath: the client does not know plugins that \
         are proxies (KEP-2718); run it under `skewbridge run -- ...`"
    )]
    NoLockFile,
    /// The lock of the client cannot be waited for.
    #[error("spec.lockFilePath {}: {cause}", path.display())]
    LockFile {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// The cluster cannot be used.
    #[error("spec.cluster: {0}")]
    Cluster(String),
    /// There is nowhere to listen.
    #[error("cannot listen at {at}: {cause}")]
    Listen {
        /// Where.
        at: String,
        /// What the system said.
        cause: io::Error,
    },
    /// There is no certificate for the clients of this process.
    #[error("cannot make a certificate: {0}")]
    Certificate(String),
    /// The instance that is to be shared cannot be found, or cannot be started.
    #[error("the shared instance at {}: {cause}", path.display())]
    Shared {
        /// Its seat.
        path: PathBuf,
        /// In words.
        cause: String,
    },
    /// There is no place for an instance that is shared.
    #[error(
        "$XDG_RUNTIME_DIR is not set to a directory of this user alone, where a shared instance \
         could be found; leave out --shared"
    )]
    NoSeat,
    /// What was asked for could not be told.
    #[error("cannot write to standard output: {0}")]
    Output(io::Error),
    /// Signals cannot be waited for.
    #[error("cannot wait for signals: {0}")]
    Signals(io::Error),
}

impl Error {
    pub(crate) fn certificate(cause: impl std::fmt::Display) -> Self {
        Self::Certificate(cause.to_string())
    }
}
