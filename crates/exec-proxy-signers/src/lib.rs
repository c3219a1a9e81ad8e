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

mod file_key;
mod headers;
mod http_signature;
mod secret_file;
mod sigv4;

pub use file_key::FileKey;
pub use headers::{Headers, Source};
pub use http_signature::{HttpSignature, KeyFile};
pub use sigv4::SigV4;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How long the failure of a command is returned to further requests before the command runs
/// again: clients repeat their requests, many at a time.
const FAILURE_CACHE_DURATION: Duration = Duration::from_secs(1);

/// Seconds since 1970.
fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}
