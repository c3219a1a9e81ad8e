//! Components of Kubernetes, as their `User-Agent` names them.
//!
//! A component must not be newer than the kube-apiserver that it uses (Kubernetes' version skew
//! policy). client-go sends `NAME/vX.Y.Z (OS/ARCH) kubernetes/COMMIT`, where `NAME` is the file name
//! of the program.

use crate::version::Version;

/// The components that the version skew policy covers.
pub const SKEW_POLICY_COMPONENTS: [&str; 6] = [
    "kubelet",
    "kube-controller-manager",
    "kube-scheduler",
    "cloud-controller-manager",
    "kube-proxy",
    "kubeadm",
];

/// A component and its version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Component<'a> {
    /// The name of the program.
    pub name: &'a str,
    /// Its version.
    pub version: Version,
}

impl<'a> Component<'a> {
    /// The program that a `User-Agent` names first. `None` without a Kubernetes version.
    pub fn from_user_agent(user_agent: &'a str) -> Option<Self> {
        let product = user_agent.split(' ').next()?;
        let (name, version) = product.split_once('/')?;
        // Programs without a version send `v0.0.0`.
        let version = version.strip_prefix('v')?.parse::<Version>().ok()?;
        (!name.is_empty() && version.major > 0).then_some(Self { name, version })
    }
}

/// The names of the components that are only sent to servers that are at least as new.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuardedComponents(Vec<String>);

/// The text is not a list of program names.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not the name of a program, as in kubelet/v1.36.4")]
pub struct InvalidComponentName(String);

impl Default for GuardedComponents {
    fn default() -> Self {
        Self(SKEW_POLICY_COMPONENTS.map(str::to_owned).to_vec())
    }
}

impl GuardedComponents {
    /// No component.
    pub fn none() -> Self {
        Self(Vec::new())
    }

    /// These components.
    pub fn new<'n>(names: impl IntoIterator<Item = &'n str>) -> Result<Self, InvalidComponentName> {
        let checked = names.into_iter().map(|name| {
            let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
            if name.is_empty() || !name.bytes().all(is_plain) {
                return Err(InvalidComponentName(name.to_owned()));
            }
            Ok(name.to_owned())
        });
        checked.collect::<Result<_, _>>().map(Self)
    }

    /// The component that sends requests with this `User-Agent`, if it is guarded.
    pub fn find<'a>(&self, user_agent: &'a str) -> Option<Component<'a>> {
        let component = Component::from_user_agent(user_agent)?;
        let is_guarded = self.0.iter().any(|name| name == component.name);
        is_guarded.then_some(component)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_agent_of_a_component_has_its_name_and_version() {
        let version = |minor, patch| Version {
            major: 1,
            minor,
            patch,
        };
        for (user_agent, expected) in [
            (
                "kubelet/v1.36.4 (linux/amd64) kubernetes/0e0e0e0",
                Some(("kubelet", version(36, 4))),
            ),
            (
                "kube-controller-manager/v1.34.4 (linux/arm64) kubernetes/1a2b3c4/system:serviceaccount:kube-system:job-controller",
                Some(("kube-controller-manager", version(34, 4))),
            ),
            (
                "kube-scheduler/v1.30.2-eks-1552ad0 (linux/amd64) kubernetes/1a2b3c4/scheduler",
                Some(("kube-scheduler", version(30, 2))),
            ),
            ("kubelet/v1.37.0-alpha.1", Some(("kubelet", version(37, 0)))),
            // Not guarded.
            ("kubectl/v1.36.4 (linux/amd64) kubernetes/0e0e0e0", None),
            ("curl/8.5.0", None),
            // client-go in a program that was built without a version.
            ("kubelet/v0.0.0 (linux/amd64) kubernetes/$Format", None),
            ("kubelet/1.36.4", None),
            ("kubelet/v1.36", None),
            ("kubelet", None),
            ("/v1.36.4", None),
            ("", None),
            (" kubelet/v1.36.4", None),
            ("Kubelet/v1.36.4", None),
        ] {
            let guarded = GuardedComponents::default();
            let found = guarded.find(user_agent).map(|it| (it.name, it.version));
            assert_eq!(found, expected, "{user_agent}");
            assert_eq!(GuardedComponents::none().find(user_agent), None);
        }
    }

    #[test]
    fn other_programs_can_be_guarded() {
        let guarded = GuardedComponents::new(["aws-cloud-controller-manager"]).unwrap();
        assert!(
            guarded
                .find("aws-cloud-controller-manager/v1.36.0")
                .is_some()
        );
        assert!(guarded.find("kubelet/v1.36.0").is_none());
        for name in ["", "a b", "kubelet/v1", "käse"] {
            assert!(GuardedComponents::new([name]).is_err(), "{name}");
        }
    }
}
