//! The Kubernetes API machinery that a proxy needs, without I/O: request info, caller
//! identity headers, content negotiation, `metav1.Status` errors and the `ExecCredential`
//! protocol.
//!
//! ```
//! use http::Method;
//! use skewbridge_k8s_api::request_info::{DecodedPath, RequestInfo, Verb};
//!
//! let path = DecodedPath::new("/apis/apps/v1/namespaces/shop/deployments/web/scale").unwrap();
//! let info = RequestInfo::parse(&Method::PUT, &path, None);
//! assert_eq!(info.verb, Verb::Update);
//! assert_eq!((info.group, info.version, info.namespace), ("apps", "v1", "shop"));
//! assert_eq!((info.resource, &*info.name, info.subresource), ("deployments", "web", "scale"));
//! ```

pub mod cbor;
pub mod component;
pub mod content_negotiation;
pub mod exec_credential;
pub mod forwarding_headers;
pub mod identity;
pub mod pem;
pub mod protobuf;
pub mod request_info;
pub mod secret;
pub mod signable_request;
pub mod status;
pub mod time;
pub mod version;
