//! Who starts commands.

use std::future::Future;
use std::pin::Pin;

use super::process::RemoteProcess;
use super::request::{AttachRequest, ExecRequest, Opening};
use crate::endpoint::Endpoint;
use crate::error::Error;

/// A command that is being started.
pub type Starting<'a> = Pin<Box<dyn Future<Output = Result<RemoteProcess, Error>> + Send + 'a>>;

/// Starts commands in pods.
pub trait Executor: Send + Sync {
    /// Opens the streams of a command: what [`Executor::start`] and
    /// [`Executor::attach`] stand on.
    fn open(&self, opening: Opening) -> Starting<'_>;

    /// Starts a command. It has begun when this is ready, or will soon.
    fn start<'a>(&'a self, request: &ExecRequest) -> Starting<'a> {
        self.open(request.into())
    }

    /// Joins a process that already runs.
    fn attach<'a>(&'a self, request: &AttachRequest) -> Starting<'a> {
        self.open(request.into())
    }
}

/// By WebSocket, in the fifth version of the protocol (KEP-4006).
#[derive(Debug, Clone)]
pub struct WebSocketExecutor {
    endpoint: Endpoint,
}

/// By SPDY, in the fourth version or an older one.
#[derive(Debug, Clone)]
pub struct SpdyExecutor {
    endpoint: Endpoint,
}

/// By WebSocket, or by SPDY where a WebSocket is refused.
#[derive(Debug, Clone)]
pub struct FallbackExecutor {
    first: WebSocketExecutor,
    second: SpdyExecutor,
}

impl WebSocketExecutor {
    /// At this server.
    pub fn new(endpoint: Endpoint) -> Self {
        Self { endpoint }
    }
}

impl SpdyExecutor {
    /// At this server.
    pub fn new(endpoint: Endpoint) -> Self {
        Self { endpoint }
    }
}

impl FallbackExecutor {
    /// At this server.
    pub fn new(endpoint: Endpoint) -> Self {
        Self {
            first: WebSocketExecutor::new(endpoint.clone()),
            second: SpdyExecutor::new(endpoint),
        }
    }
}

impl Executor for WebSocketExecutor {
    fn open(&self, opening: Opening) -> Starting<'_> {
        let _ = (&self.endpoint, opening);
        Box::pin(async { Err(Error::Unsendable("a WebSocket".to_owned())) })
    }
}

impl Executor for SpdyExecutor {
    fn open(&self, opening: Opening) -> Starting<'_> {
        let _ = (&self.endpoint, opening);
        Box::pin(async { Err(Error::Unsendable("SPDY".to_owned())) })
    }
}

impl Executor for FallbackExecutor {
    fn open(&self, opening: Opening) -> Starting<'_> {
        Box::pin(async move {
            match self.first.open(opening.clone()).await {
                Ok(process) => Ok(process),
                Err(_) => self.second.open(opening).await,
            }
        })
    }
}
