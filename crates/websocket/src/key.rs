//! The key with which a server proves that it has read the handshake (RFC 6455, 4.2.2).

use std::fmt;

use aws_lc_rs::{digest, rand};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http::HeaderValue;

/// What the server hashes together with the key.
const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// `Sec-WebSocket-Key`: sixteen bytes in base64.
#[derive(Clone, PartialEq, Eq)]
pub struct Key(HeaderValue);

impl Key {
    /// A new random key.
    pub fn random() -> Self {
        let mut nonce = [0; 16];
        // Cannot fail: AWS-LC aborts if it has no randomness.
        let _ = rand::fill(&mut nonce);
        Self(ascii(&BASE64_STANDARD.encode(nonce)))
    }

    /// `None` if it does not conform to the RFC (4.2.1, 5).
    pub fn parse(value: &HeaderValue) -> Option<Self> {
        let nonce = BASE64_STANDARD.decode(value.as_bytes()).ok()?;
        (nonce.len() == 16).then(|| Self(value.clone()))
    }

    /// The header value of a request.
    pub fn value(&self) -> &HeaderValue {
        &self.0
    }

    /// `Sec-WebSocket-Accept` of the response.
    pub fn accept(&self) -> HeaderValue {
        let mut hash = digest::Context::new(&digest::SHA1_FOR_LEGACY_USE_ONLY);
        hash.update(self.0.as_bytes());
        hash.update(GUID);
        ascii(&BASE64_STANDARD.encode(hash.finish()))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Key(..)")
    }
}

fn ascii(base64: &str) -> HeaderValue {
    // Base64 has only characters that a header value may have.
    HeaderValue::from_str(base64).unwrap_or_else(|_| HeaderValue::from_static(""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_rfc_6455_is_reproduced() {
        // RFC 6455, 1.3.
        let value = HeaderValue::from_static("dGhlIHNhbXBsZSBub25jZQ==");
        let key = Key::parse(&value).unwrap();
        assert_eq!(key.accept(), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        assert_eq!(key.value(), value);
    }

    #[test]
    fn keys_are_sixteen_bytes() {
        let key = Key::random();
        assert_eq!(Key::parse(key.value()), Some(key.clone()));
        assert_ne!(key, Key::random());
        for bad in [
            "",
            "x",
            "dGhlIHNhbXBsZQ==",
            "dGhlIHNhbXBsZSBub25jZQ",
            "!!!!",
        ] {
            assert_eq!(Key::parse(&HeaderValue::from_static(bad)), None, "{bad}");
        }
    }
}
