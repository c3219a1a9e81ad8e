//! Values of `Authorization` and `Proxy-Authorization`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::HeaderValue;
use zeroize::Zeroizing;

use crate::Secret;

/// Whether this is a valid header value (RFC 9110, 5.5).
pub(crate) fn is_valid_header_value(token: &Secret) -> bool {
    let is_allowed = |byte: &u8| *byte == b'\t' || (*byte >= b' ' && *byte != 0x7f);
    token.expose().iter().all(is_allowed)
}

/// The `Authorization` header for a bearer token.
pub(crate) fn bearer_header(token: &Secret) -> Option<HeaderValue> {
    secret_header(&bearer_value(token))
}

/// The `Authorization` value for a bearer token.
pub(crate) fn bearer_value(token: &Secret) -> Secret {
    Secret::new([b"Bearer ", token.expose()].concat())
}

/// The `Authorization` value for basic authentication.
pub(crate) fn basic_value(name: &str, password: &[u8]) -> Secret {
    let pair = Zeroizing::new([name.as_bytes(), b":", password].concat());
    let pair = Zeroizing::new(STANDARD.encode(&*pair));
    Secret::new(["Basic ", &pair].concat())
}

/// A header that is marked as sensitive.
pub(crate) fn secret_header(value: &Secret) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_bytes(value.expose()).ok()?;
    value.set_sensitive(true);
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_must_be_a_valid_header_value() {
        for byte in 0..=u8::MAX {
            let token = Secret::new([b'x', byte, b'x']);
            assert_eq!(
                is_valid_header_value(&token),
                bearer_header(&token).is_some(),
                "{byte}"
            );
        }
    }
}
