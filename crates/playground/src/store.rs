//! All objects of the cluster, and all that happens to them, in one sequence of
//! versions: what etcd and the registry are to kube-apiserver. Servers of all
//! versions share it.

pub mod list;
pub mod log;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;
use skewbridge_k8s_api::status::Status;

use crate::conversion::kept_as;
use crate::names::NameRule;
use crate::object::{Object, make_up_uid};
use crate::select::Selection;
use crate::status::{self, FieldError, GroupResource};
use crate::strategy::{Definition, Part, Scope};
use crate::time::Moment;

pub use list::{ListOptions, Listed, VersionMatch};
use log::Log;
pub use log::{Event, EventKind};

/// How often a made-up name is made up again if there is one like it: as
/// kube-apiserver.
const NAME_TRIES: usize = 8;

/// Events that are kept for watches and consistent lists, unless told otherwise: a
/// playground writes a few a second, so this is more than ten minutes.
pub const DEFAULT_HISTORY: History = History {
    events: 10_000,
    bytes: 8 * 1024 * 1024,
};

/// The largest object, as JSON: what etcd takes in a request.
const LARGEST_OBJECT: usize = 3 * 512 * 1024;

/// All objects together, as JSON; in memory they are several times as large. Enough for
/// ten thousands of pods, and not for a client that goes astray.
const LARGEST_STORE: usize = 64 * 1024 * 1024;

/// The same for objects that are to end, or a full store could not be emptied: until those
/// who hold them let go, they say since when they end, and namespaces why they are still
/// there. All of that is far less than the objects are themselves.
const LARGEST_WITH_ENDING: usize = 2 * LARGEST_STORE;

/// How much of what has happened is remembered, at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct History {
    /// So many events.
    pub events: usize,
    /// Whose objects have so many bytes together, as JSON. The last one is remembered
    /// however large it is.
    pub bytes: usize,
}

impl History {
    /// So many events, of usual sizes.
    pub fn of(events: usize) -> Self {
        Self {
            events,
            ..DEFAULT_HISTORY
        }
    }
}

/// Where an object is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Whatever the version.
    pub resource: GroupResource,
    /// Empty for what is in none.
    pub namespace: String,
    /// Of the object.
    pub name: String,
}

/// All objects.
#[derive(Debug)]
pub struct Store {
    objects: BTreeMap<Key, Arc<Object>>,
    /// Of all of them.
    bytes: usize,
    log: Log,
}

/// When a write happens and with what luck: the store has no clock and no dice.
pub struct Occasion<'a> {
    /// The time.
    pub now: Moment,
    /// For uids and names that are made up.
    pub entropy: &'a mut dyn FnMut() -> u64,
    /// Whether it is to be done.
    pub effect: Effect,
}

/// Whether a write is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// It is.
    Lasting,
    /// It is only asked what would come of it.
    DryRun,
}

/// What has to be true of an object for it to be deleted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Preconditions {
    /// It has this uid.
    pub uid: Option<String>,
    /// It has this version.
    pub resource_version: Option<String>,
}

/// What has become of an object that was to be deleted.
#[derive(Debug, Clone, PartialEq)]
pub enum Deletion {
    /// It is no more; this it was.
    Gone(Arc<Object>),
    /// It waits for those who have to let go of it.
    Pending(Arc<Object>),
}

impl Default for Store {
    fn default() -> Self {
        Self::new(DEFAULT_HISTORY)
    }
}

impl Store {
    /// An empty one, which remembers so much.
    pub fn new(history: History) -> Self {
        Self {
            objects: BTreeMap::new(),
            bytes: 0,
            log: Log::new(history),
        }
    }

    /// Grows with every write: whoever waits for events waits for this to change.
    pub fn version(&self) -> u64 {
        self.log.version()
    }

    /// What has happened after a version, in order; 410 if that is forgotten.
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

    /// Makes a new object.
    pub fn create(
        &mut self,
        definition: &Definition,
        namespace: &str,
        mut object: Object,
        occasion: &mut Occasion<'_>,
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
                object.make_up_name(occasion.entropy);
            }
            check_name(definition, &object)?;
            let Some(there) = self.objects.get(&key(definition, namespace, object.name())) else {
                break;
            };
            if made_up && attempt < NAME_TRIES {
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
        object.set(&["metadata", "uid"], make_up_uid(occasion.entropy));
        object.set(&["metadata", "creationTimestamp"], occasion.now.to_string());
        let key = key(definition, namespace, object.name());
        self.commit(key, object, occasion.effect)
    }

