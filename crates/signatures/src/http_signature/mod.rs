//! HTTP Message Signatures (RFC 9421) over requests.
//!
//! [`Signer`] gives the headers to set, [`Verifier`] judges those that came:
//! [`component`] gives each covered part its value, [`base`] puts them together,
//! [`key`] signs and verifies, [`digest`] ties the body to the head, and
//! [`replay`] remembers what has been accepted.

pub mod base;
pub mod component;
pub mod digest;
pub mod key;
pub mod parameters;
pub mod replay;
mod sign;
mod verify;

pub use digest::{DigestAlgorithm, ExpectedDigest};
pub use key::{Algorithm, SigningKey, VerifyingKey};
pub use parameters::SignatureInput;
pub use replay::{Fingerprint, Remembered, Replays};
pub use sign::{Content, Signer, random_nonce};
pub use verify::{HasBody, Refusal, Verified, Verifier, Window, is_signed, remove_signatures};

use http::HeaderName;

/// What is covered, and by whom (RFC 9421, 4.1).
pub const SIGNATURE_INPUT: HeaderName = HeaderName::from_static("signature-input");

/// The signatures themselves (RFC 9421, 4.2).
pub const SIGNATURE: HeaderName = HeaderName::from_static("signature");

/// The digest of the body as it is sent (RFC 9530, 2).
pub const CONTENT_DIGEST: HeaderName = HeaderName::from_static("content-digest");
