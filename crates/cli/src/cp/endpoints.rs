//! The resolved source and destination of a copy, and their error messages.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use skewbridge_client::copy::{CopySpec, Error, Pod};
use skewbridge_client::remote_command::{Executor, StartFuture, StreamRequest};

use super::flags::{Direction, Flags};
use crate::client_command::{Failure, print_stderr};
use crate::cluster_flags::ClusterAccess;
use crate::exec::explain;
use crate::pods::{Pods, choose_container};
use crate::session::{describe_transport, executor};
use crate::skew::plain;

/// Both ends of a copy.
pub(super) struct Endpoints {
    pub(super) source: Location,
    pub(super) target: Location,
    refused: Arc<LastRefusedNamespace>,
}

impl Endpoints {
    /// Resolves source and destination.
    pub(super) async fn find(flags: &Flags, direction: &Direction) -> Result<Self, Failure> {
        let access = flags.cluster.access().await?;
        let lookup = Lookup {
            flags,
            access: &access,
            executor: executor(access.endpoint.clone()).into(),
            reported: Arc::new(AtomicBool::new(access.verbosity == 0)),
            refused: Arc::new(LastRefusedNamespace::default()),
        };
        Ok(Self {
            source: lookup.locate(&direction.source).await?,
            target: lookup.locate(&direction.target).await?,
            refused: lookup.refused,
        })
    }

    /// The failure of a copy, with details about the pod that refused it.
    pub(super) fn explain(&self, error: Error) -> Failure {
        let failure = match error {
            Error::Client(error) => explain(error, "pods/exec", &self.refused.namespace(), None),
            error @ Error::NotRun { .. } => Failure::new(error),
            error => return Failure::new(error),
        };
        let why = [&self.source, &self.target]
            .into_iter()
            .filter_map(Location::not_running_reason);
        why.fold(failure, Failure::hint)
    }
}

/// A resolved source or destination.
pub(super) enum Location {
    Local(PathBuf),
    Pod(Box<PodLocation>),
}

pub(super) struct PodLocation {
    pub(super) pod: Pod,
    pub(super) path: String,
    /// Why its container does not run, if it does not.
    not_running_reason: Option<String>,
}

impl Location {
    fn not_running_reason(&self) -> Option<&str> {
        match self {
            Self::Local(_) => None,
            Self::Pod(pod) => pod.not_running_reason.as_deref(),
        }
    }
}

/// Resolves pods and containers.
struct Lookup<'a> {
    flags: &'a Flags,
    access: &'a ClusterAccess,
    executor: Arc<dyn Executor>,
    reported: Arc<AtomicBool>,
    refused: Arc<LastRefusedNamespace>,
}

impl Lookup<'_> {
    async fn locate(&self, place: &CopySpec) -> Result<Location, Failure> {
        let (namespace, pod, path) = match place {
            CopySpec::Local(path) => return Ok(Location::Local(path.clone())),
            CopySpec::Pod {
                namespace,
                pod,
                path,
            } => (namespace, pod, path),
        };
        let namespace = namespace.as_ref().unwrap_or(&self.access.namespace);
        let pods = Pods {
            endpoint: self.access.endpoint.clone(),
            namespace: namespace.clone(),
        };
        let found = pods.pod(pod).await?;
        if matches!(found.status.phase.as_str(), "Succeeded" | "Failed") {
            let phase = &found.status.phase;
            return Err(Failure::new(format!(
                "cannot exec into a container in a completed pod; current phase is {phase}"
            )));
        }
        let container = choose_container(&found, self.flags.container.as_deref())?;
        if let Some(notice) = container.notice.filter(|_| !self.flags.quiet) {
            print_stderr(plain(&notice));
        }
        let executor = TransportReporter {
            inner: self.executor.clone(),
            reported: self.reported.clone(),
            namespace: namespace.clone(),
            refused: self.refused.clone(),
        };
        Ok(Location::Pod(Box::new(PodLocation {
            not_running_reason: found.why_not_running(&container.name),
            pod: Pod {
                executor: Arc::new(executor),
                namespace: namespace.clone(),
                pod: pod.clone(),
                container: Some(container.name),
            },
            path: path.clone(),
        })))
    }
}

/// The namespace of the last refused command, of either pod.
#[derive(Debug, Default)]
struct LastRefusedNamespace(Mutex<String>);

impl LastRefusedNamespace {
    fn note(&self, namespace: &str) {
        namespace.clone_into(&mut self.lock());
    }

    fn namespace(&self) -> String {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Prints the stream protocol once, if requested, and records the namespace of a refusal.
struct TransportReporter {
    inner: Arc<dyn Executor>,
    reported: Arc<AtomicBool>,
    namespace: String,
    refused: Arc<LastRefusedNamespace>,
}

impl Executor for TransportReporter {
    fn open(&self, request: StreamRequest) -> StartFuture<'_> {
        Box::pin(async move {
            let opened = self.inner.open(request).await;
            if opened.is_err() {
                self.refused.note(&self.namespace);
            }
            if let Ok(process) = &opened
                && !self.reported.swap(true, Ordering::Relaxed)
            {
                print_stderr(plain(&describe_transport(process.transport())));
            }
            opened
        })
    }
}
