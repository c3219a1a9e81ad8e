//! All objects of the cluster and their history, in one sequence of versions: the counterpart of
//! etcd and of kube-apiserver's registry. Servers of all versions share it.

pub mod event_log;
pub mod list;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;
use skewbridge_k8s_api::status::Status;

use crate::conversion::storage_resource;
use crate::name_validation::NameRule;
use crate::object::{Object, generate_uid};
use crate::resource_strategy::{Definition, Part, Scope};
use crate::status::{self, FieldError, GroupResource};
use crate::time::Time;

use event_log::EventLog;
pub use event_log::{Event, EventKind};
pub use list::{ListOptions, ListPage, VersionMatch};

/// Attempts to find an unused generated name: kube-apiserver's limit.
const MAX_NAME_ATTEMPTS: usize = 8;

/// The default history for watches and consistent lists: a playground writes a few events a
/// second, so this is more than ten minutes.
pub const DEFAULT_HISTORY: History = History {
    events: 10_000,
    bytes: 8 * 1024 * 1024,
};

/// The largest object, as JSON: etcd's limit for a request.
const MAX_OBJECT_BYTES: usize = 3 * 512 * 1024;

/// All objects together, as JSON; in memory they are several times as large. Enough for ten
/// thousands of pods, and little enough to stop a client that creates objects without end.
const MAX_STORE_BYTES: usize = 64 * 1024 * 1024;

/// The limit that includes writes to terminating objects, so that a full store can be emptied:
/// until their finalizers are removed, they get a deletion timestamp, and namespaces get
/// conditions. These additions are far smaller than the objects.
const MAX_STORE_BYTES_WITH_TERMINATING: usize = 2 * MAX_STORE_BYTES;

/// The limits of the history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct History {
    /// Maximum number of events.
    pub events: usize,
    /// Total size of their objects, as JSON. The last event is kept even if it is larger.
    pub bytes: usize,
}

impl History {
    /// This many events, of usual sizes.
    pub fn of(events: usize) -> Self {
        Self {
            events,
            ..DEFAULT_HISTORY
        }
    }
}

/// The key of an object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Without the version.
    pub resource: GroupResource,
    /// Empty for a cluster-scoped object.
    pub namespace: String,
    /// The name of the object.
    pub name: String,
}

/// The store.
#[derive(Debug)]
pub struct Store {
    objects: BTreeMap<Key, Arc<Object>>,
    /// The size of all objects.
    bytes: usize,
    log: EventLog,
}

/// The time and the random numbers of a write: the store has neither.
pub struct WriteContext<'a> {
    /// The time.
    pub now: Time,
    /// Random numbers for uids and generated names.
    pub entropy: &'a mut dyn FnMut() -> u64,
    /// Whether it is a dry run.
    pub dry_run: DryRun,
}

/// Whether a write is a dry run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DryRun {
    /// The write is done.
    Off,
    /// The write is only validated.
    On,
}

/// Preconditions of a deletion.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Preconditions {
    /// The required uid.
    pub uid: Option<String>,
    /// The required resource version.
    pub resource_version: Option<String>,
}

/// The result of a deletion.
#[derive(Debug, Clone, PartialEq)]
pub enum Deletion {
    /// The object was removed; this is its last state.
    Removed(Arc<Object>),
    /// The object waits for its finalizers or grace period.
    Pending(Arc<Object>),
}

impl Default for Store {
    fn default() -> Self {
        Self::new(DEFAULT_HISTORY)
    }
}

impl Store {
    /// An empty store with this history.
    pub fn new(history: History) -> Self {
        Self {
            objects: BTreeMap::new(),
            bytes: 0,
            log: EventLog::new(history),
        }
    }

    /// Increases with every write.
    pub fn version(&self) -> u64 {
        self.log.version()
    }

    /// The events after a version, in order; 410 if the history no longer has them.
    pub fn events_after(&self, version: u64) -> Result<impl Iterator<Item = &Event>, Status> {
        self.log.after(version)
    }

    /// An object.
    pub fn get(
        &self,
        definition: &Definition,
        namespace: &str,
        name: &str,
    ) -> Result<Arc<Object>, Status> {
        let found = self.objects.get(&key(definition, namespace, name));
        found
            .cloned()
            .ok_or_else(|| status::not_found(&definition.resource, name))
    }

