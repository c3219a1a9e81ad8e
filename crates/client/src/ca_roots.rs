//! Who may vouch for a cluster's server, and for a proxy before it.

use crate::tls::ServerTrust;

/// Whose certificates are believed on the way to a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CaRoots {
    /// Those of these CAs, in PEM.
    Pem(Vec<u8>),
    /// Those of the CAs of this system.
    System,
    /// Anybody's.
    SkipVerification,
}

impl CaRoots {
    /// As a kubeconfig has it: `certificate-authority`, if there is one, and
    /// `insecure-skip-tls-verify`.
    pub fn from_kubeconfig(pem: Option<&[u8]>, skip_verification: bool) -> Result<Self, String> {
        match (pem, skip_verification) {
            (Some(_), true) => Err(
                "specifying a root certificates file with the insecure flag is not allowed"
                    .to_owned(),
            ),
            (Some(pem), false) => Ok(Self::Pem(pem.to_owned())),
            (None, true) => Ok(Self::SkipVerification),
            (None, false) => Ok(Self::System),
        }
    }

    /// Whom to believe as the cluster.
    pub(crate) fn for_cluster(&self) -> ServerTrust<'_> {
        match self {
            Self::Pem(pem) => ServerTrust::Pem(pem),
            Self::System => ServerTrust::System,
            Self::SkipVerification => ServerTrust::SkipVerification,
        }
    }

    /// Whom to believe as an HTTPS proxy. client-go has one set of rules for both the
    /// cluster and the proxy before it: the cluster's CA, or anybody if the cluster is not
    /// verified. Those of the system are believed beside the cluster's, for proxies that
    /// others go through too; what is inside the tunnel is verified by the cluster's alone.
    pub(crate) fn for_proxy(&self) -> ServerTrust<'_> {
        match self {
            Self::Pem(pem) => ServerTrust::SystemAndPem(pem),
            Self::System => ServerTrust::System,
            Self::SkipVerification => ServerTrust::SkipVerification,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_is_believed_by_the_clusters_rules_and_by_the_systems() {
        let from_kubeconfig =
            |pem: Option<&str>, skip| CaRoots::from_kubeconfig(pem.map(str::as_bytes), skip);
        let pem_roots = from_kubeconfig(Some("x"), false).unwrap();
        assert!(matches!(pem_roots.for_cluster(), ServerTrust::Pem(b"x")));
        assert!(matches!(
            pem_roots.for_proxy(),
            ServerTrust::SystemAndPem(b"x")
        ));
        let system = from_kubeconfig(None, false).unwrap();
        assert!(matches!(system.for_cluster(), ServerTrust::System));
        assert!(matches!(system.for_proxy(), ServerTrust::System));
        let unverified = from_kubeconfig(None, true).unwrap();
        assert!(matches!(
            unverified.for_cluster(),
            ServerTrust::SkipVerification
        ));
        assert!(matches!(
            unverified.for_proxy(),
            ServerTrust::SkipVerification
        ));
        let error = from_kubeconfig(Some("x"), true).unwrap_err();
        assert!(error.contains("with the insecure flag"), "{error}");
    }
}
