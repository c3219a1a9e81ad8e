//! Runs what the store says, and tells the store what has become of it: the node's
//! one task, the owner of all processes of pods.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use serde_json::Value;
use skewbridge_k8s_api::status::Status;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use super::container::Container;
use super::node_object::{self, MOST_PODS, NODE_NAME};
use super::plan::{Place, PodPlan, grace};
use super::pod_status;
use super::process::{DYING, Launcher};
use crate::object::Object;
use crate::server::{SharedStore, StoreWatch};
use crate::status::GroupResource;
use crate::store::Preconditions;
use crate::strategy::Part;
use crate::time::Moment;

/// How long all pods together may take to end with the playground.
const LAST_GRACE: Duration = Duration::from_millis(500);

/// Between two looks whether the processes of a pod that is gone are gone, too.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Addresses of pods: 127.0.0.2 and on, all of them loopback.
const ADDRESSES: std::ops::RangeInclusive<u8> = 2..=254;

/// The pods that run, for those who want to talk to them.
#[derive(Debug, Clone, Default)]
pub(super) struct Pods(Arc<Mutex<BTreeMap<String, Arc<Pod>>>>);

/// A pod that runs.
#[derive(Debug)]
pub(super) struct Pod {
    pub(super) plan: PodPlan,
    pub(super) place: Place,
    pub(super) containers: Vec<Arc<Container>>,
    started: Moment,
    begun: Instant,
    /// Tells its containers to end, and within what time.
    stop: watch::Sender<Option<Duration>>,
}

