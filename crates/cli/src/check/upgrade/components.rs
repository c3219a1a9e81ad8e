//! Finds the components other than kubelets: by Pods, `DaemonSet`s, `LeaseCandidate`s and Leases of
//! `kube-system`, and by the user agents that bridges see.

use serde_json::Value;
use skewbridge_discovery::servers::Leader;
use skewbridge_k8s_api::version::Version;
use skewbridge_released_apis::ApiName;
use skewbridge_upgrade_check::Fact;
use skewbridge_upgrade_check::facts::{Component, Components};

use super::client::Parts;
use super::cluster::{text, version};
use super::readers::{Readers, complete};

const NAMESPACE: &str = "kube-system";
const PODS: &str = "/api/v1/namespaces/kube-system/pods";
const DAEMON_SETS: &str = "/apis/apps/v1/namespaces/kube-system/daemonsets";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";

/// The versions in which `LeaseCandidate` is served, newest first.
const CANDIDATE_VERSIONS: [&str; 4] = ["v1", "v1beta1", "v1alpha2", "v1alpha1"];

const CLOUD_CONTROLLER_MANAGER: &str = "cloud-controller-manager";

/// The components that elect a leader by the Lease of this name.
const ELECTED: [&str; 3] = [
    "kube-controller-manager",
    "kube-scheduler",
    CLOUD_CONTROLLER_MANAGER,
];

/// Images of cloud controller managers whose tags are versions of Kubernetes. Others have versions of
/// their own.
const CLOUD_IMAGES_OF_KUBERNETES: [&str; 4] = [
    CLOUD_CONTROLLER_MANAGER,
    "aws-cloud-controller-manager",
    "azure-cloud-controller-manager",
    "openstack-cloud-controller-manager",
];

/// The holder of the Lease of a component.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Holder {
    component: String,
    /// `HOST_UUID`
    identity: String,
}

/// A leader renews its Lease within this time (`--leader-elect-lease-duration`), or another one gets
/// it.
const LEASE_DURATION_SECONDS: u64 = 15;

/// Reads these components. What cannot be read is in the result.
pub(super) async fn read(readers: &Readers, leaders: &[Leader]) -> Components {
    let mut unread = Vec::new();
    let mut known = |listed: Fact<Vec<Component>>| {
        listed.unwrap_or_else(|why| {
            unread.push(why);
            Vec::new()
        })
    };
    let pod = |found: &mut Vec<_>, pod: &Value| found.extend(component_of_pod(pod));
    let pods = known(readers.all(PODS, pod).await);
    let set = |found: &mut Vec<_>, set: &Value| found.extend(kube_proxy(set));
    let proxies = known(readers.all(DAEMON_SETS, set).await);
    let candidates = known(candidates(readers).await);
    let holder = |found: &mut Vec<_>, lease: &Value| found.extend(self::holder(lease));
    let holders = readers.all(LEASES, holder).await;
    let holders = holders.unwrap_or_else(|why| {
        unread.push(why);
        Vec::new()
    });
    let mut found = joined(candidates, pods, holders, leaders);
    found.extend(proxies);
    Components { found, unread }
}

/// One entry for each instance. A candidate reports the version of its program, an image tag only
/// what was deployed. The holder of a Lease reports a version only to the bridge that it uses.
fn joined(
    candidates: Vec<Component>,
    pods: Vec<Component>,
    holders: Vec<Holder>,
    leaders: &[Leader],
) -> Vec<Component> {
    let mut found = candidates;
    let has = |found: &[Component], component: &str, host: &str| {
        let mut same = found.iter().filter(|it| it.name == component);
        same.any(|it| is_same_host(&it.instance, host))
    };
    for pod in pods {
        if !has(&found, &pod.name, &pod.instance) {
            found.push(pod);
        }
    }
    for Holder {
        component,
        identity,
    } in holders
    {
        let host = host(&identity);
        if !has(&found, &component, host) {
            let version = version_of_leader(&component, leaders).unwrap_or_else(|| {
                Err(format!(
                    "{identity} holds the Lease {NAMESPACE}/{component}, and no Pod in {NAMESPACE}, \
                     LeaseCandidate or bridge tells its version; run `{component} --version` on {host}, \
                     or delete the Lease if the component does not run any more"
                ))
            });
            found.push(Component {
                instance: host.to_owned(),
                version,
                name: component,
            });
        }
    }
    found
}

/// The version of the leader of now, if it renews its Lease through a bridge.
fn version_of_leader(component: &str, leaders: &[Leader]) -> Option<Fact<Version>> {
    let seen = leaders.iter().filter(|it| it.component == component);
    let last = seen.min_by_key(|it| it.renewed_seconds_ago)?;
    let is_current = last.renewed_seconds_ago <= LEASE_DURATION_SECONDS;
    is_current.then(|| version(&last.version))
}

/// Whether these are names of one host: the name of a Node may have a domain, or not.
fn is_same_host(one: &str, other: &str) -> bool {
    let short = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
    short(one).eq_ignore_ascii_case(&short(other))
}

