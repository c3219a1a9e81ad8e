//! Signers of the reference plugin (`skewbridge agent`), which it adds to a
//! [`ExecProxy`](skewbridge_exec_proxy::ExecProxy).
//!
//! [`FileKey`] is a TLS key in files. [`Headers`] come from a file or a command. [`SigV4`] and
//! [`HttpSignature`] sign each request. Keys in hardware are in `skewbridge_pkcs11`, because
//! they need a library of their own.
//!
//! ```
//! use skewbridge_exec_proxy_signers::{Headers, Source};
//! use skewbridge_exec_proxy::ExecProxy;
//!
//! let badge = Headers::new(Source::File("/run/badge".into()));
//! let proxy = ExecProxy::new().modifier(badge);
//! # let _ = proxy;
//! ```

mod failure_cache;
mod file_key;
mod headers;
mod http_signature;
mod secret_file;
mod sigv4;
mod unix_time;

pub use file_key::FileKey;
pub use headers::{Headers, Source};
pub use http_signature::{HttpSignature, KeyFile};
pub use sigv4::SigV4;
