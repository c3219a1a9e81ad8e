//! Forwards requests of clients, changed by modifiers, to one server.
//!
//! Independent of plugins. A [`Forwarder`] has a [`Dial`] that opens connections, the authority of
//! the server, and the modifiers; [`serve()`] accepts clients, and [`ServerThread`] does so on a
//! dedicated thread. `http-engine` implements HTTP/1.1, HTTP/2 and upgrades, and streams bodies and
//! watches. A request that could have an effect is never sent twice, and a truncated response is
//! truncated for the client too.

mod activity;
mod body_budget;
mod collected_body;
mod credential_state;
mod dial;
mod error;
mod forwarder;
mod logged_failure;
mod pending_handshakes;
mod retry_class;
mod serve;
mod server_thread;
mod unauthorized_body;

pub use crate::modifier::BoxFuture;
pub use activity::Activity;
pub use credential_state::CredentialState;
pub use dial::{ConnectError, Dial, DialedStream, Protocol, ProtocolOffer, connect_error};
pub use forwarder::{DEFAULT_MAX_BODY_BYTES, Forwarder};
pub(crate) use serve::is_same_user;
pub use serve::{Listener, serve};
pub use server_thread::ServerThread;
