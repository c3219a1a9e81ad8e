//! Service account tokens, signed like those of kube-apiserver, which issues none that
//! expire within ten minutes.

use std::fmt::Write as _;

use rcgen::{KeyPair, SigningKey as _};
use serde_json::json;

use crate::control_plane::ControlPlane;

/// The length of each of the two integers of a P-256 signature.
const INTEGER_BYTES: usize = 32;

impl ControlPlane {
    /// A token of a service account in the namespace `default`, valid between these seconds
    /// since the epoch.
    pub fn service_account_token(&self, name: &str, uid: &str, from: u64, until: u64) -> String {
        let issuer = "https://kubernetes.default.svc";
        let claims = json!({
            "iss": issuer, "aud": [issuer], "iat": from, "nbf": from, "exp": until,
            "sub": format!("system:serviceaccount:default:{name}"),
            "kubernetes.io": {"namespace": "default",
                "serviceaccount": {"name": name, "uid": uid}},
        });
        let header = json!({"alg": "ES256", "typ": "JWT"});
        let mut token = base64url(header.to_string().as_bytes());
        let _ = write!(token, ".{}", base64url(claims.to_string().as_bytes()));
        let key = std::fs::read_to_string(self.pki.file("sa.key")).expect("a key");
        let key = KeyPair::from_pem(&key).expect("a key");
        let signature = key.sign(token.as_bytes()).expect("a signature");
        let _ = write!(token, ".{}", base64url(&concatenated(&signature)));
        token
    }
}

/// Converts an ASN.1 signature to its two concatenated integers (RFC 7518, 3.4).
fn concatenated(signature: &[u8]) -> Vec<u8> {
    let mut numbers = Vec::with_capacity(2 * INTEGER_BYTES);
    // Skips the tag and length of the sequence.
    let mut rest = &signature[2..];
    for _ in 0..2 {
        let (number, after) = rest[2..].split_at(usize::from(rest[1]));
        // A leading zero only marks the integer as positive.
        let digits = &number[number.len().saturating_sub(INTEGER_BYTES)..];
        numbers.resize(numbers.len() + INTEGER_BYTES - digits.len(), 0);
        numbers.extend(digits);
        rest = after;
    }
    numbers
}

/// Base64url without padding (RFC 4648, section 5).
pub fn base64url(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let mut group = [0; 4];
        group[1..=chunk.len()].copy_from_slice(chunk);
        let group = u32::from_be_bytes(group);
        for place in 0..=chunk.len() {
            let digit = (group >> (18 - 6 * place)) & 63;
            text.push(char::from(ALPHABET[digit as usize]));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64url_is_that_of_rfc_4648_without_padding() {
        for (bytes, text) in [
            (&b""[..], ""),
            (b"f", "Zg"),
            (b"fo", "Zm8"),
            (b"foo", "Zm9v"),
            (b"foob", "Zm9vYg"),
            (b"\xfb\xff\xfe", "-__-"),
        ] {
            assert_eq!(base64url(bytes), text);
        }
    }

    #[test]
    fn a_signature_is_two_integers_of_equal_length() {
        let mut short = vec![0x30, 0x26, 0x02, 0x01, 0x07, 0x02, 0x21, 0x00];
        short.extend([0x80; INTEGER_BYTES]);
        let concatenated = concatenated(&short);
        assert_eq!(concatenated.len(), 2 * INTEGER_BYTES);
        assert_eq!(concatenated[INTEGER_BYTES - 1], 7);
        assert_eq!(concatenated[..INTEGER_BYTES - 1], [0; INTEGER_BYTES - 1]);
        assert_eq!(concatenated[INTEGER_BYTES..], [0x80; INTEGER_BYTES]);
    }
}
