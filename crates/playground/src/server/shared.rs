//! The store that servers of all versions share, with a clock, dice, and a bell that
//! rings when something has happened.

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
use crate::select::Selection;
use crate::status::{GroupResource, unknown_resource};
use crate::store::{Deletion, Effect, ListOptions, Listed, Occasion, Preconditions, Store};
use crate::strategy::{Definition, Part};
use crate::time::Moment;
use crate::watch::{Beginning, Change, Watcher};

/// One store for all servers, and for whoever runs beside them: a clone is the same
/// store.
///
/// Its own methods are those of a controller that nobody has to authorise: a node
/// registers itself, watches pods and writes what has become of them.
#[derive(Debug, Clone)]
pub struct SharedStore(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    store: Mutex<Store>,
    /// The version of the store: it changes with every write.
    version: watch::Sender<u64>,
    definitions: BTreeMap<GroupResource, Definition>,
    /// Held by the server whose controllers work.
    leader: tokio::sync::Mutex<()>,
}

/// Why there is no store.
#[derive(Debug, thiserror::Error)]
pub enum ShareError {
    /// The program's own data.
    #[error("the discovery documents of the playground cannot be read: {0}")]
    Catalogue(#[from] ParseError),
    /// The program's own objects.
    #[error("the first objects of the cluster cannot be made: {}", .0.message)]
    Initial(Status),
}

impl SharedStore {
    /// With what every cluster has: its namespaces, its roles, and the service of the API.
    pub fn new() -> Result<Self, ShareError> {
        Self::over(Store::default())
    }

    /// Over a store.
    pub fn over(store: Store) -> Result<Self, ShareError> {
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
        shared.make_initial_objects().map_err(ShareError::Initial)?;
        Ok(shared)
    }

    fn make_initial_objects(&self) -> Result<(), Status> {
        self.write(Effect::Lasting, namespaces::create_initial)?;
        self.write(Effect::Lasting, rbac::stored::create_initial)?;
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

    /// What is known of a resource, if any version of the playground has it.
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

    /// All objects of a resource, in a namespace or in all (an empty one).
    pub fn list(&self, resource: &GroupResource, namespace: &str) -> Result<Listed, Status> {
        let (all, options) = (Selection::default(), ListOptions::default());
        self.read(|store| store.list(resource, namespace, &all, &options))
    }

    /// Makes a new object.
    pub fn create(
        &self,
        resource: &GroupResource,
        namespace: &str,
        object: Object,
    ) -> Result<Arc<Object>, Status> {
        let definition = self.definition(resource)?;
        self.write(Effect::Lasting, |store, occasion| {
            namespaces::admit_creation(store, definition, namespace, object.name())?;
            store.create(definition, namespace, object, occasion)
        })
    }

    /// Changes a part of an object that is there, whatever its version is now: nobody
    /// can write in between.
    pub fn modify(
        &self,
        resource: &GroupResource,
        namespace: &str,
        name: &str,
        part: Part,
        change: impl FnOnce(&mut Object),
    ) -> Result<Arc<Object>, Status> {
        let definition = self.definition(resource)?;
        self.write(Effect::Lasting, |store, occasion| {
            let mut object = Object::clone(&*store.get(definition, namespace, name)?);
            change(&mut object);
            store.update(definition, namespace, name, object, part, occasion)
        })
    }

    /// Ends an object without grace: for a pod, what the node says when its processes
    /// are gone.
    ///
    /// A pod that is on a node and is deleted by a client gets a `deletionTimestamp`
    /// and stays until the node calls this.
    pub fn delete(
        &self,
        resource: &GroupResource,
        namespace: &str,
        name: &str,
        preconditions: &Preconditions,
    ) -> Result<Deletion, Status> {
        let definition = self.definition(resource)?;
        self.write(Effect::Lasting, |store, occasion| {
            store.delete(definition, namespace, name, preconditions, occasion)
        })
    }

    /// Watches a resource, in a namespace or in all (an empty one), beginning with what
    /// is there.
    pub fn watch(&self, resource: &GroupResource, namespace: &str) -> Result<StoreWatch, Status> {
        let all = Selection::default();
        self.watch_selected(resource, namespace, all, "", Beginning::Unsaid)
    }

    /// Watches what is selected, from a version on as a client writes it.
    pub fn watch_selected(
        &self,
        resource: &GroupResource,
        namespace: &str,
        selection: Selection,
        resource_version: &str,
        beginning: Beginning,
    ) -> Result<StoreWatch, Status> {
        // First the bell, then the store: nothing can happen unheard in between.
        let bell = self.0.version.subscribe();
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
            bell,
        })
    }

    /// The latest version.
    pub fn version(&self) -> u64 {
        self.lock().version()
    }

    /// Looks at the store while nobody writes.
    pub fn read<T>(&self, look: impl FnOnce(&Store) -> T) -> T {
        look(&self.lock())
    }

    /// Writes to the store, and tells everybody who waits.
    pub fn write<T>(
        &self,
        effect: Effect,
        write: impl FnOnce(&mut Store, &mut Occasion<'_>) -> Result<T, Status>,
    ) -> Result<T, Status> {
        let mut store = self.lock();
        let mut occasion = Occasion {
            now: now(),
            entropy: &mut entropy,
            effect,
        };
        let written = write(&mut store, &mut occasion);
        // Rung while the store is held, or it could ring for an older version last.
        let version = store.version();
        self.0
            .version
            .send_if_modified(|last| std::mem::replace(last, version) != version);
        written
    }

    /// Rings with every write.
    pub(super) fn bell(&self) -> watch::Receiver<u64> {
        self.0.version.subscribe()
    }

    /// Waits to be the one whose controllers work.
    pub(super) async fn lead(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.0.leader.lock().await
    }

    fn lock(&self) -> MutexGuard<'_, Store> {
        // A write that panicked has changed nothing or all: the store changes in its
        // last step.
        self.0.store.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What happens to a resource, as it happens.
#[derive(Debug)]
pub struct StoreWatch {
    store: SharedStore,
    watcher: Watcher,
    first: Vec<Change>,
    bell: watch::Receiver<u64>,
}

impl StoreWatch {
    /// What has happened since the last call, in order and never nothing; 410 if the
    /// caller was away for too long. Nothing is lost if it is dropped while it waits.
    pub async fn next(&mut self) -> Result<Vec<Change>, Status> {
        if !self.first.is_empty() {
            return Ok(self.take_first());
        }
        loop {
            self.bell.mark_unchanged();
            let news = self.store.read(|store| self.watcher.news(store))?;
            if !news.is_empty() {
                return Ok(news);
            }
            if self.bell.changed().await.is_err() {
                // The bell is part of the store that is held here.
                return std::future::pending().await;
            }
        }
    }

    /// What was there when it began, unless that was taken already.
    pub(super) fn take_first(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.first)
    }

    /// How far it has come: with all that was taken from it.
    pub fn bookmark(&self) -> Change {
        self.watcher.bookmark()
    }
}

/// What time it is.
pub(super) fn now() -> Moment {
    Moment::from(SystemTime::now())
}

/// For uids and names, which have to be unique and not secret.
pub(super) fn entropy() -> u64 {
    RandomState::new().build_hasher().finish()
}
