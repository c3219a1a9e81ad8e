//! A raw stream for callers that speak their own protocol.

use std::fmt;

use crate::exec_plugin::ConnectionCredential;
use crate::transport::Stream;

/// A stream to the cluster, or to the proxy of its credential plugin.
pub struct OpenedStream {
    /// The byte stream.
    pub stream: Stream,
    /// The protocol selected by ALPN.
    pub protocol: Option<Vec<u8>>,
    /// The credential that a plugin issued for it.
    pub credential: Option<ConnectionCredential>,
}

impl fmt::Debug for OpenedStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenedStream")
            .field("protocol", &self.protocol)
            .finish_non_exhaustive()
    }
}
