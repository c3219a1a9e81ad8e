//! Private keys in PEM (RFC 7468), read so that no copy of them stays in memory: readers
//! for anything leave the lines of a key behind when they have put them together.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs1KeyDer, PrivatePkcs8KeyDer, PrivateSec1KeyDer};
use zeroize::Zeroizing;

/// A private key, overwritten when it is dropped.
pub struct PrivateKey {
    form: Form,
    der: Zeroizing<Vec<u8>>,
}

/// How it is written inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Pkcs8,
    Sec1,
    Pkcs1,
}

const FORMS: [(&[u8], Form); 3] = [
    (b"PRIVATE KEY", Form::Pkcs8),
    (b"EC PRIVATE KEY", Form::Sec1),
    (b"RSA PRIVATE KEY", Form::Pkcs1),
];

impl PrivateKey {
    /// The first one; none if there is none that is not encrypted.
    pub fn from_pem(pem: &[u8]) -> Option<Self> {
        let mut lines = pem.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
        let form = lines.find_map(|line| {
            let label = between(line, b"-----BEGIN ")?;
            let found = FORMS.iter().find(|(known, _)| *known == label);
            found.map(|(_, form)| *form)
        })?;
        // Room for all of it: a buffer that grows leaves copies behind.
        let mut base64 = Zeroizing::new(Vec::with_capacity(pem.len()));
        let mut is_whole = false;
        for line in lines {
            if between(line, b"-----END ").is_some() {
                is_whole = true;
                break;
            }
            base64.extend_from_slice(line);
        }
        let room = base64::decoded_len_estimate(base64.len());
        let mut der = Zeroizing::new(Vec::with_capacity(room));
        STANDARD.decode_vec(&*base64, &mut der).ok()?;
        (is_whole && !der.is_empty()).then_some(Self { form, der })
    }

    /// As TLS takes it, without a copy.
    pub fn as_der(&self) -> PrivateKeyDer<'_> {
        let der = &self.der[..];
        match self.form {
            Form::Pkcs8 => PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(der)),
            Form::Sec1 => PrivateKeyDer::Sec1(PrivateSec1KeyDer::from(der)),
            Form::Pkcs1 => PrivateKeyDer::Pkcs1(PrivatePkcs1KeyDer::from(der)),
        }
    }
}

fn between<'a>(line: &'a [u8], before: &[u8]) -> Option<&'a [u8]> {
    line.strip_prefix(before)?.strip_suffix(b"-----")
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PrivateKey").field(&self.form).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_key_is_read_whatever_is_around_it() {
        let pem = |label: &str, inside: &str| {
            format!("-----BEGIN {label}-----\n{inside}\n-----END {label}-----\n")
        };
        let certificate = pem("CERTIFICATE", "Y2VydA==");
        let rows = [
            (pem("PRIVATE KEY", "aGVs\nbG8="), Some(Form::Pkcs8)),
            (pem("EC PRIVATE KEY", "aGVsbG8="), Some(Form::Sec1)),
            (pem("RSA PRIVATE KEY", "aGVsbG8="), Some(Form::Pkcs1)),
            (
                format!("a word\n{certificate}{}", pem("PRIVATE KEY", "aGVsbG8=")),
                Some(Form::Pkcs8),
            ),
            (
                pem("PRIVATE KEY", " aGVsbG8= ").replace('\n', "\r\n"),
                Some(Form::Pkcs8),
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
        for (text, form) in rows {
            let key = PrivateKey::from_pem(text.as_bytes());
            assert_eq!(key.as_ref().map(|key| key.form), form, "{text}");
            if let Some(key) = key {
                assert_eq!(key.as_der().secret_der(), b"hello");
                assert!(!format!("{key:?}").contains("104"));
            }
        }
    }
}
