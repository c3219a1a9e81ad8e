//! Plain Kubernetes API servers of several versions over one store.
//!
//! Nearly all of it is logic without I/O: the APIs of each version, writes, watches and
//! responses. HTTP, the clock and random numbers are in [`server`] alone, processes in [`node`].
//!
//! ```
//! use serde_json::json;
//! use skewbridge_fake_cluster::catalogue::{Catalogue, Release};
//! use skewbridge_fake_cluster::object::Object;
//! use skewbridge_fake_cluster::store::{DryRun, Store, WriteContext};
//! use skewbridge_fake_cluster::resource_strategy::Definition;
//! use skewbridge_fake_cluster::time::Time;
//!
//! let catalogue = Catalogue::new(Release::V1_36)?;
//! let config_maps = catalogue.resource("", "v1", "configmaps").unwrap();
//! let mut store = Store::default();
//! let object = Object::new(json!({"metadata": {"name": "web"}})).unwrap();
//! let mut context = WriteContext {
//!     now: Time::from_unix(1_794_776_399),
//!     entropy: &mut || 7,
//!     dry_run: DryRun::Off,
//! };
//! let made = store.create(&Definition::of(&config_maps), "shop", object, &mut context);
//! assert_eq!(made.unwrap().resource_version(), "2");
//! # Ok::<(), skewbridge_discovery::ParseError>(())
//! ```

pub mod apply;
pub mod catalogue;
pub mod cluster;
pub mod conversion;
pub mod defaults;
pub mod list_types;
pub mod name_validation;
pub mod namespaces;
pub mod node;
pub mod object;
pub mod patch;
pub mod pod_updates;
pub mod protobuf;
pub mod rbac;
pub mod resource_strategy;
pub mod schema_validation;
pub mod selectors;
pub mod server;
pub mod status;
pub mod store;
pub mod table;
#[cfg(test)]
mod test_fixtures;
pub mod time;
mod version_range;
pub mod watch;
