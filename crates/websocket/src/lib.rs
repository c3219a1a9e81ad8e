//! WebSocket (RFC 6455) without I/O, in both roles: a decoder and an encoder of frames, and
//! the opening handshake as functions over headers.
//!
//! Received payloads are never copied: they are unmasked in place and split off the caller's
//! buffer chunk by chunk, so a message of any length needs no more memory than one read. To
//! send, [`Encoder::head`] returns the bytes that precede a payload, and the caller writes the
//! payload itself.
//!
//! Input that the RFC forbids is rejected with a [`Violation`], which names the close code for
//! the connection. Extensions are never negotiated.
//!
//! ```
//! use bytes::BytesMut;
//! use skewbridge_websocket::{Decoder, Encoder, Event, Frame, MessageKind, Limits, Role};
//!
//! let mut wire = BytesMut::new();
//! Encoder::new(Role::Client).write(Frame::Whole(MessageKind::Binary), &[b"\0", b"ls\n"], &mut wire);
//!
//! let mut decoder = Decoder::new(Role::Server, Limits { frame: 1 << 20, message: 1 << 20 });
//! let Ok(Some(Event::Chunk(chunk))) = decoder.decode(&mut wire) else { panic!() };
//! assert_eq!((&chunk.bytes[..], chunk.is_first, chunk.is_last), (&b"\0ls\n"[..], true, true));
//! ```

mod assembly;
mod close_code;
mod control;
mod decode;
mod encode;
mod frame;
mod handshake;
mod key;
mod mask;
mod utf8;
mod violation;

pub use assembly::Assembly;
pub use close_code::CloseCode;
pub use control::{Close, Control, ControlPayload};
pub use decode::{Decoder, Event, Limits, MessageChunk};
pub use encode::{Encoder, Head};
pub use frame::{Frame, MessageKind, Role};
pub use handshake::{
    Request, RequestError, ResponseError, check_response, is_upgrade, parse_upgrade_request,
    set_request_headers, set_response_headers, subprotocols,
};
pub use key::Key;
pub use mask::Mask;
pub use violation::Violation;
