//! What a client asks of a plugin.

use std::path::PathBuf;

use skewbridge_k8s_api::exec_credential::{Cluster, EXEC_INFO, ExecCredential, Version};

use crate::Error;

/// What a client asks: for which cluster, and how its end is noticed.
#[derive(Debug, Clone)]
pub struct Asked {
    /// In which version it is to be answered.
    pub version: Version,
    /// The cluster that requests are for.
    pub cluster: Cluster,
    /// Whether standard input is the user's.
    pub interactive: bool,
    /// What the client has locked for as long as it lives.
    pub lock_file: Option<PathBuf>,
}

impl Asked {
    /// From the environment of this process.
    pub fn from_environment() -> Result<Self, Error> {
        let info = std::env::var_os(EXEC_INFO).ok_or(Error::NotAPlugin)?;
        Self::parse(info.as_encoded_bytes())
    }

    /// From the text of `KUBERNETES_EXEC_INFO`.
    pub fn parse(info: &[u8]) -> Result<Self, Error> {
        let asked = ExecCredential::parse(info)?;
        Ok(Self {
            version: asked.version,
            cluster: asked.spec.cluster.ok_or(Error::NoCluster)?,
            interactive: asked.spec.interactive,
            lock_file: asked.spec.lock_file_path,
        })
    }
}
