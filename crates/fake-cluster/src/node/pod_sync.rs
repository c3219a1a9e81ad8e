//! Reconciles pods with the store: the task of the node that owns all processes of pods.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use serde_json::Value;
use skewbridge_k8s_api::status::Status;
use skewbridge_private_files::ensure_private_dir;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use super::container::Container;
use super::node_object::{self, MAX_PODS, NODE_NAME};
use super::pod_plan::{PodPlacement, PodPlan, grace};
use super::pod_status;
use super::process::{KILL_TIMEOUT, Launcher};
use crate::object::Object;
use crate::resource_strategy::Part;
use crate::server::{SharedStore, StoreWatch};
use crate::status::GroupResource;
use crate::store::Preconditions;
use crate::time::Time;

/// Grace period of all pods together when the playground ends.
const SHUTDOWN_GRACE: Duration = Duration::from_millis(500);

/// Interval between checks whether the processes of a deleted pod have exited.
const CLEANUP_INTERVAL: Duration = Duration::from_millis(100);

/// Addresses of pods: 127.0.0.2 and on, all of them loopback.
const ADDRESSES: std::ops::RangeInclusive<u8> = 2..=254;

/// The running pods.
#[derive(Debug, Clone, Default)]
pub(super) struct Pods(Arc<Mutex<BTreeMap<String, Arc<Pod>>>>);

/// A running pod.
#[derive(Debug)]
pub(super) struct Pod {
    pub(super) plan: PodPlan,
    pub(super) placement: PodPlacement,
    pub(super) containers: Vec<Arc<Container>>,
    started: Time,
    running_since: Instant,
    /// Stops its containers, with a grace period.
    stop: watch::Sender<Option<Duration>>,
}

