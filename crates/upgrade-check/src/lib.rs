//! What an upgrade or a rollback of a cluster has to wait for. Facts that were read from a cluster
//! become findings, these become a verdict, and both become a plan of steps. Without I/O.
//!
//! A fact that could not be read never counts as good: it makes the verdict
//! [`Verdict::NotKnown`].
//!
//! ```
//! use std::collections::BTreeMap;
//! use std::time::SystemTime;
//!
//! use skewbridge_released_apis::release_of;
//! use skewbridge_upgrade_check::facts::Components;
//! use skewbridge_upgrade_check::{Direction, Facts, Verdict, evaluate};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut facts = Facts {
//!     read_at: SystemTime::now(),
//!     servers: Vec::new(),
//!     kubelets: Ok(Vec::new()),
//!     components: Components::default(),
//!     objects: BTreeMap::new(),
//!     stored_versions: Ok(Vec::new()),
//!     migrations: Ok(Vec::new()),
//!     fields_in_use: Ok(Vec::new()),
//!     unqueried: Vec::new(),
//!     unlisted: None,
//! };
//! let current = [release_of("1.35".parse()?)?.ok_or("1.35 is unknown")?];
//! let target = release_of("1.36".parse()?)?.ok_or("1.36 is unknown")?;
//! let verdict = |facts: &Facts| evaluate(facts, Direction::Upgrade, &current, &target).verdict;
//! assert_eq!(verdict(&facts), Verdict::Go);
//! facts.kubelets = Err("GET /api/v1/nodes: 403 Forbidden".to_owned());
//! assert_eq!(verdict(&facts), Verdict::NotKnown);
//! # Ok(())
//! # }
//! ```

pub mod apis;
pub mod components;
pub mod direction;
pub mod facts;
pub mod fields;
pub mod finding;
pub mod plan;
pub mod servers;
pub mod skew_policy;
pub mod storage;
pub mod verdict;

pub use direction::Direction;
pub use facts::{Fact, Facts};
pub use finding::{Finding, Severity, Topic};
pub use verdict::{Report, Verdict, evaluate};
