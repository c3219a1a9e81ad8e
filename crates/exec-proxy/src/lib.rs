//! Plugins of the client executable proxy (KEP-2718): everything but the credential.
//!
//! A plugin changes requests ([`RequestModifier`]), or proves who the user is in
//! the TLS handshake ([`ClientKey`]), or both. The [`Harness`] does the rest: a
//! socket that only its user can reach and only its client has a certificate for, the
//! `ExecCredential` on standard output, and its own end: with the client, when
//! nothing is asked any more, or by a signal. Keys are in memory only.
//!
//! [`forward`] is the engine below, for whoever has another listener or another
//! upstream.
//!
//! ```no_run
//! use skewbridge_exec_proxy::{Asked, Harness};
//!
//! # async fn example() -> Result<(), skewbridge_exec_proxy::Error> {
//! // A plugin that passes everything on as it is.
//! let asked = Asked::from_environment()?;
//! Harness::new().run(&asked).await?;
//! # Ok(())
//! # }
//! ```

mod asked;
mod client_life;
mod cluster;
mod error;
pub mod forward;
mod harness;
mod identity;
mod ignored;
mod key;
mod modifier;
mod shared;
mod socket;
mod vigil;

pub use asked::Asked;
pub use cluster::Cluster;
pub use error::Error;
pub use harness::{Ended, Harness, IDLE_TIMEOUT, LockFile};
pub use identity::{Authority, ClientIdentity};
pub use ignored::{Heard, IgnoredSignals};
pub use key::{Certificate, ClientKey, KeyError};
pub use modifier::{ModifyError, NeedsBody, Outgoing, RequestModifier};
pub use shared::Seat;
pub use socket::Listen;
pub use vigil::Vigil;