impl Pods {
    /// The one of this uid.
    pub(super) fn get(&self, uid: &str) -> Option<Arc<Pod>> {
        self.lock().get(uid).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Pod>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The task.
pub(super) struct Keeper {
    pub(super) store: SharedStore,
    pub(super) launcher: Launcher,
    pub(super) directory: PathBuf,
    pub(super) pods: Pods,
    /// Rung by containers.
    pub(super) changed: Arc<Notify>,
    /// Containers by the uid of their pod.
    pub(super) running: HashMap<String, JoinSet<()>>,
    /// Of pods that are gone, whose directories are there while their processes are: no
    /// more than there are of these.
    pub(super) remains: Vec<Place>,
}

impl Keeper {
    /// Works until it is told to end; then nothing runs any more.
    pub(super) async fn run(mut self, end: impl Future<Output = ()>) {
        if let Err(status) = self.register() {
            tracing::warn!(message = status.message, "the node is not registered");
        }
        let work = async {
            loop {
                if let Err(status) = self.work().await {
                    // The watch fell behind: all is looked at again.
                    tracing::debug!(message = status.message, "the node begins again");
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

    async fn work(&mut self) -> Result<(), Status> {
        let mut watch: StoreWatch = self.store.watch(&pods(), "")?;
        loop {
            let due = self.look().await?;
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

    /// Makes what runs what is wanted; tells when the next pod has had its time.
    async fn look(&mut self) -> Result<Option<Instant>, Status> {
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
                    self.tell(object, &pod);
                }
                Some(object) => self.leave(object, &pod).await,
                // Somebody took it away without grace.
                None => {
                    pod.end(Duration::ZERO);
                    self.forget(&pod).await;
                }
            }
        }
        for object in wanted.values() {
            if !self.pods.lock().contains_key(object.uid()) {
                self.meet(object);
            }
        }
        self.clear_away();
        if !self.remains.is_empty() {
            let soon = Instant::now() + LOOK_AGAIN;
            next = next.into_iter().chain([soon]).min();
        }
        Ok(next)
    }

    /// A pod that is not run yet.
    fn meet(&mut self, object: &Object) {
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
            self.complain(object, &error.to_string());
        }
    }

    fn start(&mut self, object: &Object) -> std::io::Result<()> {
        let (address, directory) = self.place()?;
        if object.text(&["spec", "nodeName"]).is_empty() {
            let bound = self.modify(object, Part::Main, |pod| {
                pod.set(&["spec", "nodeName"], NODE_NAME);
            });
            if bound.is_err() {
                // It is gone already.
                return Ok(());
            }
        }
        let directory = directory.join(object.uid());
        private_directory(&directory)?;
        let place = Place {
            pod: object.uid().to_owned(),
            address,
            directory,
            node: NODE_NAME.to_owned(),
        };
        let plan = PodPlan::of(object, &place);
        let (stop, stopped) = watch::channel(None);
        let containers = plan.containers.iter().cloned();
        let containers: Vec<_> = containers.map(Container::new).map(Arc::new).collect();
        let mut tasks = JoinSet::new();
        for container in &containers {
            let changed = self.changed.clone();
            tasks.spawn(container.clone().keep(
                self.launcher.clone(),
                place.clone(),
                plan.restart,
                stopped.clone(),
                move || changed.notify_one(),
            ));
        }
        let pod = Arc::new(Pod {
            plan,
            place,
            containers,
            started: now(),
            begun: Instant::now(),
            stop,
        });
        self.running.insert(object.uid().to_owned(), tasks);
        self.pods.lock().insert(object.uid().to_owned(), pod);
        self.changed.notify_one();
        Ok(())
    }

    /// An address that no other pod has, and where directories are.
    fn place(&self) -> std::io::Result<(IpAddr, PathBuf)> {
        let pods = self.pods.lock();
        if pods.len() >= MOST_PODS {
            return Err(std::io::Error::other("too many pods on this node"));
        }
        let taken = |address| pods.values().any(|pod| pod.place.address == address);
        let mut all = ADDRESSES.map(|last| IpAddr::V4(Ipv4Addr::new(127, 0, 0, last)));
        let free = all.find(|address| !taken(*address));
        // Some systems have only one address of loopback; it is shared then.
        let usable = free.filter(|address| TcpListener::bind((*address, 0)).is_ok());
        let address = usable.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
        Ok((address, self.directory.clone()))
    }

    /// Says what has become of a pod.
    fn tell(&self, object: &Object, pod: &Pod) {
        let containers: Vec<_> = pod
            .containers
            .iter()
            .map(|it| (&it.plan, it.state()))
            .collect();
        let mut status = pod_status::status(
            object,
            &pod.place,
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
            let told = self.modify(object, Part::Status, |pod| pod.set(&["status"], status));
            if let Err(status) = told {
                tracing::debug!(message = status.message, "a pod's status is not written");
            }
        }
    }

    /// A pod that is to end: it gets its time, and is gone when its processes are.
    async fn leave(&mut self, object: &Object, pod: &Arc<Pod>) {
        pod.end(grace(object));
        let tasks = self.running.get_mut(object.uid());
        let over = tasks.is_none_or(|tasks| {
            while tasks.try_join_next().is_some() {}
            tasks.is_empty()
        });
        if !over {
            return;
        }
        self.tell(object, pod);
        self.forget(pod).await;
        self.remove(object.namespace(), object.name(), object.uid());
    }

    fn remove(&self, namespace: &str, name: &str, uid: &str) {
        let preconditions = Preconditions {
            uid: Some(uid.to_owned()),
            resource_version: None,
        };
        // Somebody else may have been faster.
        let _ = self.store.delete(&pods(), namespace, name, &preconditions);
    }

    /// Ends what is left of a pod.
    async fn forget(&mut self, pod: &Pod) {
        if let Some(mut tasks) = self.running.remove(&pod.plan.uid) {
            // Dropped processes are killed.
            tasks.shutdown().await;
        }
        self.pods.lock().remove(&pod.plan.uid);
        self.remains.push(pod.place.clone());
    }

    /// Removes the directories of pods that are gone, once nobody is left to write there.
    fn clear_away(&mut self) {
        let launcher = &self.launcher;
        self.remains.retain(|place| {
            let in_use = !launcher.running(&place.pod).is_empty();
            if !in_use {
                let _ = fs::remove_dir_all(&place.directory);
            }
            in_use
        });
    }

    fn complain(&self, object: &Object, why: &str) {
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
            // Another pod of the same name is not the one that is meant.
            if found.uid() == uid {
                change(found);
            }
        })
    }

    async fn end_all(&mut self) {
        let pods: Vec<_> = self.pods.lock().values().cloned().collect();
        for pod in &pods {
            pod.end(LAST_GRACE);
        }
        let deadline = Instant::now() + LAST_GRACE + DYING;
        for tasks in self.running.values_mut() {
            let left = deadline.saturating_duration_since(Instant::now());
            let _ = timeout(left, async { while tasks.join_next().await.is_some() {} }).await;
        }
        for pod in pods {
            self.forget(&pod).await;
        }
        // Commands beside containers as well. Nobody else is kept waiting here any more.
        self.launcher.end_all(DYING);
        self.clear_away();
    }
}

impl Pod {
    /// When it has had its time, if that is limited and it has not come to its end.
    fn due(&self, object: &Object) -> Option<Instant> {
        let seconds = object.at(&["spec", "activeDeadlineSeconds"])?.as_u64()?;
        let phase = object.text(&["status", "phase"]);
        if matches!(phase, "Succeeded" | "Failed") {
            return None;
        }
        let limit = Duration::from_secs(seconds.min(u64::from(u32::MAX)));
        Some(self.begun + limit)
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

fn now() -> Moment {
    Moment::from(SystemTime::now())
}

/// Only for who runs the playground.
pub(super) fn private_directory(path: &Path) -> std::io::Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
}
