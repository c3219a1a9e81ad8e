//! TLS client keys in PKCS#11 tokens: smart cards, security keys, HSMs.
//!
//! A [`TokenKey`] is a [`ClientKey`](skewbridge_harness::ClientKey) whose key never
//! leaves its token: RSA (PSS and PKCS#1) and ECDSA on P-256 and P-384. Which token and
//! which key, a [`Selection`] says, as flags have it or as a URI (RFC 7512). A token that
//! is taken out and put back is opened again; a PIN that was refused is never tried
//! twice.
//!
//! ```
//! use skewbridge_pkcs11::Selection;
//!
//! let which: Selection = "pkcs11:token=jane;object=kubernetes".parse().unwrap();
//! assert_eq!(which.token.as_deref(), Some("jane"));
//! ```

mod objects;
mod pin;
mod selection;
mod signature;
mod token;
mod tty;
mod under_way;

pub use pin::PinSource;
pub use selection::{PIN_REFUSED, Selection};
pub use token::{TokenConfig, TokenKey};
pub use under_way::give_up;
