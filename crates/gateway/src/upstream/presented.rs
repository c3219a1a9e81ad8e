//! Until when the serving certificates are valid that servers presented on the last connections.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use rustls_pki_types::CertificateDer;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Servers whose certificates are remembered. A cluster has three to seven.
const MAX_SERVERS: usize = 64;

/// The ends of validity, by `HOST:PORT`.
#[derive(Debug, Clone, Default)]
pub(crate) struct PresentedCertificates(Arc<Mutex<BTreeMap<String, i64>>>);

impl PresentedCertificates {
    /// A verified server has presented this certificate.
    pub(crate) fn note(&self, server: String, certificate: &CertificateDer<'_>) {
        let Ok((_, certificate)) = X509Certificate::from_der(certificate) else {
            return;
        };
        let not_after = certificate.validity().not_after.timestamp();
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MAX_SERVERS && !all.contains_key(&server) {
            all.pop_first();
        }
        all.insert(server, not_after);
    }

    /// Seconds since 1970, if a connection to the server was opened.
    pub(crate) fn not_after(&self, server: &str) -> Option<i64> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(server).copied()
    }
}

#[cfg(test)]
mod tests {
    use skewbridge_testkit::Ca;

    use super::*;

    #[test]
    fn certificates_are_remembered_by_server_up_to_a_bound() {
        let presented = PresentedCertificates::default();
        let certificate = Ca::new("ca").server(&["a"]).chain_der.remove(0);
        for number in 0..MAX_SERVERS + 3 {
            presented.note(format!("10.0.0.{number:03}:6443"), &certificate);
        }
        assert_eq!(presented.0.lock().unwrap().len(), MAX_SERVERS);
        assert!(presented.not_after("10.0.0.066:6443").is_some());
        presented.note("b:1".to_owned(), &CertificateDer::from(vec![1]));
        assert_eq!(presented.not_after("b:1"), None);
    }
}
