//! What kube-apiserver of each released minor version serves: its built-in APIs, and the fields of
//! their kinds. Without I/O.
//!
//! `cargo xtask api-data VERSION` starts a real server and writes `data/MINOR.json`. The suite
//! `released_apis` compares the data with the real servers of its control planes.
//!
//! ```
//! use skewbridge_released_apis::{ApiName, release_of};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let flow_schemas = ApiName {
//!     group: "flowcontrol.apiserver.k8s.io".to_owned(),
//!     version: "v1beta3".to_owned(),
//!     resource: "flowschemas".to_owned(),
//! };
//! let serves = |minor: &str| -> Result<_, Box<dyn std::error::Error>> {
//!     let release = release_of(minor.parse()?)?;
//!     Ok(release.is_some_and(|it| it.api(&flow_schemas).is_some()))
//! };
//! assert!(serves("1.28")? && !serves("1.36")?);
//! # Ok(())
//! # }
//! ```

pub mod changes;
pub mod data;
pub mod error;
pub mod minor;
pub mod release;

pub use changes::{ApiChanges, Removal, RemovedApi};
pub use data::{known_minors, release_of};
pub use error::Error;
pub use minor::Minor;
pub use release::{Api, ApiName, Release};
