//! Encodes messages and control frames.

use bytes::BytesMut;

use crate::control::Control;
use crate::frame::{Frame, Header, MAX_HEADER_BYTES, Opcode, Role};
use crate::mask::{Mask, Masks};

/// Encodes the frames of one end.
#[derive(Debug)]
pub struct Encoder(Option<Masks>);

impl Encoder {
    /// For the end with this role.
    pub fn new(role: Role) -> Self {
        Self(match role {
            Role::Client => Some(Masks::new()),
            Role::Server => None,
        })
    }

    /// The bytes that precede a payload of this length. A server writes the payload after them
    /// unchanged; a client masks it first ([`Head::mask`]).
    pub fn head(&mut self, frame: Frame, length: usize) -> Head {
        self.header(frame.fin(), frame.opcode(), length)
    }

    /// Appends a frame whose payload is the concatenation of these parts.
    pub fn write(&mut self, frame: Frame, payload: &[&[u8]], out: &mut BytesMut) {
        let length = payload.iter().map(|part| part.len()).sum();
        let head = self.head(frame, length);
        head.write(payload, length, out);
    }

    /// Appends a control frame.
    pub fn control(&mut self, control: &Control, out: &mut BytesMut) {
        let payload = control.payload();
        let opcode = Opcode::Control(control.opcode());
        let head = self.header(true, opcode, payload.len());
        head.write(&[&payload], payload.len(), out);
    }

    fn header(&mut self, fin: bool, opcode: Opcode, length: usize) -> Head {
        let mask = self.0.as_mut().map(Masks::next);
        let header = Header {
            fin,
            opcode,
            mask,
            length: length as u64,
        };
        let mut bytes = [0; MAX_HEADER_BYTES];
        let length = header.write(&mut bytes);
        Head {
            bytes,
            length,
            mask,
        }
    }
}

/// The bytes that precede a payload.
#[derive(Debug, Clone, Copy)]
pub struct Head {
    bytes: [u8; MAX_HEADER_BYTES],
    length: usize,
    mask: Option<Mask>,
}

impl Head {
    /// The encoded bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// The mask to apply to the payload before it is written; `None` for servers.
    pub fn mask(&self) -> Option<Mask> {
        self.mask
    }

    fn write(&self, payload: &[&[u8]], length: usize, out: &mut BytesMut) {
        out.reserve(self.length + length);
        out.extend_from_slice(self.as_bytes());
        let mut mask = self.mask;
        for part in payload {
            match &mut mask {
                None => out.extend_from_slice(part),
                Some(mask) => *mask = mask.append(part, out),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::close_code::CloseCode;
    use crate::control::{Close, ControlPayload};
    use crate::frame::MessageKind;

    #[test]
    fn the_examples_of_rfc_6455_are_encoded() {
        // RFC 6455, 5.7.
        let mut server = Encoder::new(Role::Server);
        let mut out = BytesMut::new();
        server.write(Frame::Whole(MessageKind::Text), &[b"Hello"], &mut out);
        assert_eq!(out.split(), b"\x81\x05Hello"[..]);
        server.write(Frame::First(MessageKind::Text), &[b"Hel"], &mut out);
        server.write(Frame::Last, &[b"lo"], &mut out);
        assert_eq!(out.split(), b"\x01\x03Hel\x80\x02lo"[..]);
        let hello = ControlPayload::new("Hello".into()).unwrap();
        server.control(&Control::Ping(hello), &mut out);
        assert_eq!(out.split(), b"\x89\x05Hello"[..]);
        let head = server.head(Frame::Whole(MessageKind::Binary), 256);
        assert_eq!(head.as_bytes(), b"\x82\x7e\x01\x00");
        let head = server.head(Frame::Whole(MessageKind::Binary), 65536);
        assert_eq!(head.as_bytes(), b"\x82\x7f\0\0\0\0\0\x01\0\0");
        let close = Close::new(CloseCode::NORMAL, "bye");
        server.control(&Control::Close(Some(close)), &mut out);
        assert_eq!(out.split(), b"\x88\x05\x03\xe8bye"[..]);
    }

    #[test]
    fn a_client_masks_each_frame_with_a_new_key() {
        let mut client = Encoder::new(Role::Client);
        let heads = [0; 2].map(|_| client.head(Frame::Whole(MessageKind::Binary), 5));
        let [a, b] = heads.map(|head| head.mask().unwrap().key());
        assert_ne!(a, b);
        assert_eq!(&heads[0].as_bytes()[..2], b"\x82\x85");
        assert_eq!(heads[0].as_bytes()[2..], a);
    }
}
