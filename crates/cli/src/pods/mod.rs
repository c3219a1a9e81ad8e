//! The pod of a command: by its name, or by its owner.

mod container_name;
mod find;
mod manifest;
mod names;
mod object;
mod reference;

pub(crate) use container_name::choose_container;
pub(crate) use find::{FoundPod, Pods, explain_refusal};
pub(crate) use manifest::Manifest;
pub(crate) use names::{list_names, list_namespaces};
pub(crate) use object::{Pod, Service, TargetPort};
pub(crate) use reference::{Kind, Reference};
