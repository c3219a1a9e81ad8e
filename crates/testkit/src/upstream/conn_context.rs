//! The state of a connection of the well-behaved fake server, for both protocols.

use std::sync::Arc;

use tokio::sync::watch;

use super::recorded_request::Record;
use super::{ClientCertificate, RecordedRequest, Reply};
use crate::task::PanicFlag;

/// The handler of a test.
pub(super) type Handler = dyn Fn(RecordedRequest) -> Reply + Send + Sync;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RespondWhen {
    Complete,
    AtHead,
}

/// The connection state that both protocols use.
#[derive(Clone)]
pub(super) struct ConnContext {
    pub(super) connection: usize,
    pub(super) client: Option<ClientCertificate>,
    pub(super) record: Record,
    pub(super) respond_when: RespondWhen,
    pub(super) handler: Arc<Handler>,
    pub(super) panicked: PanicFlag,
    pub(super) goaway: watch::Receiver<()>,
}

impl ConnContext {
    pub(super) fn handle(&self, request: RecordedRequest) -> Reply {
        let _watch = self.panicked.watch();
        (self.handler)(request)
    }

    /// Resolves at the next call of [`super::ApiServer::goaway`].
    pub(super) async fn goaway_requested(&mut self) {
        if self.goaway.changed().await.is_err() {
            // The server is dropped, and this task will be aborted.
            std::future::pending::<()>().await;
        }
    }

    pub(super) fn is_goaway_requested(&self) -> bool {
        self.goaway.has_changed().unwrap_or(true)
    }
}
