//! The pod that a command is for: by its name, or by what runs it.

mod find;
mod manifest;
mod name;
mod near;
mod object;
mod reference;

pub(crate) use find::{Found, Pods, explain_refusal};
pub(crate) use manifest::Manifest;
pub(crate) use name::choose_container;
pub(crate) use object::{Pod, Service, TargetPort};
pub(crate) use reference::Reference;
