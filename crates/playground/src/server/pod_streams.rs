//! What the servers leave to who runs the pods: exec, attach, port-forward and logs.
//!
//! A server authenticates and authorises, finds the pod, refuses what its version does
//! not speak, and then asks its [`PodStreams`] for an answer.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Method, Response};
use skewbridge_k8s_api::identity::User;
use skewbridge_k8s_api::status::Status;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;

use crate::catalogue::Release;
use crate::object::Object;

/// Runs pods, and lets clients talk to what runs in them.
pub trait PodStreams: Send + Sync + 'static {
    /// Answers a request for a pod that is there, and is on a node.
    fn answer(
        &self,
        request: StreamRequest,
    ) -> Pin<Box<dyn Future<Output = StreamAnswer> + Send + '_>>;
}

/// A request for `pods/{exec,attach,portforward,log}` that is allowed.
#[derive(Debug, Clone)]
pub struct StreamRequest {
    /// What is wanted of the pod.
    pub kind: StreamKind,
    /// `GET` by WebSocket and for logs, `POST` by SPDY.
    pub method: Method,
    /// Without the query.
    pub path: String,
    /// As it came, without `?`; empty where there is none.
    pub query: String,
    /// All of them, `Upgrade` and `X-Stream-Protocol-Version` included; without
    /// credentials.
    pub headers: HeaderMap,
    /// Of the pod.
    pub namespace: String,
    /// Of the pod.
    pub name: String,
    /// As it is stored now.
    pub pod: Arc<Object>,
    /// Who asks.
    pub user: User,
    /// The version of the server that is asked.
    pub release: Release,
    /// What it speaks. Where that is [`Protocols::Spdy`], the only WebSocket that gets here is
    /// a port-forward by channels.
    pub protocols: Protocols,
}

/// What is wanted of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // their names say it
pub enum StreamKind {
    Exec,
    Attach,
    PortForward,
    Log,
}

/// In which protocols a server streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocols {
    /// SPDY/3.1, and port-forward by the channels of a WebSocket.
    Spdy,
    /// WebSocket as well.
    SpdyAndWebSocket,
}

/// What a client is told.
#[derive(Debug)]
pub enum StreamAnswer {
    /// All at once.
    Whole(Response<Bytes>),
    /// Piece by piece until the sender is dropped, as `log -f` does. Who sends learns by
    /// the channel that nobody listens any more.
    Pieces(Response<()>, mpsc::Receiver<Bytes>),
    /// A failure.
    Refused(Status),
    /// 101 with these headers, and then the connection is somebody else's.
    Switch(Response<()>, Takeover),
}

/// A connection after 101.
pub struct Switched {
    /// Both ways, above TLS.
    pub io: Box<dyn Io>,
    /// What was read behind the request's head.
    pub input: BytesMut,
}

/// Both ways of a connection.
pub trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// Carries a connection on after 101. It runs in the task of the connection: when the
/// server is killed, it is dropped.
pub struct Takeover(Box<TakeoverFn>);

type TakeoverFn = dyn FnOnce(Switched) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send;

impl Takeover {
    /// By a function.
    pub fn new<F, R>(run: F) -> Self
    where
        F: FnOnce(Switched) -> R + Send + 'static,
        R: Future<Output = ()> + Send + 'static,
    {
        Self(Box::new(|switched| Box::pin(run(switched))))
    }

    /// Carries it on, to its end.
    pub async fn run(self, switched: Switched) {
        (self.0)(switched).await;
    }
}

impl fmt::Debug for Takeover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Takeover").finish_non_exhaustive()
    }
}

impl StreamKind {
    /// Of a subresource of pods.
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
    /// Of a version.
    pub fn of(release: Release) -> Self {
        match release {
            Release::V1_28 => Self::Spdy,
            Release::V1_34 | Release::V1_36 => Self::SpdyAndWebSocket,
        }
    }
}

/// For a cluster without a node: no pod runs.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoNode;

impl PodStreams for NoNode {
    fn answer(
        &self,
        request: StreamRequest,
    ) -> Pin<Box<dyn Future<Output = StreamAnswer> + Send + '_>> {
        let node = request.pod.text(&["spec", "nodeName"]);
        let message = format!("the node {node} of pod {} does not answer", request.name);
        Box::pin(async { StreamAnswer::Refused(Status::internal(message)) })
    }
}
