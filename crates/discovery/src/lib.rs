//! Kubernetes API discovery, without I/O: aggregated discovery documents, the older lists from
//! which one can be built, an index that answers whether a server serves a request, and the
//! differences between servers.
//!
//! ```
//! use http::Method;
//! use skewbridge_k8s_api::request_info::{DecodedPath, RequestInfo};
//! use skewbridge_discovery::{Document, Index};
//!
//! let apis = br#"{
//!     "kind": "APIGroupDiscoveryList",
//!     "apiVersion": "apidiscovery.k8s.io/v2",
//!     "metadata": {},
//!     "items": [{
//!         "metadata": {"name": "apps"},
//!         "versions": [{
//!             "version": "v1",
//!             "resources": [{
//!                 "resource": "deployments",
//!                 "responseKind": {"group": "", "version": "", "kind": "Deployment"},
//!                 "scope": "Namespaced",
//!                 "singularResource": "deployment",
//!                 "verbs": ["get", "list", "watch"]
//!             }],
//!             "freshness": "Current"
//!         }]
//!     }]
//! }"#;
//! let index = Index::new(&[&Document::parse(apis)?]);
//!
//! let path = DecodedPath::new("/apis/apps/v1/namespaces/shop/deployments/web").unwrap();
//! assert!(index.serves(&RequestInfo::parse(&Method::GET, &path, None)));
//! assert!(!index.serves(&RequestInfo::parse(&Method::DELETE, &path, None)));
//! # Ok::<(), skewbridge_discovery::ParseError>(())
//! ```

pub mod accept;
pub mod diff;
pub mod document;
pub mod index;
pub mod legacy;
pub mod lists;
pub mod merge;
pub mod merge_order;
pub mod object;
mod parse;
pub mod servers;

pub use accept::{DiscoveryFormat, DocumentEncoding, RequestedDiscovery};
pub use diff::{Skew, diff};
pub use document::Document;
pub use index::{Entry, Index, Verbs};
pub use legacy::LegacyDiscovery;
pub use merge::merge;
pub use object::{Layout, Object};
pub use parse::ParseError;
pub use servers::{ServerDiscovery, ServerDiscoveryList};
