//! Who may vouch for a cluster's server, and for a proxy before it.

use crate::tls::Trust;

/// Whose certificates are believed on the way to a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Authorities {
    /// Those of these CAs, in PEM.
    These(Vec<u8>),
    /// Those of the CAs of this system.
    System,
    /// Anybody's.
    Anybody,
}

impl Authorities {
    /// As a kubeconfig has it: `certificate-authority`, if there is one, and
    /// `insecure-skip-tls-verify`.
    pub fn of(pem: Option<&[u8]>, skip_verification: bool) -> Result<Self, String> {
        match (pem, skip_verification) {
            (Some(_), true) => Err(
                "specifying a root certificates file with the insecure flag is not allowed"
                    .to_owned(),
            ),
            (Some(pem), false) => Ok(Self::These(pem.to_owned())),
            (None, true) => Ok(Self::Anybody),
            (None, false) => Ok(Self::System),
        }
    }

    /// Whom to believe as the cluster.
    pub(crate) fn for_cluster(&self) -> Trust<'_> {
        match self {
            Self::These(pem) => Trust::Authorities(pem),
            Self::System => Trust::System,
            Self::Anybody => Trust::Anybody,
        }
    }

    /// Whom to believe as an HTTPS proxy. client-go has one set of rules for both the
    /// cluster and the proxy before it: the cluster's CA, or anybody if the cluster is not
    /// verified. Those of the system are believed beside the cluster's, for proxies that
    /// others go through too; what is inside the tunnel is verified by the cluster's alone.
    pub(crate) fn for_proxy(&self) -> Trust<'_> {
        match self {
            Self::These(pem) => Trust::SystemAnd(pem),
            Self::System => Trust::System,
            Self::Anybody => Trust::Anybody,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_is_believed_by_the_clusters_rules_and_by_the_systems() {
        let of = |pem: Option<&str>, skip| Authorities::of(pem.map(str::as_bytes), skip);
        let these = of(Some("x"), false).unwrap();
        assert!(matches!(these.for_cluster(), Trust::Authorities(b"x")));
        assert!(matches!(these.for_proxy(), Trust::SystemAnd(b"x")));
        let system = of(None, false).unwrap();
        assert!(matches!(system.for_cluster(), Trust::System));
        assert!(matches!(system.for_proxy(), Trust::System));
        let anybody = of(None, true).unwrap();
        assert!(matches!(anybody.for_cluster(), Trust::Anybody));
        assert!(matches!(anybody.for_proxy(), Trust::Anybody));
        let error = of(Some("x"), true).unwrap_err();
        assert!(error.contains("with the insecure flag"), "{error}");
    }
}
