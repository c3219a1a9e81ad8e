//! HTTP Message Signatures (RFC 9421) over requests, with Content-Digest (RFC 9530).
//!
//! All of it is functions over plain data: a [`Request`] as it is on the wire, the time and a nonce
//! in, headers or a verdict out. [`Signer`] returns the headers to set, [`Verifier`] checks those
//! of a request: [`component`] determines the value of each covered component, [`base`] builds the
//! signature base, [`key`] signs and verifies, [`digest`] binds the body to the head, [`replay`]
//! stores accepted signatures, and [`structured`] is the syntax of the headers.
//!
//! ```
//! use http::{HeaderMap, Method};
//! use skewbridge_http_signature::{Content, Request, Signer, SigningKey};
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

pub mod base;
pub mod component;
pub mod digest;
mod error;
pub mod key;
pub mod parameters;
pub mod replay;
mod sign;
pub mod structured;
mod verify;

pub use digest::{DigestAlgorithm, ExpectedDigest};
pub use error::Error;
pub use key::{Algorithm, SigningKey, VerifyingKey};
pub use parameters::SignatureInput;
pub use replay::{Fingerprint, ReplayCache, ReplayCheck};
pub use sign::{Content, Signer, random_nonce};
pub use skewbridge_k8s_api::signable_request::{Request, normalize_authority};
pub use verify::{HasBody, Verified, Verifier, VerifyError, Window, is_signed, remove_signatures};

use http::HeaderName;

/// The covered components and the parameters of each signature (RFC 9421, 4.1).
pub const SIGNATURE_INPUT: HeaderName = HeaderName::from_static("signature-input");

/// The signatures (RFC 9421, 4.2).
pub const SIGNATURE: HeaderName = HeaderName::from_static("signature");

/// The digest of the body as it is sent (RFC 9530, 2).
pub const CONTENT_DIGEST: HeaderName = HeaderName::from_static("content-digest");
