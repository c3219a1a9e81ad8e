//! A node whose pods are processes of this machine, each in a private directory. It reconciles
//! pods with the store, and serves exec, attach, port-forward and logs. It does not listen on a
//! port: it is reached only through the API servers.

mod channel_forward;
mod command_pipes;
mod container;
mod container_log;
mod exec;
mod init;
mod listeners;
mod node_object;
mod pod_plan;
mod pod_status;
mod pod_sync;
mod port_forward;
mod process;
pub mod process_entry;
mod process_start;
mod process_tree;
mod spdy;
mod stream_validation;
mod terminal;
mod websocket;

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::thread::JoinHandle;

use skewbridge_private_files::ensure_private_dir;
use tokio::sync::{Notify, oneshot};

use crate::server::SharedStore;
use crate::server::pod_streams::{PodStreams, StreamRequest, StreamResponse};
use pod_sync::{PodSync, Pods};
pub use process::Program;
use process::{KILL_TIMEOUT, Launcher};

/// Configuration of a node.
#[derive(Debug)]
pub struct NodeConfig {
    /// All objects.
    pub store: SharedStore,
    /// The directory of pod directories; created if it is missing.
    pub directory: PathBuf,
    /// The program that starts their processes.
    pub program: Program,
}

/// A running node. Dropping it ends it and all its processes.
pub struct Node {
    pods: Pods,
    launcher: Launcher,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Node {
    /// Starts a node on its own thread.
    pub fn start(config: NodeConfig) -> io::Result<Self> {
        ensure_private_dir(&config.directory)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let pods = Pods::default();
        let launcher = Launcher::new(config.program);
        let pod_sync = PodSync {
            store: config.store,
            launcher: launcher.clone(),
            directory: config.directory,
            pods: pods.clone(),
            changed: Arc::new(Notify::new()),
            running: HashMap::new(),
            remains: Vec::new(),
        };
        let (end, ended) = oneshot::channel::<()>();
        let thread = std::thread::Builder::new()
            .name("node".to_owned())
            .spawn(move || {
                runtime.block_on(pod_sync.run(async {
                    let _ = ended.await;
                }));
            })?;
        Ok(Self {
            pods,
            launcher,
            end: Some(end),
            thread: Some(thread),
        })
    }
}

impl PodStreams for Node {
    fn answer(
        &self,
        request: StreamRequest,
    ) -> Pin<Box<dyn Future<Output = StreamResponse> + Send + '_>> {
        Box::pin(async move { stream_validation::answer(&self.pods, &self.launcher, &request) })
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        // Commands of exec do not belong to the thread.
        self.launcher.end_all(KILL_TIMEOUT);
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node").finish_non_exhaustive()
    }
}