    /// Writes a part of an object that is there.
    pub fn update(
        &mut self,
        definition: &Definition,
        namespace: &str,
        name: &str,
        mut object: Object,
        part: Part,
        occasion: &mut Occasion<'_>,
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
        if is_over && definition.holders(&next).is_empty() {
            return Ok(self.end(&key, next, occasion.effect));
        }
        self.commit(key, next, occasion.effect)
    }

    /// Ends an object, or has it wait for those who have to let go of it.
    pub fn delete(
        &mut self,
        definition: &Definition,
        namespace: &str,
        name: &str,
        preconditions: &Preconditions,
        occasion: &mut Occasion<'_>,
    ) -> Result<Deletion, Status> {
        self.delete_within(definition, namespace, name, 0, preconditions, occasion)
    }

    /// The same, and leaves it this many seconds: it stays until somebody ends it without
    /// grace, as a node does with a pod whose processes are gone.
    pub fn delete_within(
        &mut self,
        definition: &Definition,
        namespace: &str,
        name: &str,
        grace: u32,
        preconditions: &Preconditions,
        occasion: &mut Occasion<'_>,
    ) -> Result<Deletion, Status> {
        let before = self.get(definition, namespace, name)?;
        preconditions.check(definition, &before)?;
        let key = key(definition, namespace, name);
        if grace == 0 && definition.holders(&before).is_empty() {
            let object = Object::clone(&before);
            return Ok(Deletion::Gone(self.end(&key, object, occasion.effect)));
        }
        let is_ending = before.deletion_timestamp().is_some();
        // It can be hurried, not given more time.
        if is_ending && grace_of(&before) <= i64::from(grace) {
            return Ok(Deletion::Pending(before));
        }
        let mut next = Object::clone(&before);
        let until = occasion.now.plus_seconds(i64::from(grace));
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
        self.commit(key, next, occasion.effect)
            .map(Deletion::Pending)
    }

    /// Deletes all objects of a resource in a namespace, or in all (an empty one),
    /// that are selected.
    pub fn delete_collection(
        &mut self,
        definition: &Definition,
        namespace: &str,
        selection: &Selection,
        occasion: &mut Occasion<'_>,
    ) -> Result<Vec<Deletion>, Status> {
        let resource = kept_as(&definition.resource);
        let all = self.current(&resource, namespace);
        let selected: Vec<Key> = all
            .filter(|(_, object)| selection.matches(object))
            .map(|(key, _)| key.clone())
            .collect();
        let none = Preconditions::default();
        let deleted = selected
            .iter()
            .map(|key| self.delete(definition, &key.namespace, &key.name, &none, occasion));
        deleted.collect()
    }

    /// The objects of a resource as they are now, sorted.
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

    /// Keeps an object as a new version; 500 if that is more than can be kept.
    fn commit(
        &mut self,
        key: Key,
        mut object: Object,
        effect: Effect,
    ) -> Result<Arc<Object>, Status> {
        let version = self.log.next_version();
        if effect == Effect::Lasting {
            object.set(&["metadata", "resourceVersion"], version.to_string());
        }
        let size = object.size();
        if size > LARGEST_OBJECT {
            return Err(status::too_large());
        }
        let before = self.objects.get(&key).map_or(0, |it| it.size());
        let bytes = self.bytes.saturating_sub(before).saturating_add(size);
        let limit = if object.deletion_timestamp().is_some() {
            LARGEST_WITH_ENDING
        } else {
            LARGEST_STORE
        };
        // What makes room is never refused.
        if bytes > limit && size > before {
            return Err(status::no_space());
        }
        if effect == Effect::DryRun {
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

    /// Lets an object go, as it last was.
    fn end(&mut self, key: &Key, mut object: Object, effect: Effect) -> Arc<Object> {
        if effect == Effect::DryRun {
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
        // It names the kind where others name the resource.
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

/// How many seconds an object that is to end has been given.
fn grace_of(object: &Object) -> i64 {
    let grace = object.at(&["metadata", "deletionGracePeriodSeconds"]);
    grace.and_then(Value::as_i64).unwrap_or_default()
}

fn key(definition: &Definition, namespace: &str, name: &str) -> Key {
    Key {
        resource: kept_as(&definition.resource),
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
        let faults = NameRule::of(&resource.group, &resource.resource).faults(name);
        let errors = faults.into_iter();
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

/// Whoever is to end may be let go of, but not held anew.
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

/// A version as clients write it: a number, or nothing.
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