/// The host in an identity `HOST_UUID`.
fn host(identity: &str) -> &str {
    identity.rsplit_once('_').map_or(identity, |(host, _)| host)
}

fn component_of_pod(pod: &Value) -> Option<Component> {
    let label = text(pod, "/metadata/labels/component");
    let images = containers(pod, "/spec/containers");
    let found = images.iter().find_map(|image| {
        let (name, _) = name_and_tag(image);
        let named = ELECTED.into_iter().find(|it| match *it {
            CLOUD_CONTROLLER_MANAGER => name.ends_with(CLOUD_CONTROLLER_MANAGER),
            component => name == component || label == component,
        });
        Some((named?, *image))
    });
    let (component, image) = found?;
    Some(Component {
        name: component.to_owned(),
        instance: text(pod, "/spec/nodeName").to_owned(),
        version: version_of_image(component, image),
    })
}

fn kube_proxy(set: &Value) -> Option<Component> {
    let images = containers(set, "/spec/template/spec/containers");
    let is_proxy = |image: &&str| name_and_tag(image).0 == "kube-proxy";
    let image = images.into_iter().find(is_proxy)?;
    Some(Component {
        name: "kube-proxy".to_owned(),
        instance: format!("the Nodes of DaemonSet {}", text(set, "/metadata/name")),
        version: version_of_image("kube-proxy", image),
    })
}

fn containers<'a>(object: &'a Value, pointer: &str) -> Vec<&'a str> {
    let containers = object.pointer(pointer).and_then(Value::as_array);
    let containers = containers.into_iter().flatten();
    containers.map(|it| text(it, "/image")).collect()
}

/// The last part of the name of an image, and its tag.
fn name_and_tag(image: &str) -> (&str, &str) {
    let name = image.split('@').next().unwrap_or_default();
    let name = name.rsplit('/').next().unwrap_or_default();
    name.split_once(':').unwrap_or((name, ""))
}

fn version_of_image(component: &str, image: &str) -> Fact<Version> {
    let (name, tag) = name_and_tag(image);
    if component == CLOUD_CONTROLLER_MANAGER && !CLOUD_IMAGES_OF_KUBERNETES.contains(&name) {
        return Err(format!(
            "the image {image:?} has versions of its own; see the documentation of the cloud provider \
             for the version of Kubernetes that it supports"
        ));
    }
    version(tag)
        .and_then(|version| match version.major {
            1 => Ok(version),
            _ => Err(format!("{tag:?} is not a version of Kubernetes")),
        })
        .map_err(|why| format!("the tag of the image {image:?}: {why}"))
}

async fn candidates(readers: &Readers) -> Fact<Vec<Component>> {
    for version in CANDIDATE_VERSIONS {
        let api = ApiName {
            group: "coordination.k8s.io".to_owned(),
            version: version.to_owned(),
            resource: "leasecandidates".to_owned(),
        };
        let add = |found: &mut Vec<_>, object: &Value| found.extend(candidate(object));
        let listed = readers
            .list_if_served(&api, Some(NAMESPACE), Parts::Everything, add)
            .await?;
        if let Some((found, extent)) = listed {
            return complete(&api.qualified(), found, extent);
        }
    }
    Ok(Vec::new())
}

fn candidate(object: &Value) -> Option<Component> {
    let name = text(object, "/spec/leaseName");
    ELECTED.contains(&name).then(|| Component {
        name: name.to_owned(),
        instance: host(text(object, "/metadata/name")).to_owned(),
        version: version(text(object, "/spec/binaryVersion"))
            .map_err(|why| format!("binaryVersion of its LeaseCandidate: {why}")),
    })
}

