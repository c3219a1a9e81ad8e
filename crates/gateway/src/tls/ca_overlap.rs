//! Whether one certificate can be authenticated by two CA bundles.
//!
//! The check follows signatures, not file contents: a CA that was renewed with the same key, that
//! is cross-signed, or that was issued by a CA of the other bundle overlaps with it. Validity dates
//! are ignored: a certificate that is expired here may be valid on a machine with another clock,
//! and a renewed one has the same issuer.

use rustls::crypto::aws_lc_rs;
use rustls_pki_types::CertificateDer;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::files::CaBundle;

/// Longest path from a certificate to a root, as in rustls' own path building.
const MAX_PATH_LENGTH: usize = 6;

/// Whether a client that presents this chain, leaf first, is authenticated by one of
/// these CAs.
pub fn authenticates(cas: &[CertificateDer<'_>], chain: &[CertificateDer<'_>]) -> bool {
    let chain = parse(chain);
    let Some((leaf, intermediates)) = chain.split_first() else {
        return false;
    };
    let roots = parse(cas);
    let intermediates: Vec<_> = intermediates.iter().collect();
    leads_to_root(leaf, &intermediates, &roots, MAX_PATH_LENGTH)
}

/// Whether a certificate exists, or could be issued, that both bundles authenticate: a CA of one
/// bundle is also in the other, or was issued by a CA of the other.
pub fn overlap(one: &CaBundle, other: &CaBundle) -> bool {
    let (one, other) = (parse(&one.certificates), parse(&other.certificates));
    // A client may present any of them as an intermediate.
    let all: Vec<_> = one.iter().chain(&other).collect();
    let leads = |from: &[X509Certificate<'_>], to: &[X509Certificate<'_>]| {
        from.iter()
            .any(|ca| leads_to_root(ca, &all, to, MAX_PATH_LENGTH))
    };
    leads(&one, &other) || leads(&other, &one)
}

fn parse<'a>(certificates: &'a [CertificateDer<'_>]) -> Vec<X509Certificate<'a>> {
    certificates
        .iter()
        .filter_map(|der| X509Certificate::from_der(der).ok())
        .map(|(_, certificate)| certificate)
        .collect()
}

fn leads_to_root(
    certificate: &X509Certificate<'_>,
    intermediates: &[&X509Certificate<'_>],
    roots: &[X509Certificate<'_>],
    remaining: usize,
) -> bool {
    let at_root = |root: &X509Certificate<'_>| {
        is_same_key(certificate, root) || is_issued_by(certificate, root)
    };
    if roots.iter().any(at_root) {
        return true;
    }
    remaining > 0
        && intermediates.iter().any(|issuer| {
            issuer.is_ca()
                && !is_same_key(certificate, issuer)
                && is_issued_by(certificate, issuer)
                && leads_to_root(issuer, intermediates, roots, remaining - 1)
        })
}

/// Path building uses the subject and the key of a CA, not the rest of its certificate.
fn is_same_key(one: &X509Certificate<'_>, other: &X509Certificate<'_>) -> bool {
    one.subject().as_raw() == other.subject().as_raw()
        && one.public_key().raw == other.public_key().raw
}

fn is_issued_by(certificate: &X509Certificate<'_>, issuer: &X509Certificate<'_>) -> bool {
    if certificate.issuer().as_raw() != issuer.subject().as_raw() {
        return false;
    }
    let key = &issuer.public_key().subject_public_key.data;
    let signed = certificate.tbs_certificate.as_ref();
    let signature = &certificate.signature_value.data;
    // A signature is only valid under the algorithm that created it.
    aws_lc_rs::default_provider()
        .signature_verification_algorithms
        .all
        .iter()
        .any(|algorithm| algorithm.verify_signature(key, signed, signature).is_ok())
}

#[cfg(test)]
mod tests {
    use skewbridge_testkit::{Ca, ScratchDir, Validity};

    use super::*;
    use crate::tls::files::load_ca;

    fn bundle(cas: &[&Ca]) -> CaBundle {
        let pem: String = cas.iter().map(|ca| ca.pem()).collect();
        load_ca(&ScratchDir::new().write("ca.crt", pem)).unwrap()
    }

    #[test]
    fn bundles_overlap_if_both_can_authenticate_one_certificate() {
        let (root, other) = (Ca::new("root"), Ca::new("other"));
        let (users, proxies) = (root.intermediate("users"), root.intermediate("proxies"));
        let below_users = users.intermediate("below-users");
        let namesake = Ca::new("root");
        let rows: [(&str, &[&Ca], &[&Ca], bool); 9] = [
            ("the same CA", &[&root], &[&root], true),
            ("unrelated CAs", &[&root], &[&other], false),
            (
                "CAs of one name with two keys",
                &[&root],
                &[&namesake],
                false,
            ),
            (
                "one shared CA of several",
                &[&users, &root],
                &[&other, &root],
                true,
            ),
            ("siblings below one root", &[&users], &[&proxies], false),
            ("root and CA below it", &[&root], &[&proxies], true),
            ("CA and the root above it", &[&proxies], &[&root], true),
            (
                "root and the CA two levels below, without the intermediate",
                &[&below_users],
                &[&root],
                false,
            ),
            (
                "root and the CA two levels below, with the intermediate",
                &[&below_users, &users],
                &[&root],
                true,
            ),
        ];
        for (what, one, other, expected) in rows {
            assert_eq!(overlap(&bundle(one), &bundle(other)), expected, "{what}");
        }
    }

    #[test]
    fn a_renewed_ca_is_the_same_although_its_bytes_differ() {
        let ca = Ca::new("kubernetes");
        let renewed = ca.renewed(Validity::Expired);
        assert_ne!(ca.der(), renewed.der());
        assert!(overlap(&bundle(&[&ca]), &bundle(&[&renewed])));
        let chain = ca.client("front-proxy-client", &[]).chain_der;
        assert!(authenticates(&bundle(&[&renewed]).certificates, &chain));
    }

    #[test]
    fn a_client_is_authenticated_by_the_root_of_its_chain() {
        let (root, other) = (Ca::new("root"), Ca::new("root"));
        let issuing = root.intermediate("issuing");
        let direct = root.client("front-proxy-client", &[]);
        let expired = root.client_valid("front-proxy-client", &[], Validity::Expired);
        let indirect = issuing.client("front-proxy-client", &[]);
        let rows = [
            ("direct", &direct.chain_der[..], &root, true),
            ("expired", &expired.chain_der[..], &root, true),
            (
                "through its intermediate",
                &indirect.chain_der[..],
                &root,
                true,
            ),
            (
                "without its intermediate",
                &indirect.chain_der[..1],
                &root,
                false,
            ),
            (
                "by the intermediate itself",
                &indirect.chain_der[..1],
                &issuing,
                true,
            ),
            ("another key", &direct.chain_der[..], &other, false),
            ("no certificate", &[], &root, false),
        ];
        for (what, chain, ca, expected) in rows {
            let cas = bundle(&[ca]).certificates;
            assert_eq!(authenticates(&cas, chain), expected, "{what}");
        }
    }
}
