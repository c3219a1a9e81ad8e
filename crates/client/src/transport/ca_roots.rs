//! The CA roots for a cluster's server, and for a proxy in front of it.

use super::tls::ServerTrust;

/// Which certificates are trusted on connections to a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CaRoots {
    /// Certificates signed by these CAs, in PEM.
    Pem(Vec<u8>),
    /// Certificates signed by the system's CAs.
    System,
    /// All certificates: no certificate is verified.
    SkipVerification,
}

impl CaRoots {
    /// From the kubeconfig fields `certificate-authority`, if set, and
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

    /// The trust policy for the cluster's server.
    pub(crate) fn for_cluster(&self) -> ServerTrust<'_> {
        match self {
            Self::Pem(pem) => ServerTrust::Pem(pem),
            Self::System => ServerTrust::System,
            Self::SkipVerification => ServerTrust::SkipVerification,
        }
    }

    /// The trust policy for an HTTPS proxy. client-go uses the same rules for the cluster and
    /// its proxy: the cluster's CA, or no verification if the cluster is not verified. Here the
    /// system's CAs are trusted as well, for proxies that are shared with other traffic. The
    /// TLS connection inside the tunnel is verified with the cluster's CA alone.
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
    fn a_proxy_is_trusted_by_the_clusters_and_the_systems_cas() {
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