impl Pods {
    /// The pod of this uid.
    pub(super) fn get(&self, uid: &str) -> Option<Arc<Pod>> {
        self.lock().get(uid).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Pod>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The task.
pub(super) struct PodSync {
    pub(super) store: SharedStore,
    pub(super) launcher: Launcher,
    pub(super) directory: PathBuf,
    pub(super) pods: Pods,
    /// Notified by containers.
    pub(super) changed: Arc<Notify>,
    /// Containers by the uid of their pod.
    pub(super) running: HashMap<String, JoinSet<()>>,
    /// Deleted pods whose directories still exist, because their processes have not exited.
    pub(super) remains: Vec<PodPlacement>,
}

impl PodSync {
    /// Runs until `end` resolves; then no process is left.
    pub(super) async fn run(mut self, end: impl Future<Output = ()>) {
        if let Err(status) = self.register() {
            tracing::warn!(message = status.message, "the node is not registered");
        }
        let work = async {
            loop {
                if let Err(status) = self.reconcile_on_changes().await {
                    // The watch fell behind: resync.
                    tracing::debug!(
                        message = status.message,
                        "the node restarts its synchronization"
                    );
                }
            }
        };
        tokio::select! {
            () = work => {}
            () = end => {}
        }
        self.end_all().await;
    }

    fn register(&self) -> Result<(), Status> {
        let nodes = GroupResource::new("", "nodes");
        if self.store.get(&nodes, "", NODE_NAME).is_ok() {
            return Ok(());
        }
        self.store
            .create(&nodes, "", node_object::node(now())?)
            .map(drop)
    }

    async fn reconcile_on_changes(&mut self) -> Result<(), Status> {
        let mut watch: StoreWatch = self.store.watch(&pods(), "")?;
        loop {
            let due = self.sync().await?;
            let changed = self.changed.clone();
            let due = async {
                match due {
                    Some(due) => sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                news = watch.next() => drop(news?),
                () = changed.notified() => {}
                () = due => {}
            }
        }
    }

    /// Reconciles all pods; returns when the next active deadline expires.
    async fn sync(&mut self) -> Result<Option<Instant>, Status> {
        let listed = self.store.list(&pods(), "")?;
        let mut wanted = BTreeMap::new();
        for pod in &listed.items {
            wanted.insert(pod.uid().to_owned(), pod.clone());
        }
        let known: Vec<_> = self.pods.lock().values().cloned().collect();
        let mut next = None;
        for pod in known {
            match wanted.get(&pod.plan.uid) {
                Some(object) if object.deletion_timestamp().is_none() => {
                    match pod.due(object) {
                        Some(due) if due <= Instant::now() => pod.end(grace(object)),
                        Some(due) => next = next.into_iter().chain([due]).min(),
                        None => {}
                    }
                    self.update_status(object, &pod);
                }
                Some(object) => self.terminate(object, &pod).await,
                // It was deleted without grace.
                None => {
                    pod.end(Duration::ZERO);
                    self.remove_pod(&pod).await;
                }
            }
        }
        for object in wanted.values() {
            if !self.pods.lock().contains_key(object.uid()) {
                self.admit(object);
            }
        }
        self.remove_unused_directories();
        if !self.remains.is_empty() {
            let soon = Instant::now() + CLEANUP_INTERVAL;
            next = next.into_iter().chain([soon]).min();
        }
        Ok(next)
    }

    /// Handles a pod that does not run yet.
    fn admit(&mut self, object: &Object) {
        let node = object.text(&["spec", "nodeName"]);
        let phase = object.text(&["status", "phase"]);
        if object.deletion_timestamp().is_some() {
            if node.is_empty() || node == NODE_NAME {
                self.remove(object.namespace(), object.name(), object.uid());
            }
            return;
        }
        if matches!(phase, "Succeeded" | "Failed") || !(node.is_empty() || node == NODE_NAME) {
            return;
        }
        let gated = object.at(&["spec", "schedulingGates"]);
        if gated
            .and_then(Value::as_array)
            .is_some_and(|it| !it.is_empty())
        {
            return;
        }
        if let Err(error) = self.start(object) {
            self.report_failure(object, &error.to_string());
        }
    }

    fn start(&mut self, object: &Object) -> std::io::Result<()> {
        let (address, directory) = self.placement()?;
        if object.text(&["spec", "nodeName"]).is_empty() {
            let bound = self.modify(object, Part::Main, |pod| {
                pod.set(&["spec", "nodeName"], NODE_NAME);
            });
            if bound.is_err() {
                // It was deleted meanwhile.
                return Ok(());
            }
        }
        let directory = directory.join(object.uid());
        ensure_private_dir(&directory)?;
        let placement = PodPlacement {
            pod: object.uid().to_owned(),
            address,
            directory,
            node: NODE_NAME.to_owned(),
        };
        let plan = PodPlan::of(object, &placement);
        let (stop, stopped) = watch::channel(None);
        let containers = plan.containers.iter().cloned();
        let containers: Vec<_> = containers.map(Container::new).map(Arc::new).collect();
        let mut tasks = JoinSet::new();
        for container in &containers {
            let changed = self.changed.clone();
            tasks.spawn(container.clone().keep(
                self.launcher.clone(),
                placement.clone(),
                plan.restart,
                stopped.clone(),
                move || changed.notify_one(),
            ));
        }
        let pod = Arc::new(Pod {
            plan,
            placement,
            containers,
            started: now(),
            running_since: Instant::now(),
            stop,
        });
        self.running.insert(object.uid().to_owned(), tasks);
        self.pods.lock().insert(object.uid().to_owned(), pod);
        self.changed.notify_one();
        Ok(())
    }

    /// An unused address, and the directory of pods.
    fn placement(&self) -> std::io::Result<(IpAddr, PathBuf)> {
        let pods = self.pods.lock();
        if pods.len() >= MAX_PODS {
            return Err(std::io::Error::other("too many pods on this node"));
        }
        let taken = |address| pods.values().any(|pod| pod.placement.address == address);
        let mut all = ADDRESSES.map(|last| IpAddr::V4(Ipv4Addr::new(127, 0, 0, last)));
        let free = all.find(|address| !taken(*address));
        // Some systems have only one loopback address; then it is shared.
        let usable = free.filter(|address| TcpListener::bind((*address, 0)).is_ok());
        let address = usable.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
        Ok((address, self.directory.clone()))
    }

    /// Writes the status of a pod.
    fn update_status(&self, object: &Object, pod: &Pod) {
        let containers: Vec<_> = pod
            .containers
            .iter()
            .map(|it| (&it.plan, it.state()))
            .collect();
        let mut status = pod_status::status(
            object,
            &pod.placement,
            pod.plan.restart,
            &containers,
            pod.started,
            now(),
        );
        if pod.is_stopped() && object.deletion_timestamp().is_none() {
            status["phase"] = "Failed".into();
            status["reason"] = "DeadlineExceeded".into();
            status["message"] =
                "Pod was active on the node longer than the specified deadline".into();
        }
        if object.at(&["status"]) != Some(&status) {
            let written = self.modify(object, Part::Status, |pod| pod.set(&["status"], status));
            if let Err(status) = written {
                tracing::debug!(
                    message = status.message,
                    "the status of a pod cannot be written"
                );
            }
        }
    }

    /// Terminates a pod: it is removed from the store when its processes have exited.
    async fn terminate(&mut self, object: &Object, pod: &Arc<Pod>) {
        pod.end(grace(object));
        let tasks = self.running.get_mut(object.uid());
        let over = tasks.is_none_or(|tasks| {
            while tasks.try_join_next().is_some() {}
            tasks.is_empty()
        });
        if !over {
            return;
        }
        self.update_status(object, pod);
        self.remove_pod(pod).await;
        self.remove(object.namespace(), object.name(), object.uid());
    }

    fn remove(&self, namespace: &str, name: &str, uid: &str) {
        let preconditions = Preconditions {
            uid: Some(uid.to_owned()),
            resource_version: None,
        };
        // It may have been removed already.
        let _ = self.store.delete(&pods(), namespace, name, &preconditions);
    }

    /// Ends all processes of a pod.
    async fn remove_pod(&mut self, pod: &Pod) {
        if let Some(mut tasks) = self.running.remove(&pod.plan.uid) {
            // Dropped processes are killed.
            tasks.shutdown().await;
        }
        self.pods.lock().remove(&pod.plan.uid);
        self.remains.push(pod.placement.clone());
    }

    /// Removes the directories of deleted pods whose processes have exited.
    fn remove_unused_directories(&mut self) {
        let launcher = &self.launcher;
        self.remains.retain(|placement| {
            let in_use = !launcher.running(&placement.pod).is_empty();
            if !in_use {
                let _ = fs::remove_dir_all(&placement.directory);
            }
            in_use
        });
    }

    fn report_failure(&self, object: &Object, why: &str) {
        let message = Value::from(why);
        if object.at(&["status", "message"]) == Some(&message) {
            return;
        }
        let _ = self.modify(object, Part::Status, |pod| {
            pod.set(&["status", "reason"], "OutOfpods");
            pod.set(&["status", "message"], message);
        });
    }

    fn modify(
        &self,
        object: &Object,
        part: Part,
        change: impl FnOnce(&mut Object),
    ) -> Result<Arc<Object>, Status> {
        let uid = object.uid().to_owned();
        let (namespace, name) = (object.namespace(), object.name());
        self.store.modify(&pods(), namespace, name, part, |found| {
            // A pod of the same name with another uid is a different pod.
            if found.uid() == uid {
                change(found);
            }
        })
    }

    async fn end_all(&mut self) {
        let pods: Vec<_> = self.pods.lock().values().cloned().collect();
        for pod in &pods {
            pod.end(SHUTDOWN_GRACE);
        }
        let deadline = Instant::now() + SHUTDOWN_GRACE + KILL_TIMEOUT;
        for tasks in self.running.values_mut() {
            let left = deadline.saturating_duration_since(Instant::now());
            let _ = timeout(left, async { while tasks.join_next().await.is_some() {} }).await;
        }
        for pod in pods {
            self.remove_pod(&pod).await;
        }
        // Including commands beside containers. It may block: no other task runs on this thread.
        self.launcher.end_all(KILL_TIMEOUT);
        self.remove_unused_directories();
    }
}

impl Pod {
    /// When its active deadline expires, if it has one and has not ended.
    fn due(&self, object: &Object) -> Option<Instant> {
        let seconds = object.at(&["spec", "activeDeadlineSeconds"])?.as_u64()?;
        let phase = object.text(&["status", "phase"]);
        if matches!(phase, "Succeeded" | "Failed") {
            return None;
        }
        let limit = Duration::from_secs(seconds.min(u64::from(u32::MAX)));
        Some(self.running_since + limit)
    }

    fn is_stopped(&self) -> bool {
        self.stop.borrow().is_some()
    }

    fn end(&self, grace: Duration) {
        self.stop.send_if_modified(|stop| {
            let sooner = stop.is_none_or(|before| grace < before);
            if sooner {
                *stop = Some(grace);
            }
            sooner
        });
    }
}

fn pods() -> GroupResource {
    GroupResource::new("", "pods")
}

fn now() -> Time {
    Time::from(SystemTime::now())
}
