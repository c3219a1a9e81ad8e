//! Explains why upstream cannot be reached, with flags and files of the bridge: for `/readyz` on
//! the admin port and for the log, not for clients.

use std::path::PathBuf;

/// The flags that configure the connection to upstream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct UpstreamFlags {
    /// `--upstream`
    pub(crate) url: String,
    /// `--upstream-ca-file`
    pub(crate) ca: PathBuf,
}

/// A text in the cause, the flag at fault, and what to do. The first match applies.
const REMEDIES: [(&str, FlagAtFault, &str); 6] = [
    (
        "not signed by --upstream-ca-file",
        FlagAtFault::Ca,
        "set the CA that signed the serving certificate of the kube-apiserver \
         (kubeadm: /etc/kubernetes/pki/ca.crt)",
    ),
    (
        "--upstream-server-name",
        FlagAtFault::Url,
        "set one of the names of that certificate as --upstream-server-name, or as the host \
         of --upstream",
    ),
    (
        "certificate expired",
        FlagAtFault::Url,
        "renew the serving certificate of the kube-apiserver, or correct the clock of this \
         machine",
    ),
    (
        "corrupt message",
        FlagAtFault::Url,
        "the port does not use TLS: --upstream must be the --secure-port of the kube-apiserver",
    ),
    (
        "Connection refused",
        FlagAtFault::Url,
        "start the kube-apiserver, or correct host and port of --upstream",
    ),
    (
        "cannot connect",
        FlagAtFault::Url,
        "check that the kube-apiserver runs there, or correct --upstream",
    ),
];

/// The flag to check.
#[derive(Clone, Copy)]
enum FlagAtFault {
    Url,
    Ca,
}

/// The cause with the flag, its value, and what to do. A cause that is not the fault of a flag,
/// such as a server that is not ready, is returned unchanged.
pub(crate) fn explain(cause: &str, flags: &UpstreamFlags) -> String {
    let row = REMEDIES.iter().find(|(mark, ..)| cause.contains(mark));
    let Some((_, flag_at_fault, remedy)) = row else {
        return cause.to_owned();
    };
    match flag_at_fault {
        FlagAtFault::Url => format!("--upstream {}: {cause}; {remedy}", flags.url),
        FlagAtFault::Ca => format!(
            "--upstream-ca-file {}: {cause}; {remedy}",
            flags.ca.display()
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_explained_by_flag_value_and_remedy() {
        let flags = UpstreamFlags {
            url: "https://10.0.0.1:6443".to_owned(),
            ca: "/pki/ca.crt".into(),
        };
        let url = "--upstream https://10.0.0.1:6443: ";
        let rows = [
            (
                "cannot connect to 10.0.0.1:6443: TLS: invalid peer certificate: UnknownIssuer (it \
                 is not signed by --upstream-ca-file)",
                "--upstream-ca-file /pki/ca.crt: ",
                "set the CA that signed",
            ),
            (
                "cannot connect to 10.0.0.1:6443: TLS: … (--upstream-server-name says which name \
                 to expect)",
                url,
                "set one of the names",
            ),
            (
                "cannot connect to 10.0.0.1:6443: TLS: invalid peer certificate: certificate \
                 expired: …",
                url,
                "renew the serving certificate",
            ),
            (
                "cannot connect to 10.0.0.1:6443: TLS: received corrupt message of type \
                 InvalidContentType",
                url,
                "the port does not use TLS",
            ),
            (
                "cannot connect to 10.0.0.1:6443: Connection refused (os error 111)",
                url,
                "start the kube-apiserver",
            ),
            (
                "cannot connect to 10.0.0.1:6443: no response within 10 s",
                url,
                "check that the kube-apiserver runs there",
            ),
        ];
        for (cause, beginning, remedy) in rows {
            let text = explain(cause, &flags);
            assert!(text.starts_with(&format!("{beginning}{cause}; ")), "{text}");
            assert!(text.contains(remedy), "{text}");
        }
        for cause in ["/readyz answered 500", "no answer within 5 s"] {
            assert_eq!(explain(cause, &flags), cause);
        }
    }
}
