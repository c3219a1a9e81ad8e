//! Which fields each kube-apiserver has of each built-in kind, without I/O. A server that does
//! not have a field of an object erases it when it writes the object.
//!
//! ```
//! use skewbridge_discovery::Document;
//! use skewbridge_field_sets::{ComparedServer, FieldSkew, ServerFieldsBuilder};
//!
//! let discovery = Document::parse(br#"{"kind":"APIGroupDiscoveryList",
//!     "apiVersion":"apidiscovery.k8s.io/v2","items":[{"metadata":{"name":"storage.k8s.io"},
//!     "versions":[{"version":"v1","resources":[
//!         {"resource":"csidrivers","responseKind":{"kind":"CSIDriver"}}]}]}]}"#)?;
//! let fields = |spec: &str| {
//!     let schemas = format!(r##"{{"components":{{"schemas":{{
//!         "io.k8s.api.storage.v1.CSIDriver":{{
//!             "properties":{{"spec":{{"$ref":"#/components/schemas/Spec"}}}},
//!             "x-kubernetes-group-version-kind":
//!                 [{{"group":"storage.k8s.io","version":"v1","kind":"CSIDriver"}}]}},
//!         "Spec":{{"properties":{{{spec}}}}}}}}}}}"##);
//!     let mut builder = ServerFieldsBuilder::new(&discovery.items);
//!     builder.add("storage.k8s.io", "v1", schemas.as_bytes())?;
//!     builder.build()
//! };
//! let old = fields(r#""podInfoOnMount":{}"#)?;
//! let new = fields(r#""podInfoOnMount":{},"serviceAccountTokenInSecrets":{}"#)?;
//! let servers = [&old, &new].map(|fields| ComparedServer { version: None, fields });
//! let skew = FieldSkew::compare(&servers, |_group, _resource| false)?;
//!
//! let difference = skew.difference("storage.k8s.io", "csidrivers").unwrap();
//! assert_eq!(difference.knows_most(), [1]);
//! assert_eq!(difference.lacking(0)[0].to_string(), "spec.serviceAccountTokenInSecrets");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod error;
mod extract;
pub mod fingerprint;
pub mod json_patch;
pub mod managed_fields;
pub mod path;
mod presence;
pub mod replaced;
pub mod restore;
pub mod server_fields;
pub mod skew;
mod tree;

pub use error::Error;
pub use fingerprint::Fingerprint;
pub use json_patch::restore_after_json_patch;
pub use managed_fields::{Mention, mentions};
pub use path::{FieldPath, Step};
pub use presence::has_any;
pub use replaced::{erasable_by_json_patch, erasable_by_merge};
pub use restore::{Alternatives, Written, restore, without_removed};
pub use server_fields::{FieldSet, ServerFields, ServerFieldsBuilder};
pub use skew::{ComparedServer, FieldDifference, FieldSkew};