    /// All objects, of all resources.
    pub fn all(&self) -> impl Iterator<Item = (&Key, &Arc<Object>)> {
        self.objects.iter()
    }

    /// All objects in a namespace, of all resources.
    pub fn in_namespace(&self, namespace: &str) -> impl Iterator<Item = (&Key, &Arc<Object>)> {
        let all = self.objects.iter();
        all.filter(move |(key, _)| key.namespace == namespace)
    }

    /// Creates an object.
    pub fn create(
        &mut self,
        definition: &Definition,
        namespace: &str,
        mut object: Object,
        context: &mut WriteContext<'_>,
    ) -> Result<Arc<Object>, Status> {
        settle_namespace(definition, namespace, &mut object)?;
        if !object.resource_version().is_empty() {
            let message = "resourceVersion should not be set on objects to be created";
            return Err(Status::new(500, "", message));
        }
        let made_up = object.name().is_empty();
        for attempt in 1.. {
            if made_up {
                object.remove(&["metadata", "name"]);
                object.generate_missing_name(context.entropy);
            }
            check_name(definition, &object)?;
            let Some(there) = self.objects.get(&key(definition, namespace, object.name())) else {
                break;
            };
            if made_up && attempt < MAX_NAME_ATTEMPTS {
                continue;
            }
            let mut refusal = if made_up {
                status::no_unique_name(&definition.resource, object.name())
            } else {
                status::already_exists(&definition.resource, object.name())
            };
            if there.deletion_timestamp().is_some() {
                refusal.message = format!("object is being deleted: {}", refusal.message);
            }
            return Err(refusal);
        }
        definition.prepare_new(&mut object);
        object.set(&["metadata", "uid"], generate_uid(context.entropy));
        object.set(&["metadata", "creationTimestamp"], context.now.to_string());
        let key = key(definition, namespace, object.name());
        self.commit(key, object, context.dry_run)
    }

    /// Writes a part of an existing object.
    pub fn update(
        &mut self,
        definition: &Definition,
        namespace: &str,
        name: &str,
        mut object: Object,
        part: Part,
        context: &mut WriteContext<'_>,
    ) -> Result<Arc<Object>, Status> {
        check_address(namespace, name, &object)?;
        settle_namespace(definition, namespace, &mut object)?;
        let resource = &definition.resource;
        let before = self.get(definition, namespace, name)?;
        if !matches!(object.uid(), "" | "0") && object.uid() != before.uid() {
            let why = format!(
                "Precondition failed: UID in precondition: {}, UID in object meta: {}",
                object.uid(),
                before.uid()
            );
            return Err(status::conflict(resource, name, why));
        }
        if !matches!(object.resource_version(), "" | "0")
            && object.resource_version() != before.resource_version()
        {
            return Err(status::modified_since(resource, name));
        }
        let mut next = definition.prepare_update(part, &before, object);
        next.take_from(&before, &["metadata", "resourceVersion"]);
        if next == *before {
            return Ok(before);
        }
        check_finalizers(definition, &before, &next)?;
        let key = key(definition, namespace, name);
        let is_over = next.deletion_timestamp().is_some() && grace_of(&next) == 0;
        if is_over && definition.pending_finalizers(&next).is_empty() {
            return Ok(self.end(&key, next, context.dry_run));
        }
        self.commit(key, next, context.dry_run)
    }

    /// Deletes an object, or marks it as terminating while it has finalizers.
    pub fn delete(
        &mut self,
        definition: &Definition,
        namespace: &str,
        name: &str,
        preconditions: &Preconditions,
        context: &mut WriteContext<'_>,
    ) -> Result<Deletion, Status> {
        self.delete_within(definition, namespace, name, 0, preconditions, context)
    }

