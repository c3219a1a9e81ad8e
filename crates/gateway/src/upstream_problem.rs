//! Why upstream is not reached, by the flags and files of the bridge: for `/readyz` on the
//! admin port and the log, not for clients.

use std::path::PathBuf;

/// How the bridge was told to reach upstream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct UpstreamFlags {
    /// `--upstream`
    pub(crate) url: String,
    /// `--upstream-ca-file`
    pub(crate) ca: PathBuf,
}

/// What a cause has in it, and what to do about it. The first row that matches
/// counts.
const REMEDIES: [(&str, Blame, &str); 6] = [
    (
        "not signed by --upstream-ca-file",
        Blame::Ca,
        "give the CA that signed the serving certificate of the kube-apiserver \
         (kubeadm: /etc/kubernetes/pki/ca.crt)",
    ),
    (
        "--upstream-server-name",
        Blame::Url,
        "give one of the names of that certificate as --upstream-server-name, or as the host \
         of --upstream",
    ),
    (
        "certificate expired",
        Blame::Url,
        "renew the serving certificate of the kube-apiserver, or correct the clock of this \
         machine",
    ),
    (
        "corrupt message",
        Blame::Url,
        "no TLS is spoken there: --upstream must name the --secure-port of the kube-apiserver",
    ),
    (
        "Connection refused",
        Blame::Url,
        "start the kube-apiserver, or correct host and port of --upstream",
    ),
    (
        "cannot connect",
        Blame::Url,
        "check that the kube-apiserver runs there, or correct --upstream",
    ),
];

/// Which flag is to be looked at.
#[derive(Clone, Copy)]
enum Blame {
    Url,
    Ca,
}

/// The cause with the flag, what was given for it, and what to do. A cause that is
/// no fault of a flag, such as a server that is not ready, stays as it is.
pub(crate) fn explained(cause: &str, flags: &UpstreamFlags) -> String {
    let row = REMEDIES.iter().find(|(mark, ..)| cause.contains(mark));
    let Some((_, blame, remedy)) = row else {
        return cause.to_owned();
    };
    match blame {
        Blame::Url => format!("--upstream {}: {cause}; {remedy}", flags.url),
        Blame::Ca => format!(
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
                "give the CA that signed",
            ),
            (
                "cannot connect to 10.0.0.1:6443: TLS: … (--upstream-server-name says which name \
                 to expect)",
                url,
                "give one of the names",
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
                "no TLS is spoken there",
            ),
            (
                "cannot connect to 10.0.0.1:6443: Connection refused (os error 111)",
                url,
                "start the kube-apiserver",
            ),
            (
                "cannot connect to 10.0.0.1:6443: no answer within 10 s",
                url,
                "check that the kube-apiserver runs there",
            ),
        ];
        for (cause, beginning, remedy) in rows {
            let text = explained(cause, &flags);
            assert!(text.starts_with(&format!("{beginning}{cause}; ")), "{text}");
            assert!(text.contains(remedy), "{text}");
        }
        for cause in ["/readyz answered 500", "no answer within 5 s"] {
            assert_eq!(explained(cause, &flags), cause);
        }
    }
}