fn holder(lease: &Value) -> Option<Holder> {
    let component = text(lease, "/metadata/name");
    let identity = text(lease, "/spec/holderIdentity");
    let is_held = ELECTED.contains(&component) && !identity.is_empty();
    is_held.then(|| Holder {
        component: component.to_owned(),
        identity: identity.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(component: &str, image: &str) -> Value {
        json!({
            "metadata": {"labels": {"component": component}},
            "spec": {"nodeName": "cp-1", "containers": [{"image": image}]},
        })
    }

    #[test]
    fn versions_are_the_tags_of_images_of_kubernetes() {
        let tag = |image: &str, why: &str| Err(format!("the tag of the image {image:?}: {why}"));
        let known = |version: &str| Ok(version.to_owned());
        let own = "hetznercloud/hcloud-cloud-controller-manager:v1.20.0";
        let rows = [
            (
                "kube-scheduler",
                "registry.example:5000/kube-scheduler:v1.36.4",
                known("1.36.4"),
            ),
            (
                "kube-scheduler",
                "k/kube-scheduler:v1.36.4@sha256:abc",
                known("1.36.4"),
            ),
            (
                "kube-scheduler",
                "rancher/hardened-kubernetes:v1.30.2-rke2r1",
                known("1.30.2"),
            ),
            (
                "kube-scheduler",
                "registry.example:5000/kube-scheduler",
                tag(
                    "registry.example:5000/kube-scheduler",
                    "\"\" is not a version",
                ),
            ),
            // Without the label.
            (
                "",
                "registry.k8s.io/kube-controller-manager:v1.35.1",
                known("1.35.1"),
            ),
            (
                "",
                "k/openstack-cloud-controller-manager:v1.34.0",
                known("1.34.0"),
            ),
            (
                "",
                "k/cloud-controller-manager:v30.0.0",
                tag(
                    "k/cloud-controller-manager:v30.0.0",
                    "\"v30.0.0\" is not a version of Kubernetes",
                ),
            ),
            (
                "",
                own,
                Err(format!(
                    "the image {own:?} has versions of its own; see the documentation of the cloud \
                     provider for the version of Kubernetes that it supports"
                )),
            ),
        ];
        for (label, image, expected) in rows {
            let found = component_of_pod(&pod(label, image)).expect(image);
            assert_eq!(found.instance, "cp-1");
            assert_eq!(found.version.map(|it| it.to_string()), expected, "{image}");
        }
        assert_eq!(component_of_pod(&pod("etcd", "etcd:v3.6.0")), None);
        assert_eq!(component_of_pod(&json!({})), None);
    }

    #[test]
    fn kube_proxy_is_found_by_its_daemon_set() {
        let set = |image: &str| {
            json!({"metadata": {"name": "proxy"},
                "spec": {"template": {"spec": {"containers": [{"image": image}]}}}})
        };
        let found = kube_proxy(&set("registry.k8s.io/kube-proxy:v1.33.2")).unwrap();
        assert_eq!(
            found.version.map(|it| it.to_string()),
            Ok("1.33.2".to_owned())
        );
        assert_eq!(found.instance, "the Nodes of DaemonSet proxy");
        assert_eq!(kube_proxy(&set("cilium/cilium:v1.18.0")), None);
    }

    #[test]
    fn a_component_of_which_only_a_lease_is_known_has_no_known_version() {
        let component = |instance: &str, tag: &str| Component {
            name: "kube-scheduler".to_owned(),
            instance: instance.to_owned(),
            version: version(tag),
        };
        let lease = |name: &str, holder: &str| {
            super::holder(&json!({"metadata": {"name": name}, "spec": {"holderIdentity": holder}}))
        };
        let held = |holder: &str| vec![lease("kube-scheduler", holder).unwrap()];
        let versions = |found: Vec<Component>| {
            let versions = found.into_iter().map(|it| (it.instance, it.version.ok()));
            versions
                .map(|(instance, version)| (instance, version.map(|it| it.to_string())))
                .collect::<Vec<_>>()
        };
        let known = |host: &str, version: &str| (host.to_owned(), Some(version.to_owned()));
        let pods = || vec![component("cp-1", "v1.36.4")];
        // The host of a Pod, also with a domain.
        for holder in ["cp-1_7f", "CP-1.example.com_7f"] {
            let found = joined(Vec::new(), pods(), held(holder), &[]);
            assert_eq!(versions(found), [known("cp-1", "1.36.4")]);
        }
        // The program tells its version itself.
        let candidate = json!({
            "metadata": {"name": "cp-1_7f"},
            "spec": {"leaseName": "kube-scheduler", "binaryVersion": "1.36.5"},
        });
        let candidates = vec![super::candidate(&candidate).unwrap()];
        let found = joined(candidates, pods(), held("cp-1_7f"), &[]);
        assert_eq!(versions(found), [known("cp-1", "1.36.5")]);
        // Another host.
        let found = joined(Vec::new(), pods(), held("cp-2_7f"), &[]);
        assert_eq!(versions(found)[1], ("cp-2".to_owned(), None));
        let found = joined(Vec::new(), Vec::new(), held("cp-2_7f"), &[]);
        let why = found[0].version.clone().unwrap_err();
        assert!(why.contains("`kube-scheduler --version` on cp-2"), "{why}");
        // Bridges have seen its requests; the last renewal is that of the leader of now.
        let leader = |component: &str, version: &str, renewed_seconds_ago| Leader {
            component: component.to_owned(),
            version: version.to_owned(),
            renewed_seconds_ago,
        };
        let seen = |leaders: &[Leader]| {
            let found = joined(Vec::new(), Vec::new(), held("cp-2_7f"), leaders);
            versions(found)
        };
        let (old, new) = (
            leader("kube-scheduler", "v1.35.8", 9),
            leader("kube-scheduler", "v1.36.4", 1),
        );
        assert_eq!(seen(&[old.clone(), new]), [known("cp-2", "1.36.4")]);
        assert_eq!(seen(&[old]), [known("cp-2", "1.35.8")]);
        for other in [
            leader("kube-scheduler", "v1.35.8", 16),
            leader("kube-controller-manager", "v1.35.8", 1),
        ] {
            assert_eq!(seen(&[other]), [("cp-2".to_owned(), None)]);
        }
        // A Lease of others, and one that was released.
        assert_eq!(lease("apiserver-x", "cp-1_7f"), None);
        assert_eq!(lease("kube-scheduler", ""), None);
    }
}