    /// The same with a grace period: it stays until it is deleted without grace, as a node does
    /// with a pod whose processes have exited.
    pub fn delete_within(
        &mut self,
        definition: &Definition,
        namespace: &str,
        name: &str,
        grace: u32,
        preconditions: &Preconditions,
        context: &mut WriteContext<'_>,
    ) -> Result<Deletion, Status> {
        let before = self.get(definition, namespace, name)?;
        preconditions.check(definition, &before)?;
        let key = key(definition, namespace, name);
        if grace == 0 && definition.pending_finalizers(&before).is_empty() {
            let object = Object::clone(&before);
            return Ok(Deletion::Removed(self.end(&key, object, context.dry_run)));
        }
        let is_ending = before.deletion_timestamp().is_some();
        // The grace period can be shortened, not extended.
        if is_ending && grace_of(&before) <= i64::from(grace) {
            return Ok(Deletion::Pending(before));
        }
        let mut next = Object::clone(&before);
        let until = context.now.plus_seconds(i64::from(grace));
        next.set(&["metadata", "deletionTimestamp"], until.to_string());
        next.set(&["metadata", "deletionGracePeriodSeconds"], grace);
        if let Some(generation) = before.generation()
            && !is_ending
        {
            next.set(&["metadata", "generation"], generation + 1);
        }
        if definition.is_namespaces() {
            next.set(&["status", "phase"], "Terminating");
        }
        self.commit(key, next, context.dry_run)
            .map(Deletion::Pending)
    }

    /// The current objects of a resource, sorted.
    fn current<'a>(
        &'a self,
        resource: &'a GroupResource,
        namespace: &'a str,
    ) -> impl Iterator<Item = (&'a Key, &'a Arc<Object>)> {
        let first = Key {
            resource: resource.clone(),
            namespace: namespace.to_owned(),
            name: String::new(),
        };
        self.objects
            .range(first..)
            .take_while(move |(key, _)| key.is_within(resource, namespace))
    }

    /// Stores an object as a new version; 500 if it exceeds a limit.
    fn commit(
        &mut self,
        key: Key,
        mut object: Object,
        dry_run: DryRun,
    ) -> Result<Arc<Object>, Status> {
        let version = self.log.next_version();
        if dry_run == DryRun::Off {
            object.set(&["metadata", "resourceVersion"], version.to_string());
        }
        let size = object.size();
        if size > MAX_OBJECT_BYTES {
            return Err(status::too_large());
        }
        let before = self.objects.get(&key).map_or(0, |it| it.size());
        let bytes = self.bytes.saturating_sub(before).saturating_add(size);
        let limit = if object.deletion_timestamp().is_some() {
            MAX_STORE_BYTES_WITH_TERMINATING
        } else {
            MAX_STORE_BYTES
        };
        // A write that frees space is never refused.
        if bytes > limit && size > before {
            return Err(status::no_space());
        }
        if dry_run == DryRun::On {
            return Ok(Arc::new(object));
        }
        self.bytes = bytes;
        let object = Arc::new(object);
        let before = self.objects.insert(key.clone(), Arc::clone(&object));
        self.log.push(Event {
            version,
            kind: if before.is_some() {
                EventKind::Modified
            } else {
                EventKind::Added
            },
            key,
            object: Arc::clone(&object),
            before,
        });
        Ok(object)
    }

    /// Removes an object, with its last state.
    fn end(&mut self, key: &Key, mut object: Object, dry_run: DryRun) -> Arc<Object> {
        if dry_run == DryRun::On {
            return Arc::new(object);
        }
        let version = self.log.next_version();
        object.set(&["metadata", "resourceVersion"], version.to_string());
        let object = Arc::new(object);
        let before = self.objects.remove(key);
        let freed = before.as_ref().map_or(0, |it| it.size());
        self.bytes = self.bytes.saturating_sub(freed);
        self.log.push(Event {
            version,
            kind: EventKind::Deleted,
            key: key.clone(),
            object: Arc::clone(&object),
            before,
        });
        object
    }
}

impl Key {
    /// Whether it is of a resource, and in a namespace unless that is empty.
    pub fn is_within(&self, resource: &GroupResource, namespace: &str) -> bool {
        self.resource == *resource && (namespace.is_empty() || self.namespace == namespace)
    }
}

impl Preconditions {
    fn check(&self, definition: &Definition, object: &Object) -> Result<(), Status> {
        // This error names the kind, where others name the resource.
        let kind = GroupResource::new(&definition.resource.group, &definition.kind);
        if let Some(uid) = &self.uid
            && uid != object.uid()
        {
            let why = format!(
                "the UID in the precondition ({uid}) does not match the UID in record ({}). The \
                 object might have been deleted and then recreated",
                object.uid()
            );
            return Err(status::conflict(&kind, object.name(), why));
        }
        if let Some(version) = &self.resource_version
            && version != object.resource_version()
        {
            let why = format!(
                "the ResourceVersion in the precondition ({version}) does not match the \
                 ResourceVersion in record ({}). The object might have been modified",
                object.resource_version()
            );
            return Err(status::conflict(&kind, object.name(), why));
        }
        Ok(())
    }
}

