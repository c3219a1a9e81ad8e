//! The store that servers of all versions share, with a clock, random numbers and change
//! notifications.

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use serde_json::json;
use skewbridge_discovery::ParseError;
use skewbridge_k8s_api::status::Status;
use tokio::sync::watch;

use crate::catalogue::{Catalogue, Release};
use crate::namespaces;
use crate::object::Object;
use crate::rbac;
use crate::resource_strategy::{Definition, Part};
use crate::selectors::Selection;
use crate::status::{GroupResource, unknown_resource};
use crate::store::{Deletion, DryRun, ListOptions, ListPage, Preconditions, Store, WriteContext};
use crate::time::Time;
use crate::watch::{Change, WatchStart, Watcher};

/// One store for all servers and the node. Clones share it.
///
/// Its methods need no authorization. The node uses them: it registers itself, watches pods and
/// writes their status.
#[derive(Debug, Clone)]
pub struct SharedStore(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    store: Mutex<Store>,
    /// The version of the store: it changes with every write.
    version: watch::Sender<u64>,
    definitions: BTreeMap<GroupResource, Definition>,
    /// Held by the server whose controllers are active.
    leader: tokio::sync::Mutex<()>,
}

/// Why the store could not be created.
#[derive(Debug, thiserror::Error)]
pub enum SharedStoreError {
    /// The program's own data.
    #[error("the discovery documents of the playground cannot be read: {0}")]
    Catalogue(#[from] ParseError),
    /// The program's own objects.
    #[error("the initial objects of the cluster cannot be created: {}", .0.message)]
    Initial(Status),
}

impl SharedStore {
    /// With the initial objects of a cluster: namespaces, roles, and the service of the API.
    pub fn new() -> Result<Self, SharedStoreError> {
        Self::with_store(Store::default())
    }

    /// Shares a store.
    pub fn with_store(store: Store) -> Result<Self, SharedStoreError> {
        let mut definitions = BTreeMap::new();
        for release in Release::ALL {
            let catalogue = Catalogue::new(release)?;
            for served in catalogue.preferred() {
                definitions.insert(served.group_resource(), Definition::of(&served));
            }
        }
        let shared = Self(Arc::new(Shared {
            version: watch::Sender::new(store.version()),
            store: Mutex::new(store),
            definitions,
            leader: tokio::sync::Mutex::new(()),
        }));
        shared
            .make_initial_objects()
            .map_err(SharedStoreError::Initial)?;
        Ok(shared)
    }

    fn make_initial_objects(&self) -> Result<(), Status> {
        self.write(DryRun::Off, namespaces::create_initial)?;
        self.write(DryRun::Off, rbac::roles::create_initial)?;
        let service = Object::new(json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {
                "name": "kubernetes",
                "labels": {"component": "apiserver", "provider": "kubernetes"},
            },
            "spec": {
                "type": "ClusterIP",
                "clusterIP": "10.96.0.1",
                "clusterIPs": ["10.96.0.1"],
                "ipFamilies": ["IPv4"],
                "ipFamilyPolicy": "SingleStack",
                "internalTrafficPolicy": "Cluster",
                "sessionAffinity": "None",
                "ports": [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": 6443}],
            },
        }))?;
        let services = GroupResource::new("", "services");
        if self.get(&services, "default", "kubernetes").is_err() {
            self.create(&services, "default", service)?;
        }
        Ok(())
    }

    /// The definition of a resource, if any version of the playground has it.
    pub fn definition(&self, resource: &GroupResource) -> Result<&Definition, Status> {
        let found = self.0.definitions.get(resource);
        found.ok_or_else(unknown_resource)
    }

    /// An object.
    pub fn get(
        &self,
        resource: &GroupResource,
        namespace: &str,
        name: &str,
    ) -> Result<Arc<Object>, Status> {
        let definition = self.definition(resource)?;
        self.read(|store| store.get(definition, namespace, name))
    }

    /// All objects of a resource, in a namespace or in all (empty).
    pub fn list(&self, resource: &GroupResource, namespace: &str) -> Result<ListPage, Status> {
        let (all, options) = (Selection::default(), ListOptions::default());
        self.read(|store| store.list(resource, namespace, &all, &options))
    }

    /// Creates an object.
    pub fn create(
        &self,
        resource: &GroupResource,
        namespace: &str,
        object: Object,
    ) -> Result<Arc<Object>, Status> {
        let definition = self.definition(resource)?;
        self.write(DryRun::Off, |store, context| {
            namespaces::admit_creation(store, definition, namespace, object.name())?;
            store.create(definition, namespace, object, context)
        })
    }

