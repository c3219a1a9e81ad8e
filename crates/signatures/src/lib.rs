//! Signatures over HTTP requests: HTTP Message Signatures (RFC 9421, with
//! Content-Digest of RFC 9530) and AWS Signature Version 4.
//!
//! The core is functions over plain data: a [`Request`] as it will be on the wire,
//! the time, a nonce, and what comes out are headers, or a verdict. Only
//! [`sigv4::chain`] touches files and processes, for it looks for credentials.
//!
//! ```
//! use http::{HeaderMap, Method};
//! use skewbridge_signatures::Request;
//! use skewbridge_signatures::http_signature::{Content, Signer, SigningKey};
//!
//! let key = SigningKey::hmac(&[7; 32]).unwrap();
//! let signer = Signer::new(key, "laptop").unwrap();
//! let headers = HeaderMap::new();
//! let request = Request {
//!     method: &Method::GET,
//!     scheme: "https",
//!     authority: "kube.example:6443",
//!     path: "/api/v1/pods",
//!     query: Some("limit=1"),
//!     headers: &headers,
//! };
//! let to_set = signer.sign(&request, Content::None, 1_618_884_473, "n0nce").unwrap();
//! assert_eq!(to_set[0].0, "signature-input");
//! ```

mod error;
pub mod http_signature;
mod request;
pub mod sigv4;
pub mod structured;

pub use error::Error;
pub use request::{Request, normalize_authority};
pub use skewbridge_api::secret::Secret;
