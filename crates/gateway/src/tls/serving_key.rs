//! The digest of a serving key: bridges publish it, and peers pin it.

use aws_lc_rs::digest::{SHA256, digest};
use rustls_pki_types::CertificateDer;
use skewbridge_peer_directory::KeyDigest;
use skewbridge_peer_directory::served_record::MAX_SERVING_KEYS;
use x509_parser::prelude::{FromDer, X509Certificate};

/// The SHA-256 digest of the `SubjectPublicKeyInfo` of a certificate. A certificate that is
/// renewed with the same key keeps it.
pub(crate) fn key_digest(certificate: &CertificateDer<'_>) -> Option<KeyDigest> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let digest = digest(&SHA256, certificate.public_key().raw);
    digest.as_ref().try_into().ok()
}

/// The digests to publish when the bridge begins to serve with `new`: the new one, and the previous
/// one, with which connections may still be opened.
pub(crate) fn rotated(before: &[KeyDigest], new: KeyDigest) -> Vec<KeyDigest> {
    let others = before.iter().copied().filter(|digest| *digest != new);
    [new]
        .into_iter()
        .chain(others)
        .take(MAX_SERVING_KEYS)
        .collect()
}

/// Whether a peer may present this certificate. Without pins it may present any.
pub(crate) fn is_pinned(pins: &[KeyDigest], certificate: Option<&CertificateDer<'_>>) -> bool {
    pins.is_empty()
        || certificate
            .and_then(key_digest)
            .is_some_and(|digest| pins.contains(&digest))
}

#[cfg(test)]
mod tests {
    use skewbridge_testkit::Ca;

    use super::*;

    #[test]
    fn rotation_keeps_the_previous_key() {
        let [a, b, c] = [1, 2, 3].map(|byte| [byte; 32]);
        for (before, new, expected) in [
            (vec![], a, vec![a]),
            (vec![a], a, vec![a]),
            (vec![a], b, vec![b, a]),
            (vec![b, a], c, vec![c, b]),
            (vec![b, a], a, vec![a, b]),
        ] {
            assert_eq!(rotated(&before, new), expected);
        }
    }

    #[test]
    fn only_a_pinned_key_is_accepted() {
        let ca = Ca::new("ca");
        let der = |pem: &str| {
            use rustls_pki_types::pem::PemObject as _;
            CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()
        };
        let [one, other] = ["a", "b"].map(|name| der(&ca.server(&[name]).cert_pem));
        let digest = |certificate| key_digest(certificate).unwrap();
        assert_ne!(digest(&one), digest(&other));
        for (pins, certificate, expected) in [
            (vec![], Some(&one), true),
            (vec![digest(&one)], Some(&one), true),
            (vec![digest(&other), digest(&one)], Some(&one), true),
            (vec![digest(&other)], Some(&one), false),
            (vec![digest(&one)], None, false),
            (vec![digest(&one)], Some(&b"garbage"[..].into()), false),
        ] {
            assert_eq!(is_pinned(&pins, certificate), expected);
        }
    }
}
