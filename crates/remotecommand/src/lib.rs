//! The subprotocols of exec, attach and port-forward, without I/O: negotiation, channels, and
//! the result of a command.
//!
//! A remote command has five [`Channel`]s. Over SPDY each is a stream of its own; over
//! WebSocket they share one connection, and each message names its channel. [`Reader`] and
//! [`Writer`] are for the latter; their type parameter names the channels of a direction, so
//! that neither end can write a channel of the other. The result of a command is an
//! [`Outcome`], which each protocol version encodes differently.
//!
//! ```
//! use bytes::BytesMut;
//! use skewbridge_remotecommand::{ChannelEvent, FromClient, Input, Protocol, ServerKind, ToServer, negotiate};
//! use skewbridge_websocket::{Decoder, Event, Limits, Role};
//!
//! // KEP-4006: a client that half-closes stdin needs version 5.
//! let agreed = negotiate(ServerKind::Translator, ["v5.channel.k8s.io"]).unwrap();
//! assert_eq!(agreed.protocol, Protocol::V5);
//!
//! let (mut client, mut wire) = (ToServer::new(agreed.protocol), BytesMut::new());
//! client.write(Input::Stdin, b"ls\n", &mut wire);
//! assert!(client.close(Input::Stdin, &mut wire));
//!
//! let mut frames = Decoder::new(Role::Server, Limits { frame: 1 << 20, message: 1 << 20 });
//! let (mut server, mut events) = (FromClient::new(agreed.protocol), Vec::new());
//! while let Some(event) = frames.decode(&mut wire).unwrap() {
//!     let Event::Chunk(chunk) = event else { continue };
//!     events.extend(server.read_chunk(chunk).unwrap());
//! }
//! let data = ChannelEvent::Data(Input::Stdin, "ls\n".into());
//! assert_eq!(events, [data, ChannelEvent::Closed(Input::Stdin)]);
//! ```

mod base64_text;
mod channel;
mod negotiation;
mod options;
mod outcome;
pub mod port_forward;
mod protocol;
mod query;
mod reader;
mod terminal;
mod writer;

pub use channel::{Channel, ChannelId, Input, Output, STREAM_TYPE};
pub use negotiation::{
    NegotiatedProtocol, ServerKind, SpdyNegotiationError, negotiate, negotiate_spdy, spdy_offers,
    spdy_protocol_from_response,
};
pub use options::{Options, QueryDialect};
pub use outcome::error_channel::{ErrorChannel, ErrorChannelEnd, MAX_ERROR_BYTES};
pub use outcome::{ExitCode, Failure, Outcome};
pub use protocol::{Encoding, Protocol, SpdyProtocol, Version};
pub use reader::{ChannelEvent, FromClient, FromServer, Reader, ReaderError};
pub use terminal::{ResizeDecoder, ResizeError, TerminalSize};
pub use writer::{ToClient, ToServer, Writer};
