//! AWS Signature Version 4 over requests.
//!
//! [`Signer`] returns the headers to set; [`canonical`] builds the request that it signs, and
//! that a verifier builds again. Both are functions over plain data. [`chain`] finds credentials
//! where AWS' own programs look for them, as far as that needs no network; only it reads files
//! and starts processes.
//!
//! ```
//! use http::{HeaderMap, Method};
//! use skewbridge_sigv4::{Credentials, Payload, Request, Secret, Signer};
//!
//! let headers = HeaderMap::new();
//! let request = Request {
//!     method: &Method::GET,
//!     scheme: "https",
//!     authority: "example.amazonaws.com",
//!     path: "/",
//!     query: None,
//!     headers: &headers,
//! };
//! let credentials = Credentials {
//!     access_key_id: "AKIDEXAMPLE".to_owned(),
//!     secret_access_key: Secret::new("wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"),
//!     session_token: None,
//!     expires: None,
//! };
//! let signer = Signer::new("us-east-1", "service");
//! let to_set = signer.sign(&request, Payload::Bytes(b""), &credentials, 1_440_938_160).unwrap();
//! assert_eq!(to_set[0].1, "20150830T123600Z");
//! ```

pub mod canonical;
pub mod chain;
mod error;
mod process;
mod profile;
mod sign;

pub use chain::{Chain, Environment};
pub use error::Error;
pub use sign::{Credentials, Payload, SignedHeaders, Signer, signature};
pub use skewbridge_k8s_api::secret::Secret;
pub use skewbridge_k8s_api::signable_request::Request;
pub use skewbridge_k8s_api::time::iso8601_basic as timestamp;