/// The grace period of a terminating object, in seconds.
fn grace_of(object: &Object) -> i64 {
    let grace = object.at(&["metadata", "deletionGracePeriodSeconds"]);
    grace.and_then(Value::as_i64).unwrap_or_default()
}

fn key(definition: &Definition, namespace: &str, name: &str) -> Key {
    Key {
        resource: storage_resource(&definition.resource),
        namespace: match definition.scope {
            Scope::Namespaced => namespace.to_owned(),
            Scope::Cluster => String::new(),
        },
        name: name.to_owned(),
    }
}

fn settle_namespace(
    definition: &Definition,
    namespace: &str,
    object: &mut Object,
) -> Result<(), Status> {
    let namespace = match definition.scope {
        Scope::Namespaced => namespace,
        Scope::Cluster => "",
    };
    if object.namespace() == namespace {
        return Ok(());
    }
    if namespace.is_empty() {
        object.remove(&["metadata", "namespace"]);
        return Ok(());
    }
    if !object.namespace().is_empty() {
        return Err(Status::bad_request(
            "the namespace of the provided object does not match the namespace sent on the \
             request",
        ));
    }
    object.set(&["metadata", "namespace"], namespace);
    Ok(())
}

fn check_address(namespace: &str, name: &str, object: &Object) -> Result<(), Status> {
    if object.name() != name {
        return Err(Status::bad_request(format!(
            "the name of the object ({}) does not match the name on the URL ({name})",
            object.name()
        )));
    }
    let its = object.namespace();
    if !namespace.is_empty() && !its.is_empty() && its != namespace {
        return Err(Status::bad_request(format!(
            "the namespace of the object ({its}) does not match the namespace on the request \
             ({namespace})"
        )));
    }
    Ok(())
}

fn check_name(definition: &Definition, object: &Object) -> Result<(), Status> {
    let (resource, name) = (&definition.resource, object.name());
    let errors = if name.is_empty() {
        let why = "name or generateName is required";
        vec![FieldError::required("metadata.name", why)]
    } else {
        let errors = NameRule::of(&resource.group, &resource.resource).errors(name);
        let errors = errors.into_iter();
        errors
            .map(|fault| FieldError::invalid("metadata.name", name, fault))
            .collect()
    };
    if errors.is_empty() {
        return Ok(());
    }
    Err(status::invalid(
        &resource.group,
        &definition.kind,
        name,
        &errors,
    ))
}

/// Finalizers of a terminating object can be removed, but not added.
fn check_finalizers(definition: &Definition, before: &Object, next: &Object) -> Result<(), Status> {
    let old = before.finalizers();
    let mut new: Vec<_> = next.finalizers();
    new.retain(|finalizer| !old.contains(finalizer));
    new.sort_unstable();
    new.dedup();
    if before.deletion_timestamp().is_none() || new.is_empty() {
        return Ok(());
    }
    let new: Vec<_> = new.iter().map(|it| status::quoted(it)).collect();
    let why = format!(
        "no new finalizers can be added if the object is being deleted, found new finalizers \
         []string{{{}}}",
        new.join(", ")
    );
    let error = FieldError::forbidden("metadata.finalizers", why);
    let (group, kind) = (&definition.resource.group, &definition.kind);
    Err(status::invalid(group, kind, before.name(), &[error]))
}

/// Parses a client's resource version: a number, or empty.
pub(crate) fn parse_version(text: &str) -> Result<u64, Status> {
    if text.is_empty() {
        return Ok(0);
    }
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let number = digits.then(|| text.parse().ok()).flatten();
    number.ok_or_else(|| {
        let value = Value::from(text);
        Status::bad_request(format!(
            "invalid resource version: resourceVersion: Invalid value: {value}: \
             strconv.ParseUint: parsing {value}: invalid syntax"
        ))
    })
}

#[cfg(test)]
mod tests;
