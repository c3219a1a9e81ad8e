//! A stream for whoever speaks on it themselves.

use std::fmt;

use crate::connection::Stream;
use crate::exec::ConnectionCredential;

/// A stream to the cluster, or to the proxy of its credential plugin.
pub struct OpenedStream {
    /// Its bytes.
    pub stream: Stream,
    /// What the other end has chosen by ALPN.
    pub protocol: Option<Vec<u8>>,
    /// What a credential plugin gave for it.
    pub credential: Option<ConnectionCredential>,
}

impl fmt::Debug for OpenedStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opening")
            .field("protocol", &self.protocol)
            .finish_non_exhaustive()
    }
}
