//! HTTP/1.1 without I/O: parses and encodes heads and bodies.
//!
//! A proxy needs details that general HTTP libraries do not expose: whether any byte of a request
//! was sent, where a refused upgrade ends, when upstream sent `100 Continue`. So this module
//! implements the message syntax of RFC 9112 as functions over buffers; the connections own their
//! sockets. `httparse` tokenizes. Framing is strict: a message of ambiguous length is rejected.
//!
//! ```
//! use bytes::BytesMut;
//! use skewbridge_http_engine::http1::{BodyEvent, Framing, parse_request};
//!
//! let mut buffer = BytesMut::from("POST /api/v1/pods HTTP/1.1\r\nHost: k\r\nContent-Length: 2\r\n\r\n{}");
//! let head = parse_request(&mut buffer).unwrap().expect("a whole head");
//! assert_eq!(head.framing, Framing::Length(2));
//! let mut body = head.framing.decoder();
//! assert_eq!(body.decode(&mut buffer).unwrap(), Some(BodyEvent::Data("{}".into())));
//! ```

mod body;
mod encode;
mod head;
mod line_ending;

pub use body::{BodyEvent, Decoder, Framing, FramingError};
pub use encode::{Encoder, write_headers, write_request_line, write_status_line};
pub use head::{
    HeadError, HeadTerminator, MAX_FIELDS, MAX_HEAD_BYTES, MAX_TARGET_BYTES, RequestHead,
    ResponseHead, parse_request, parse_response,
};
