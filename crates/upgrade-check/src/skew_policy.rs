//! The version skew policy of Kubernetes: <https://kubernetes.io/releases/version-skew-policy/>.

use skewbridge_released_apis::Minor;

/// The most minor versions by which kube-apiservers of one cluster may differ.
pub const MAX_SERVER_SKEW_MINORS: i32 = 1;

/// The most minor versions that a component may be older than kube-apiserver.
pub fn max_age_minors(component: &str, server: Minor) -> i32 {
    match component {
        // Three since kube-apiserver 1.28, two before.
        "kubelet" | "kube-proxy" if server.minor >= 28 => 3,
        "kubelet" | "kube-proxy" => 2,
        _ => 1,
    }
}

/// How a component is out of the policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Violation {
    /// It is newer than a kube-apiserver.
    Newer,
    /// It is older than is supported, by this many minor versions at most.
    TooOld(i32),
}

/// Whether a component may run with this kube-apiserver.
pub fn violation(component: &str, version: Minor, server: Minor) -> Option<Violation> {
    let age = server.ahead_of(version);
    let max_age = max_age_minors(component, server);
    match age {
        age if age < 0 => Some(Violation::Newer),
        age if age > max_age => Some(Violation::TooOld(max_age)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn components_follow_the_policy() {
        // (component, its version, that of kube-apiserver)
        let rows = [
            ("kubelet", "1.36", "1.36", None),
            ("kubelet", "1.33", "1.36", None),
            ("kubelet", "1.32", "1.36", Some(Violation::TooOld(3))),
            ("kubelet", "1.37", "1.36", Some(Violation::Newer)),
            ("kubelet", "1.25", "1.28", None),
            ("kubelet", "1.24", "1.27", Some(Violation::TooOld(2))),
            ("kube-proxy", "1.33", "1.36", None),
            ("kube-scheduler", "1.35", "1.36", None),
            ("kube-scheduler", "1.34", "1.36", Some(Violation::TooOld(1))),
            (
                "kube-controller-manager",
                "1.37",
                "1.36",
                Some(Violation::Newer),
            ),
        ];
        for (component, version, server, expected) in rows {
            let minor = |text: &str| text.parse().unwrap();
            let found = violation(component, minor(version), minor(server));
            assert_eq!(found, expected, "{component} {version} with {server}");
        }
    }
}
