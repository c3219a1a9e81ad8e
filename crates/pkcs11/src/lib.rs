//! TLS client keys in PKCS#11 tokens: smart cards, security keys, HSMs.
//!
//! A [`TokenKey`] is a [`ClientKey`](skewbridge_exec_proxy::ClientKey) whose private key never
//! leaves its token: RSA (PSS and PKCS#1) and ECDSA on P-256 and P-384. A [`Selection`] names
//! the token and the key, from flags or from a URI (RFC 7512). A token that is removed and
//! inserted again is reopened; a rejected PIN is never tried twice.
//!
//! ```
//! use skewbridge_pkcs11::Selection;
//!
//! let which: Selection = "pkcs11:token=jane;object=kubernetes".parse().unwrap();
//! assert_eq!(which.token.as_deref(), Some("jane"));
//! ```

mod objects;
mod pin;
mod pin_prompt_guard;
mod raw_mode;
mod selection;
mod signature;
mod token;
mod tty;

pub use pin::PinSource;
pub use pin_prompt_guard::cancel_pin_prompt;
pub use selection::{PIN_REFUSED, Selection};
pub use token::{TokenConfig, TokenKey};

/// Whether this program can load the library of a token: a static program has no dynamic linker.
pub const LOADS_MODULES: bool = !cfg!(target_feature = "crt-static");
