//! HTTP/1.1 without I/O: bytes in, heads and body pieces out, and back.
//!
//! A gateway has to know things that general HTTP libraries keep to
//! themselves: whether any byte of a request has left, where a refused
//! upgrade ends, when upstream said `100 Continue`. So the message syntax of
//! RFC 9112 lives here as plain functions over buffers, and the connections
//! that use it own their sockets. Tokenising is left to `httparse`; what is
//! decided here is framing, and it is decided strictly: a message whose length
//! two readers could understand differently is refused.
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
mod line;

pub use body::{BodyEvent, Decoder, Framing, FramingError};
pub use encode::{Encoder, write_headers, write_request_line, write_status_line};
pub use head::{
    HeadError, HeadTerminator, MAX_FIELDS, MAX_HEAD_BYTES, MAX_TARGET_BYTES, RequestHead,
    ResponseHead, parse_request, parse_response,
};
