//! Shared by the unit tests of this crate.

use std::sync::LazyLock;

use serde_json::{Value, json};

use crate::catalogue::{Catalogue, Release};
use crate::object::Object;
use crate::resource_strategy::Definition;
use crate::store::{DryRun, WriteContext};
use crate::time::Time;

/// A resource of 1.36.
pub(crate) fn definition(group: &str, version: &str, resource: &str) -> Definition {
    static CATALOGUE: LazyLock<Catalogue> =
        LazyLock::new(|| Catalogue::new(Release::V1_36).unwrap());
    let catalogue = &*CATALOGUE;
    Definition::of(&catalogue.resource(group, version, resource).unwrap())
}

pub(crate) fn config_maps() -> Definition {
    definition("", "v1", "configmaps")
}

/// An object of that name, with further fields.
pub(crate) fn object(name: &str, fields: Value) -> Object {
    let mut value = json!({"metadata": {"name": name}});
    let Value::Object(fields) = fields else {
        panic!("not fields: {fields}");
    };
    for (field, content) in fields {
        match (field.as_str(), content) {
            ("metadata", Value::Object(metadata)) => {
                for (field, content) in metadata {
                    value["metadata"][field] = content;
                }
            }
            (_, content) => value[field] = content,
        }
    }
    Object::new(value).unwrap()
}

/// Pseudorandom numbers, the same in every test run.
pub(crate) struct RandomNumbers(u64);

impl RandomNumbers {
    pub(crate) fn new() -> Self {
        Self(1)
    }

    pub(crate) fn next_random(&mut self) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        self.0.rotate_left(32)
    }
}

pub(crate) const NOW: i64 = 1_794_776_399;

/// Calls a function with a write context.
pub(crate) fn with<T>(dry_run: DryRun, act: impl FnOnce(&mut WriteContext<'_>) -> T) -> T {
    thread_local! {
        static RANDOM_NUMBERS: std::cell::RefCell<RandomNumbers> = std::cell::RefCell::new(RandomNumbers::new());
    }
    let mut entropy = || RANDOM_NUMBERS.with_borrow_mut(RandomNumbers::next_random);
    act(&mut WriteContext {
        now: Time::from_unix(NOW),
        entropy: &mut entropy,
        dry_run,
    })
}

/// Calls a function with a write context that is not a dry run.
pub(crate) fn now<T>(act: impl FnOnce(&mut WriteContext<'_>) -> T) -> T {
    with(DryRun::Off, act)
}
