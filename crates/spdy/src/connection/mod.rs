//! An SPDY connection on tokio: a session over any byte stream.
//!
//! [`client`] and [`server`] return three parts. The [`Driver`] is a future that moves the
//! bytes: nothing moves unless it is polled, and dropping it ends the connection. This crate
//! spawns no task. The [`Handle`] opens streams, sends pings and closes the connection.
//! [`Incoming`] yields the streams that the remote opens.
//!
//! # Backpressure
//!
//! A writer waits while [`Config::send_queue`] bytes of its stream are unsent. Streams send
//! round-robin, so a busy stream does not starve others. A slow reader stops only its own
//! stream if the remote implements flow control. moby/spdystream does not: such a connection
//! is not read while more than [`Config::receive_window`] bytes wait on one of its streams, so
//! one slow reader slows all streams, as that library does itself. Memory is bounded either
//! way. An application that does not want to read a stream drops its [`Receiver`]: received
//! data is then discarded.
//!
//! # How streams and connections end
//!
//! | local action | what the remote receives |
//! |---|---|
//! | [`Sender::finish`] | the end of the data, after all of it |
//! | a [`Sender`] is dropped without it | a reset: the data may be incomplete |
//! | a [`Receiver`] is dropped | nothing |
//! | [`Stream::reset`] | a reset |
//! | [`Handle::close`], or all handles and [`Incoming`] are dropped | `GOAWAY` and the end, once the streams have ended |
//! | the [`Driver`] is dropped | the end |

mod driver;
mod handle;
mod shared;
mod stream;

use tokio::io::{AsyncRead, AsyncWrite};

pub use driver::Driver;
pub use handle::{Handle, Incoming, PingError, Request};
pub use stream::{Receiver, Sender, Stream};

use crate::session::{Config, Role};
use shared::Shared;

/// The end that requested the upgrade to SPDY.
pub fn client<T>(io: T, config: Config) -> (Handle, Incoming, Driver<T>)
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    new(io, Role::Client, config)
}

/// The end that accepted the upgrade.
pub fn server<T>(io: T, config: Config) -> (Handle, Incoming, Driver<T>)
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    new(io, Role::Server, config)
}

fn new<T>(io: T, role: Role, config: Config) -> (Handle, Incoming, Driver<T>)
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let linger = config.linger;
    let shared = Shared::new(role, config);
    let handle = Handle::new(shared.clone());
    let incoming = Incoming::new(shared.clone());
    (handle, incoming, Driver::new(io, shared, linger))
}
