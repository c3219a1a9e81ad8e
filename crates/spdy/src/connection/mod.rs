//! A connection on tokio: a session over anything that reads and writes.
//!
//! [`client`] and [`server`] give three things. The [`Driver`] is a future that
//! moves the bytes; nothing moves unless somebody awaits it, and all ends when it is
//! dropped: there is no task of this crate's own. The [`Handle`] opens streams, pings
//! and closes. [`Incoming`] are the streams that the other side opens.
//!
//! # Who waits for whom
//!
//! A writer waits when [`Config::send_queue`] bytes of its stream have not been
//! sent. Streams send in turn, so one that has much to send takes nothing from
//! others. A reader that does not keep up stops its own stream, where the other side
//! heeds windows. moby/spdystream does not: of such a connection nothing is read
//! while more than [`Config::receive_window`] bytes wait on one of its streams, so
//! that one slow reader slows all, which is what that library does to its peers as
//! well. Memory is bounded either way. Who does not want to read a stream drops its
//! [`Receiver`]: then what comes is thrown away.
//!
//! # How things end
//!
//! | what | what the other side sees |
//! |---|---|
//! | [`Sender::finish`] | the end of the data, after all of it |
//! | a [`Sender`] is dropped without it | a reset: nobody said that this was all |
//! | a [`Receiver`] is dropped | nothing |
//! | [`Stream::reset`] | a reset |
//! | [`Handle::close`], or all handles and [`Incoming`] are dropped | `GOAWAY` and the end, when the streams have ended |
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

/// The end of a connection that asked for SPDY.
pub fn client<T>(io: T, config: Config) -> (Handle, Incoming, Driver<T>)
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    new(io, Role::Client, config)
}

/// The end that granted it.
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
