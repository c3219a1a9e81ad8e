//! The OpenAPI documents that kube-apiservers publish at `/openapi`, without I/O: merges those
//! of several servers, so that a client of one server also gets what only another one serves.
//!
//! The index of `/openapi/v3` is merged first. It lists the sources of each entry, without
//! needing the documents themselves:
//!
//! ```
//! use skewbridge_openapi::{Index, Server, Spec, json};
//!
//! let local = Index::parse(br#"{"paths":{
//!     "apis/batch/v1":{"serverRelativeURL":"/openapi/v3/apis/batch/v1?hash=0A"}}}"#)?;
//! let other = Index::parse(br#"{"paths":{
//!     "apis/batch/v1":{"serverRelativeURL":"/openapi/v3/apis/batch/v1?hash=0B"},
//!     "apis/batch/v2":{"serverRelativeURL":"/openapi/v3/apis/batch/v2?hash=0C"}}}"#)?;
//! let merged = local.merge(&[&other], |_group_version, _server| true);
//!
//! let entry = merged.get("apis/batch/v1").unwrap();
//! let sources: Vec<_> = entry.sources.iter().map(|source| source.servers[0]).collect();
//! assert_eq!(sources, [Server::Local, Server::Other(0)]);
//!
//! let local = br#"{"openapi":"3.0.0","paths":{"/apis/batch/v1/jobs":{"get":{}}}}"#;
//! let other = br#"{"openapi":"3.0.0","paths":{"/apis/batch/v1/fleets":{"get":{}}}}"#;
//! assert_eq!(
//!     json::merge(Spec::V3, local, &[other], |_path| true)?.as_ref(),
//!     br#"{"openapi":"3.0.0","paths":{"/apis/batch/v1/fleets":{"get":{}},"/apis/batch/v1/jobs":{"get":{}}}}"#,
//! );
//! # Ok::<(), skewbridge_openapi::Error>(())
//! ```

mod error;
pub mod group_version;
pub mod index;
pub mod json;
pub mod merged_index;
mod object;
pub mod protobuf;
mod references;
pub mod spec;

pub use error::{Error, Server};
pub use group_version::GroupVersion;
pub use index::{Index, Location, combined_hash};
pub use merged_index::{Entry, MergedIndex, Source};
pub use spec::{Format, Spec};