    /// Changes a part of an object atomically, whatever its version.
    pub fn modify(
        &self,
        resource: &GroupResource,
        namespace: &str,
        name: &str,
        part: Part,
        change: impl FnOnce(&mut Object),
    ) -> Result<Arc<Object>, Status> {
        let definition = self.definition(resource)?;
        self.write(DryRun::Off, |store, context| {
            let mut object = Object::clone(&*store.get(definition, namespace, name)?);
            change(&mut object);
            store.update(definition, namespace, name, object, part, context)
        })
    }

    /// Deletes an object without grace: for a pod, the node calls it when its processes have
    /// exited.
    ///
    /// A pod that is bound to a node and is deleted by a client gets a `deletionTimestamp`, and
    /// stays until the node calls this.
    pub fn delete(
        &self,
        resource: &GroupResource,
        namespace: &str,
        name: &str,
        preconditions: &Preconditions,
    ) -> Result<Deletion, Status> {
        let definition = self.definition(resource)?;
        self.write(DryRun::Off, |store, context| {
            store.delete(definition, namespace, name, preconditions, context)
        })
    }

    /// Watches a resource, in a namespace or in all (empty), starting with the current objects.
    pub fn watch(&self, resource: &GroupResource, namespace: &str) -> Result<StoreWatch, Status> {
        let all = Selection::default();
        self.watch_selected(resource, namespace, all, "", WatchStart::Default)
    }

    /// Watches the selected objects, from a client's resource version on.
    pub fn watch_selected(
        &self,
        resource: &GroupResource,
        namespace: &str,
        selection: Selection,
        resource_version: &str,
        beginning: WatchStart,
    ) -> Result<StoreWatch, Status> {
        // Subscribe before reading the store, so that no change is missed.
        let changed = self.0.version.subscribe();
        let (watcher, first) = self.read(|store| {
            Watcher::start(
                store,
                resource,
                namespace,
                selection,
                resource_version,
                beginning,
            )
        })?;
        Ok(StoreWatch {
            store: self.clone(),
            watcher,
            first,
            changed,
        })
    }

    /// Reads the store under its lock.
    pub fn read<T>(&self, look: impl FnOnce(&Store) -> T) -> T {
        look(&self.lock())
    }

    /// Writes to the store, and notifies watchers.
    pub fn write<T>(
        &self,
        dry_run: DryRun,
        write: impl FnOnce(&mut Store, &mut WriteContext<'_>) -> Result<T, Status>,
    ) -> Result<T, Status> {
        let mut store = self.lock();
        let mut context = WriteContext {
            now: now(),
            entropy: &mut entropy,
            dry_run,
        };
        let written = write(&mut store, &mut context);
        // Sent under the lock, so that versions are sent in order.
        let version = store.version();
        self.0
            .version
            .send_if_modified(|last| std::mem::replace(last, version) != version);
        written
    }

    /// Changes with every write.
    pub(super) fn changed(&self) -> watch::Receiver<u64> {
        self.0.version.subscribe()
    }

    /// Waits for the leadership of the controllers.
    pub(super) async fn lock_leadership(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.0.leader.lock().await
    }

    fn lock(&self) -> MutexGuard<'_, Store> {
        // A write that panicked has either been done completely or not at all: the store changes in
        // its last step.
        self.0.store.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A watch of a resource.
#[derive(Debug)]
pub struct StoreWatch {
    store: SharedStore,
    watcher: Watcher,
    first: Vec<Change>,
    changed: watch::Receiver<u64>,
}

impl StoreWatch {
    /// The changes since the last call, in order, at least one; 410 if the history no longer has
    /// them. It is cancellation-safe.
    pub async fn next(&mut self) -> Result<Vec<Change>, Status> {
        if !self.first.is_empty() {
            return Ok(self.take_first());
        }
        loop {
            self.changed.mark_unchanged();
            let news = self.store.read(|store| self.watcher.poll_changes(store))?;
            if !news.is_empty() {
                return Ok(news);
            }
            if self.changed.changed().await.is_err() {
                // The sender is part of the store, which is kept alive here.
                return std::future::pending().await;
            }
        }
    }

    /// The initial objects, unless they were taken already.
    pub(super) fn take_first(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.first)
    }

    /// A bookmark after all changes that were returned.
    pub fn bookmark(&self) -> Change {
        self.watcher.bookmark()
    }
}

/// The current time.
pub(super) fn now() -> Time {
    Time::from(SystemTime::now())
}

/// For uids and names, which must be unique and not secret.
pub(super) fn entropy() -> u64 {
    RandomState::new().build_hasher().finish()
}
