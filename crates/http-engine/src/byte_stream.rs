//! The byte stream below HTTP.

use tokio::io::{AsyncRead, AsyncWrite};

/// A bidirectional byte stream of any kind: TCP or TLS, direct or through a proxy.
pub type Stream = Box<dyn ByteStream>;

/// A bidirectional byte stream.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}
