//! What was read from a cluster.

use std::collections::BTreeMap;
use std::time::SystemTime;

use skewbridge_discovery::document::Group;
use skewbridge_field_sets::FieldPath;
use skewbridge_k8s_api::version::Version;
use skewbridge_released_apis::{ApiName, Minor, Release};

/// A fact, or why it could not be read.
pub type Fact<T> = Result<T, String>;

/// A cluster, as far as it could be read.
#[derive(Debug, Clone)]
pub struct Facts {
    /// When the facts were read.
    pub read_at: SystemTime,
    /// The kube-apiservers.
    pub servers: Vec<Server>,
    /// The hosts of kube-apiservers that a bridge lists, and that were not queried.
    pub unqueried: Vec<String>,
    /// Why the addresses that kube-apiservers publish could not be read: servers may be missing.
    pub unlisted: Option<String>,
    /// The kubelets, from the Nodes.
    pub kubelets: Fact<Vec<Component>>,
    /// kube-proxies, and the other components of the control plane.
    pub components: Components,
    /// The objects of the APIs that the target does not serve.
    pub objects: BTreeMap<ApiName, Fact<ObjectCount>>,
    /// The custom resource definitions whose `status.storedVersions` has several versions, or one
    /// that is not served; and those that could not be read, with their names and why.
    pub stored_versions: Fact<Vec<Fact<StoredVersions>>>,
    /// The `StorageVersionMigration` objects that have not succeeded.
    pub migrations: Fact<Vec<Migration>>,
    /// The fields in use that the target of a rollback does not know.
    pub fields_in_use: Fact<Vec<FieldsInUse>>,
}

/// A kube-apiserver.
#[derive(Debug, Clone)]
pub struct Server {
    /// Its host name, or its address.
    pub name: String,
    /// `gitVersion` of `/version`.
    pub version: Fact<Version>,
    /// The version that it emulates, if it is not its own.
    pub emulated: Option<Minor>,
    /// The oldest version that it is compatible with, if it says one (since 1.33).
    pub min_compatibility: Option<Minor>,
    /// The bridge that answers at its address.
    pub bridge: Option<Bridge>,
    /// Its own discovery.
    pub discovery: Fact<Vec<Group>>,
    /// The checks of `/readyz` that fail.
    pub failing_checks: Fact<Vec<String>>,
    /// When its serving certificate expires.
    pub certificate_expiry: Fact<SystemTime>,
    /// `apiserver_requested_deprecated_apis`.
    pub deprecated_calls: Fact<Vec<DeprecatedCalls>>,
    /// The version in which the objects of each resource are stored, by group and resource, from
    /// the storage version hashes in its discovery.
    pub storage_versions: Fact<BTreeMap<(String, String), String>>,
}

impl Server {
    /// The version whose APIs it serves.
    pub fn served_minor(&self) -> Option<Minor> {
        let own = self.version.as_ref().ok();
        self.emulated.or_else(|| own.map(|it| Minor::from(*it)))
    }

    /// Of these releases those whose APIs it may serve: the one that it emulates, and its own, whose
    /// APIs `--emulation-forward-compatible` enables.
    pub(crate) fn releases<'a>(&self, releases: &'a [Release]) -> Vec<&'a Release> {
        let own = self.version.as_ref().ok();
        let own = own.map(|it| Minor::from(*it));
        let mut minors = vec![self.served_minor()];
        minors.extend((own != minors[0]).then_some(own));
        let minors = minors.into_iter().flatten();
        let release = |minor| {
            let mut releases = releases.iter();
            releases.find(|it| Minor::from(it.version) == minor)
        };
        minors.filter_map(release).collect()
    }
}

/// A bridge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Bridge {
    /// Beside its server, and a peer of the other servers.
    Peer,
    /// Beside its server, and local-only: why.
    LocalOnly(String),
    /// In front of several servers. Version, readiness and discovery are those of any of them.
    Balancer,
}

/// The components other than kube-apiservers and kubelets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Components {
    /// Those that were found.
    pub found: Vec<Component>,
    /// Why others may not have been found: what could not be read.
    pub unread: Vec<String>,
}

/// A program of the cluster other than kube-apiserver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Component {
    /// `kubelet`, `kube-controller-manager`, ...
    pub name: String,
    /// The Node or Pod.
    pub instance: String,
    /// Its version.
    pub version: Fact<Version>,
}

/// The objects of an API that the target does not serve.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ObjectCount {
    /// All objects.
    pub objects: u64,
    /// Objects that were written in the version that goes, by the field manager that did it.
    pub written_in_version: BTreeMap<String, u64>,
    /// Whether there may be more, because only the first ones were read.
    pub at_least: bool,
}

/// Calls of an API that the server marks as deprecated, since it started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeprecatedCalls {
    /// The API.
    pub api: ApiName,
    /// Empty for the resource itself.
    pub subresource: String,
    /// The minor version that does not serve it any more, if that is decided.
    pub removed_release: Option<Minor>,
}

/// A custom resource definition with objects in more than one version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredVersions {
    /// The name of the definition: `widgets.example.com`.
    pub definition: String,
    /// `status.storedVersions`
    pub stored: Vec<String>,
    /// The version in which objects are stored now.
    pub storage: String,
    /// The versions that are served.
    pub served: Vec<String>,
}

/// A `StorageVersionMigration`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Migration {
    /// Its name.
    pub name: String,
    /// The resource, as `RESOURCE.GROUP`.
    pub resource: String,
    /// Whether it has failed. If not, it has not finished.
    pub failed: bool,
}

/// Fields of a kind that are in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldsInUse {
    /// Empty for the core group.
    pub group: String,
    /// In the plural.
    pub resource: String,
    /// The field, and the number of objects that have it.
    pub fields: Vec<(FieldPath, u64)>,
    /// Some of these objects, as `NAMESPACE/NAME`.
    pub examples: Vec<String>,
    /// Whether there may be more, because only the first objects were read.
    pub at_least: bool,
}
