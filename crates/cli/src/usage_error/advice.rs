//! Flags and commands of kube-apiserver and kubectl that this program does not have, and what to
//! use instead.

/// Flags of kube-apiserver for functions that remain in kube-apiserver behind a bridge.
const KUBE_APISERVERS: &[&str] = &[
    "admission-control-config-file",
    "allow-privileged",
    "anonymous-auth",
    "api-audiences",
    "audit-log-path",
    "audit-policy-file",
    "authentication-config",
    "authorization-config",
    "authorization-mode",
    "disable-admission-plugins",
    "enable-admission-plugins",
    "enable-aggregator-routing",
    "enable-bootstrap-token-auth",
    "encryption-provider-config",
    "kubelet-certificate-authority",
    "kubelet-client-certificate",
    "kubelet-client-key",
    "kubelet-preferred-address-types",
    "oidc-client-id",
    "oidc-issuer-url",
    "runtime-config",
    "service-account-issuer",
    "service-account-key-file",
    "service-account-signing-key-file",
    "service-cluster-ip-range",
    "service-node-port-range",
    "storage-backend",
    "storage-media-type",
    "token-auth-file",
    "tracing-config-file",
];

/// Advice on a flag that a command does not have: the command, the flag, the advice.
const FLAGS: &[(&str, &str, &str)] = &[
    (
        "serve",
        "kubeconfig",
        "a bridge has no kubeconfig: '--upstream' names its kube-apiserver, \
         '--upstream-ca-file' the CA, '--proxy-client-cert-file' its credentials",
    ),
    (
        "serve",
        "insecure-port",
        "clients connect by TLS only; '--admin-address' serves health and metrics by plain HTTP",
    ),
    (
        "serve",
        "tls-cipher-suites",
        "the cipher suites are fixed; '--tls-min-version' sets the oldest TLS version",
    ),
    (
        "serve",
        "max-requests-inflight",
        "kube-apiserver limits requests; '--max-connections' and '--max-buffered-bytes' bound \
         the bridge",
    ),
    (
        "serve",
        "max-mutating-requests-inflight",
        "kube-apiserver limits requests; '--max-connections' and '--max-buffered-bytes' bound \
         the bridge",
    ),
    (
        "serve",
        "profiling",
        "there is no profiling; '/metrics' of '--admin-address' has the figures",
    ),
    (
        "serve",
        "log-level",
        "use '--v', as in kube-apiserver: 0 to 10",
    ),
    (
        "exec",
        "selector",
        "name the object that runs the pods: TYPE/NAME, such as deploy/web",
    ),
    (
        "attach",
        "selector",
        "name the object that runs the pods: TYPE/NAME, such as deploy/web",
    ),
    (
        "port-forward",
        "selector",
        "name the object that runs the pods: TYPE/NAME, such as deploy/web",
    ),
    (
        "skew",
        "all-contexts",
        "give '--context' once for each cluster",
    ),
    ("skew", "namespace", "discovery has no namespaces"),
    (
        "run",
        "kubectl",
        "the command follows two dashes: skewbridge run -- kubectl get pods",
    ),
];

/// Commands of kubectl that `run` can start.
const KUBECTLS: &[&str] = &[
    "annotate",
    "api-resources",
    "api-versions",
    "apply",
    "auth",
    "cluster-info",
    "config",
    "cordon",
    "create",
    "debug",
    "delete",
    "describe",
    "drain",
    "edit",
    "events",
    "explain",
    "expose",
    "get",
    "label",
    "logs",
    "patch",
    "replace",
    "rollout",
    "scale",
    "top",
    "uncordon",
    "wait",
];

/// Command names that do not exist, and the command to suggest.
const COMMANDS: &[(&str, &str)] = &[
    ("balancer", "serve"),
    ("bridge", "serve"),
    ("compare", "skew"),
    ("copy", "cp"),
    ("demo", "playground"),
    ("diff", "skew"),
    ("explain-route", "route"),
    ("gateway", "serve"),
    ("install", "manifest"),
    ("proxy", "serve"),
    ("server", "serve"),
    ("shell", "run --shell"),
    ("start", "serve"),
    ("trace", "route"),
];

/// Advice on a flag that a command does not have.
pub(super) fn on_flag(command: &str, flag: &str) -> Option<&'static str> {
    let mut rows = FLAGS.iter();
    if let Some((.., advice)) = rows.find(|(of, name, _)| *of == command && *name == flag) {
        return Some(advice);
    }
    (command == "serve" && KUBE_APISERVERS.contains(&flag)).then_some(
        "this flag of kube-apiserver stays there: a bridge forwards requests, and \
         kube-apiserver authorizes, admits, stores and audits them",
    )
}

/// Advice on a command that does not exist.
pub(super) fn on_subcommand(name: &str, program: &str) -> Option<String> {
    if let Some((_, command)) = COMMANDS.iter().find(|(other, _)| *other == name) {
        return Some(format!("use '{program} {command}'"));
    }
    KUBECTLS.contains(&name).then(|| {
        format!(
            "'{name}' is a command of kubectl: 'kubectl {name}', or with credentials of a plugin \
             that proxies requests, '{program} run -- kubectl {name}'"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_is_on_names_that_do_not_exist_and_points_to_names_that_do() {
        let mut definition = crate::definition();
        definition.build();
        let command = |name: &str| definition.find_subcommand(name);
        for (of, flag, advice) in FLAGS {
            let of = command(of).unwrap();
            let has = |name: &str| of.get_arguments().any(|it| it.get_long() == Some(name));
            assert!(!has(flag), "{flag}");
            for pointed in advice.split("'--").skip(1) {
                let name = pointed.split('\'').next().unwrap();
                assert!(has(name), "--{name}");
            }
        }
        let serve = command("serve").unwrap();
        for flag in KUBE_APISERVERS {
            let is = |it: &clap::Arg| it.get_long() == Some(*flag);
            assert!(!serve.get_arguments().any(is), "{flag}");
        }
        for (name, pointed) in COMMANDS {
            assert!(command(name).is_none(), "{name}");
            let pointed = pointed.split(' ').next().unwrap();
            let is_optional = pointed == "playground" && !cfg!(feature = "playground");
            assert!(is_optional || command(pointed).is_some(), "{pointed}");
        }
        for name in KUBECTLS {
            assert!(command(name).is_none(), "{name}");
        }
    }
}
