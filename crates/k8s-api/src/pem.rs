//! Private keys in PEM (RFC 7468). They are parsed without leaving copies in memory:
//! general PEM parsers do not zeroize the lines of a key that they have joined.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs1KeyDer, PrivatePkcs8KeyDer, PrivateSec1KeyDer};
use zeroize::Zeroizing;

/// A private key, zeroized on drop.
pub struct PrivateKey {
    encoding: Encoding,
    der: Zeroizing<Vec<u8>>,
}

/// The encoding of the DER.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Encoding {
    Pkcs8,
    Sec1,
    Pkcs1,
}

const ENCODINGS: [(&[u8], Encoding); 3] = [
    (b"PRIVATE KEY", Encoding::Pkcs8),
    (b"EC PRIVATE KEY", Encoding::Sec1),
    (b"RSA PRIVATE KEY", Encoding::Pkcs1),
];

impl PrivateKey {
    /// Parses the first unencrypted private key, if there is one.
    pub fn from_pem(pem: &[u8]) -> Option<Self> {
        let mut lines = pem.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
        let encoding = lines.find_map(|line| {
            let label = between(line, b"-----BEGIN ")?;
            let found = ENCODINGS.iter().find(|(known, _)| *known == label);
            found.map(|(_, encoding)| *encoding)
        })?;
        // The full capacity at once: a buffer that grows leaves copies behind.
        let mut base64 = Zeroizing::new(Vec::with_capacity(pem.len()));
        let mut is_complete = false;
        for line in lines {
            if between(line, b"-----END ").is_some() {
                is_complete = true;
                break;
            }
            base64.extend_from_slice(line);
        }
        let room = base64::decoded_len_estimate(base64.len());
        let mut der = Zeroizing::new(Vec::with_capacity(room));
        STANDARD.decode_vec(&*base64, &mut der).ok()?;
        (is_complete && !der.is_empty()).then_some(Self { encoding, der })
    }

    /// The key in DER for TLS, without a copy.
    pub fn as_der(&self) -> PrivateKeyDer<'_> {
        let der = &self.der[..];
        match self.encoding {
            Encoding::Pkcs8 => PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(der)),
            Encoding::Sec1 => PrivateKeyDer::Sec1(PrivateSec1KeyDer::from(der)),
            Encoding::Pkcs1 => PrivateKeyDer::Pkcs1(PrivatePkcs1KeyDer::from(der)),
        }
    }
}

fn between<'a>(line: &'a [u8], before: &[u8]) -> Option<&'a [u8]> {
    line.strip_prefix(before)?.strip_suffix(b"-----")
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PrivateKey").field(&self.encoding).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_unencrypted_key_is_parsed() {
        let pem = |label: &str, inside: &str| {
            format!("-----BEGIN {label}-----\n{inside}\n-----END {label}-----\n")
        };
        let certificate = pem("CERTIFICATE", "Y2VydA==");
        let rows = [
            (pem("PRIVATE KEY", "aGVs\nbG8="), Some(Encoding::Pkcs8)),
            (pem("EC PRIVATE KEY", "aGVsbG8="), Some(Encoding::Sec1)),
            (pem("RSA PRIVATE KEY", "aGVsbG8="), Some(Encoding::Pkcs1)),
            (
                format!("a word\n{certificate}{}", pem("PRIVATE KEY", "aGVsbG8=")),
                Some(Encoding::Pkcs8),
            ),
            (
                pem("PRIVATE KEY", " aGVsbG8= ").replace('\n', "\r\n"),
                Some(Encoding::Pkcs8),
            ),
            (certificate, None),
            (pem("ENCRYPTED PRIVATE KEY", "aGVsbG8="), None),
            (
                pem("RSA PRIVATE KEY", "Proc-Type: 4,ENCRYPTED\n\naGVsbG8="),
                None,
            ),
            (pem("PRIVATE KEY", "aGVsbG8"), None),
            (pem("PRIVATE KEY", ""), None),
            ("-----BEGIN PRIVATE KEY-----\naGVsbG8=\n".to_owned(), None),
            (String::new(), None),
        ];
        for (text, encoding) in rows {
            let key = PrivateKey::from_pem(text.as_bytes());
            assert_eq!(key.as_ref().map(|key| key.encoding), encoding, "{text}");
            if let Some(key) = key {
                assert_eq!(key.as_der().secret_der(), b"hello");
                assert!(!format!("{key:?}").contains("104"));
            }
        }
    }
}
