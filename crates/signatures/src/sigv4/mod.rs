//! AWS Signature Version 4 over requests.
//!
//! [`Signer`] gives the headers to set; [`canonical`] is what it signs, and what
//! who verifies puts together again. [`chain`] finds credentials where AWS' own
//! programs look for them, as far as that needs no network.

pub mod canonical;
pub mod chain;
mod process;
mod profile;
mod sign;

pub use chain::{Chain, Environment};
pub use sign::{Credentials, Payload, SignedHeaders, Signer, signature};
pub use skewbridge_api::time::iso8601_basic as timestamp;
