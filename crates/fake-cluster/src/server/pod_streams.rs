//! The interface to the node: exec, attach, port-forward and logs.
//!
//! A server authenticates and authorizes, finds the pod, rejects protocols that its version does
//! not support, and then calls its [`PodStreams`].

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Method, Response};
use skewbridge_k8s_api::status::Status;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;

use crate::catalogue::Release;
use crate::object::Object;

/// A node that serves streams of its pods.
pub trait PodStreams: Send + Sync + 'static {
    /// Serves a request for a pod that exists and is bound to a node.
    fn answer(
        &self,
        request: StreamRequest,
    ) -> Pin<Box<dyn Future<Output = StreamResponse> + Send + '_>>;
}

/// An authorized request for `pods/{exec,attach,portforward,log}`.
#[derive(Debug, Clone)]
pub struct StreamRequest {
    /// The subresource.
    pub kind: StreamKind,
    /// `GET` by WebSocket and for logs, `POST` by SPDY.
    pub method: Method,
    /// The raw query without `?`; may be empty.
    pub query: String,
    /// All headers, including `Upgrade` and `X-Stream-Protocol-Version`; without credentials.
    pub headers: HeaderMap,
    /// The name of the pod.
    pub name: String,
    /// The current state of the pod.
    pub pod: Arc<Object>,
}

/// A streaming subresource of pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // the names of the variants describe them
pub enum StreamKind {
    Exec,
    Attach,
    PortForward,
    Log,
}

/// The streaming protocols of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocols {
    /// SPDY/3.1, and port-forward by the channels of a WebSocket.
    Spdy,
    /// WebSocket as well.
    SpdyAndWebSocket,
}

/// The response to a client.
#[derive(Debug)]
pub enum StreamResponse {
    /// In chunks until the sender is dropped, as for `log -f`. The sender is notified by the
    /// channel when the client disconnects.
    Chunked(Response<()>, mpsc::Receiver<Bytes>),
    /// A failure.
    Refused(Status),
    /// 101 with these headers; then the node takes over the connection.
    Switch(Response<()>, PodStreamHandler),
}

/// A connection after 101.
pub struct UpgradedStream {
    /// Both directions, above TLS.
    pub io: Box<dyn Io>,
    /// Bytes that were read after the request head.
    pub input: BytesMut,
}

/// Both directions of a connection.
pub trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// Takes over a connection after 101. It runs in the task of the connection: if the server is
/// killed, it is dropped.
pub struct PodStreamHandler(Box<PodStreamFn>);

type PodStreamFn = dyn FnOnce(UpgradedStream) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send;

impl PodStreamHandler {
    /// From a function.
    pub fn new<F, R>(run: F) -> Self
    where
        F: FnOnce(UpgradedStream) -> R + Send + 'static,
        R: Future<Output = ()> + Send + 'static,
    {
        Self(Box::new(|switched| Box::pin(run(switched))))
    }

    /// Runs it to its end.
    pub async fn run(self, switched: UpgradedStream) {
        (self.0)(switched).await;
    }
}

impl fmt::Debug for PodStreamHandler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PodStreamHandler").finish_non_exhaustive()
    }
}

impl StreamKind {
    /// By the name of the subresource.
    pub fn of_subresource(name: &str) -> Option<Self> {
        Some(match name {
            "exec" => Self::Exec,
            "attach" => Self::Attach,
            "portforward" => Self::PortForward,
            "log" => Self::Log,
            _ => return None,
        })
    }
}

impl Protocols {
    /// The protocols of a version.
    pub fn of(release: Release) -> Self {
        match release {
            Release::V1_28 => Self::Spdy,
            Release::V1_34 | Release::V1_36 => Self::SpdyAndWebSocket,
        }
    }
}
