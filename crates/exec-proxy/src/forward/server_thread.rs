//! Serves clients on a dedicated thread.

use std::io;
use std::net;
use std::os::unix::net as unix;
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use tokio::net::{TcpListener, UnixListener};
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::{Forwarder, Listener, serve};

/// Serves clients on a dedicated thread, which is enough for one user's requests. Code that blocks
/// the thread (such as reading a secret from a disk that hangs) does not block the task that waits
/// for shutdown.
#[derive(Debug)]
pub struct ServerThread {
    /// Stops the thread when it is dropped.
    stop: oneshot::Sender<()>,
    ended: oneshot::Receiver<()>,
}

impl ServerThread {
    /// Starts the thread.
    pub fn start(
        listener: Listener,
        tls: Arc<ServerConfig>,
        forwarder: Arc<Forwarder>,
    ) -> io::Result<Self> {
        let listener = DetachedListener::from(listener)?;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = oneshot::channel();
        let (end, ended) = oneshot::channel();
        let serving = move || {
            runtime.block_on(async {
                let stopped = async {
                    // A dropped sender stops it, too.
                    let _ = stopped.await;
                };
                match listener.listen() {
                    Ok(listener) => serve(listener, tls, forwarder, stopped).await,
                    Err(error) => tracing::error!(%error, "cannot listen"),
                }
            });
            // Aborts requests in flight, and does not wait for blocked threads.
            runtime.shutdown_background();
            let _ = end.send(());
        };
        let name = "forwarder".to_owned();
        std::thread::Builder::new().name(name).spawn(serving)?;
        Ok(Self { stop, ended })
    }

    /// Returns when the thread has ended by itself.
    pub async fn ended(&mut self) {
        let _ = (&mut self.ended).await;
    }

    /// Stops the thread, and waits for its end, but no longer than this.
    pub async fn stop(self, max_wait: Duration) {
        drop(self.stop);
        let _ = timeout(max_wait, self.ended).await;
    }
}

/// A bound listener that is not registered with a runtime.
enum DetachedListener {
    Unix(unix::UnixListener),
    Tcp(net::TcpListener),
}

impl DetachedListener {
    fn from(listener: Listener) -> io::Result<Self> {
        Ok(match listener {
            Listener::Unix(listener) => Self::Unix(listener.into_std()?),
            Listener::Tcp(listener) => Self::Tcp(listener.into_std()?),
        })
    }

    fn listen(self) -> io::Result<Listener> {
        Ok(match self {
            Self::Unix(listener) => Listener::Unix(UnixListener::from_std(listener)?),
            Self::Tcp(listener) => Listener::Tcp(TcpListener::from_std(listener)?),
        })
    }
}
