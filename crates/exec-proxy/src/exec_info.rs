//! The input of a plugin: `$KUBERNETES_EXEC_INFO`.

use std::path::PathBuf;

use skewbridge_k8s_api::exec_credential::{Cluster, EXEC_INFO, ExecCredential, Version};

use crate::Error;

/// The input of a plugin: the cluster, and the lock that shows whether the client is alive.
#[derive(Debug, Clone)]
pub struct ExecInfo {
    /// The API version that the client uses and expects in the response.
    pub version: Version,
    /// The cluster that requests are sent to.
    pub cluster: Cluster,
    /// Whether standard input is the user's terminal.
    pub interactive: bool,
    /// The file that the client keeps locked while it is alive.
    pub lock_file: Option<PathBuf>,
}

impl ExecInfo {
    /// Reads the environment of this process.
    pub fn from_environment() -> Result<Self, Error> {
        let info = std::env::var_os(EXEC_INFO).ok_or(Error::NotAPlugin)?;
        Self::parse(info.as_encoded_bytes())
    }

    /// Parses the value of `KUBERNETES_EXEC_INFO`.
    pub fn parse(info: &[u8]) -> Result<Self, Error> {
        let request = ExecCredential::parse(info)?;
        Ok(Self {
            version: request.version,
            cluster: request.spec.cluster.ok_or(Error::NoCluster)?,
            interactive: request.spec.interactive,
            lock_file: request.spec.lock_file_path,
        })
    }
}
