//! The pod of a command: by its name, or by its owner.

mod container_name;
mod find;
mod manifest;
mod object;
mod reference;
mod suggestions;

pub(crate) use container_name::choose_container;
pub(crate) use find::{FoundPod, Pods, explain_refusal};
pub(crate) use manifest::Manifest;
pub(crate) use object::{Pod, Service, TargetPort};
pub(crate) use reference::Reference;
