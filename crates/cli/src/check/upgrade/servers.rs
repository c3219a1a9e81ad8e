//! Reads version, discovery, metrics, readiness and certificate of each kube-apiserver.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use aws_lc_rs::digest;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::StatusCode;
use serde::Deserialize;
use skewbridge_client::{Endpoint, Target};
use skewbridge_discovery::ServerDiscoveryList;
use skewbridge_discovery::document::Group;
use skewbridge_discovery::servers::Leader;
use skewbridge_k8s_api::version::ParseVersionError;
use skewbridge_released_apis::{Minor, Release};
use skewbridge_upgrade_check::Fact;
use skewbridge_upgrade_check::facts::{Bridge, Server};

use super::client::ApiClient;
use super::deprecated_calls;
use crate::check::cluster::certificate_expiry;

/// How a bridge in front of several kube-apiservers calls them.
const BACKEND_IDENTITY_PREFIX: &str = "upstream-";

/// `/version`
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct VersionInfo {
    git_version: String,
    emulation_major: String,
    emulation_minor: String,
    min_compatibility_major: String,
    min_compatibility_minor: String,
}

impl VersionInfo {
    fn emulated(&self) -> Option<Minor> {
        minor(&self.emulation_major, &self.emulation_minor)
    }

    fn min_compatibility(&self) -> Option<Minor> {
        minor(&self.min_compatibility_major, &self.min_compatibility_minor)
    }
}

fn minor(major: &str, minor: &str) -> Option<Minor> {
    format!("{major}.{minor}").parse().ok()
}

/// What was read of one server.
pub(super) struct ServerFacts {
    pub(super) server: Server,
    /// The servers of the cluster, if the bridge beside it answered.
    pub(super) list: Option<ServerDiscoveryList>,
    /// The leaders that the bridge has seen, if any bridge answered.
    pub(super) leaders: Vec<Leader>,
}

/// Reads the facts of one server.
pub(super) async fn read(
    name: String,
    target: &Target,
    timeout: Option<Duration>,
    hashes: &StorageVersionHashes,
) -> ServerFacts {
    let alone = |server| ServerFacts {
        server,
        list: None,
        leaders: Vec::new(),
    };
    let endpoint = match Endpoint::prepare(target, timeout).await {
        Ok(endpoint) => endpoint,
        Err(error) => return alone(unknown(name, &error.to_string())),
    };
    let client = ApiClient::new(endpoint.clone());
    let info: Fact<VersionInfo> = client.json("/version").await;
    let info = match info {
        Ok(info) => info,
        // Not even its version: the other requests would fail in the same way.
        Err(why) => return alone(unknown(name, &why)),
    };
    let version = info.git_version.parse();
    let calls = client.text("/metrics").await;
    let (discovery, list) = match crate::skew::fetch_server(endpoint).await {
        Ok(fetched) => (Ok(fetched.groups), fetched.bridge),
        Err(why) => (Err(why), None),
    };
    let bridge = list.as_ref().map(bridge);
    let leaders = list.as_ref().map(|it| it.leaders.clone());
    // Of a balancer any server may have answered.
    let list = list.filter(|_| bridge == Some(Bridge::Peer));
    // Bridges merge the discovery of all servers.
    let own = list.as_ref().and_then(own_discovery);
    let discovery = own.map_or(discovery, Ok);
    let storage_versions = match &discovery {
        Ok(groups) => storage_versions(&client, groups, hashes).await,
        Err(why) => Err(why.clone()),
    };
    let server = Server {
        version: version.map_err(|error: ParseVersionError| error.to_string()),
        emulated: info.emulated(),
        min_compatibility: info.min_compatibility(),
        bridge,
        discovery,
        failing_checks: failing_checks(&client).await,
        certificate_expiry: certificate_expiry(target)
            .await
            .ok_or_else(|| "no certificate was received".to_owned()),
        deprecated_calls: calls.map(|text| deprecated_calls::parse(&text)),
        storage_versions,
        name,
    };
    ServerFacts {
        server,
        list,
        leaders: leaders.unwrap_or_default(),
    }
}

/// The kind of a bridge, by the servers that it lists.
fn bridge(list: &ServerDiscoveryList) -> Bridge {
    if let Some(why) = &list.local_only {
        return Bridge::LocalOnly(why.clone());
    }
    let mut local = list.servers.iter().filter(|it| it.local);
    if local.any(|it| it.identity.starts_with(BACKEND_IDENTITY_PREFIX)) {
        return Bridge::Balancer;
    }
    Bridge::Peer
}

/// What the server behind a bridge serves.
fn own_discovery(list: &ServerDiscoveryList) -> Option<Vec<Group>> {
    let own = list.servers.iter().find(|it| it.local)?;
    own.groups.clone()
}

/// A server of which nothing is known.
fn unknown(name: String, why: &str) -> Server {
    let why = || why.to_owned();
    Server {
        name,
        version: Err(why()),
        emulated: None,
        min_compatibility: None,
        bridge: None,
        discovery: Err(why()),
        failing_checks: Err(why()),
        certificate_expiry: Err(why()),
        deprecated_calls: Err(why()),
        storage_versions: Err(why()),
    }
}

/// The checks of `/readyz` that fail.
async fn failing_checks(client: &ApiClient) -> Fact<Vec<String>> {
    let response = client.get("/readyz?verbose", "*/*").await?;
    let text = String::from_utf8_lossy(&response.body).into_owned();
    match response.status {
        StatusCode::OK => Ok(Vec::new()),
        StatusCode::INTERNAL_SERVER_ERROR | StatusCode::SERVICE_UNAVAILABLE => {
            let failing = failing_in(&text);
            // A bridge in front answers without a list of checks.
            Ok(if failing.is_empty() {
                vec![text.lines().next().unwrap_or_default().to_owned()]
            } else {
                failing
            })
        }
        _ => Err(crate::skew::refusal("/readyz", &response)),
    }
}

/// `[-]etcd failed: reason withheld`
fn failing_in(text: &str) -> Vec<String> {
    let lines = text.lines();
    lines
        .filter_map(|line| line.strip_prefix("[-]")?.split(' ').next())
        .map(str::to_owned)
        .collect()
}

/// Every known release stores `CustomResourceDefinition` objects in a version that it can read, but
/// does not serve.
const STORED_DEFINITION: (&str, &str, &str) = (
    "apiextensions.k8s.io",
    "v1beta1",
    "CustomResourceDefinition",
);

/// The storage version hashes of the built-in kinds of all known releases.
#[derive(Debug, Default)]
pub(super) struct StorageVersionHashes {
    /// `None` for a version that no release serves, and every one reads.
    kinds: HashMap<String, Option<GroupVersion>>,
    groups: BTreeSet<String>,
}

#[derive(Debug)]
struct GroupVersion {
    group: String,
    version: String,
}

impl StorageVersionHashes {
    /// Those of these releases.
    pub(super) fn of<'a>(releases: impl Iterator<Item = &'a Release>) -> Self {
        let mut hashes = Self::default();
        for (name, api) in releases.flat_map(Release::apis) {
            let group_version = GroupVersion {
                group: name.group.clone(),
                version: name.version.clone(),
            };
            let hash = storage_version_hash(&name.group, &name.version, &api.kind);
            hashes.kinds.insert(hash, Some(group_version));
            hashes.groups.insert(name.group.clone());
        }
        let (group, version, kind) = STORED_DEFINITION;
        let hash = storage_version_hash(group, version, kind);
        hashes.kinds.insert(hash, None);
        hashes
    }

    /// The version of its own group in which a resource is stored. `None` if it is not stored, if
    /// every release reads it, or if it is stored in another group, such as the events of
    /// `events.k8s.io`: it is then listed there as well.
    fn version(&self, group: &str, resource: &ListedResource) -> Fact<Option<String>> {
        if resource.storage_version_hash.is_empty() {
            return Ok(None);
        }
        match self.kinds.get(&resource.storage_version_hash) {
            Some(Some(stored)) if stored.group == group => Ok(Some(stored.version.clone())),
            Some(_) => Ok(None),
            None => Err(format!(
                "the storage version of {} of the group {group:?} is of no release that is known",
                resource.name
            )),
        }
    }
}

/// `APIResourceList`
#[derive(Deserialize)]
struct ResourceList {
    resources: Vec<ListedResource>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListedResource {
    name: String,
    #[serde(default)]
    storage_version_hash: String,
}

/// The version in which each resource of the built-in groups is stored: the storage version hash of
/// legacy discovery.
async fn storage_versions(
    client: &ApiClient,
    groups: &[Group],
    hashes: &StorageVersionHashes,
) -> Fact<BTreeMap<(String, String), String>> {
    let mut found = BTreeMap::new();
    let built_in = groups.iter().filter(|it| hashes.groups.contains(it.name()));
    for group in built_in {
        for version in &group.versions {
            let path = match group.name() {
                "" => format!("/api/{}", version.version),
                name => format!("/apis/{name}/{}", version.version),
            };
            let list: ResourceList = client.json(&path).await?;
            for resource in list.resources {
                if let Some(version) = hashes.version(group.name(), &resource)? {
                    found.insert((group.name().to_owned(), resource.name), version);
                }
            }
        }
    }
    Ok(found)
}

/// `StorageVersionHash` of k8s.io/apiserver: the first 8 bytes of SHA-256 of `GROUP/VERSION/KIND`.
fn storage_version_hash(group: &str, version: &str, kind: &str) -> String {
    let text = format!("{group}/{version}/{kind}");
    let hash = digest::digest(&digest::SHA256, text.as_bytes());
    STANDARD.encode(hash.as_ref().get(..8).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn storage_version_hashes_are_those_of_kube_apiserver() {
        // From the discovery of a kube-apiserver 1.36.4.
        let rows = [
            ("", "v1", "Pod", "xPOwRZ+Yhw8="),
            ("apps", "v1", "Deployment", "8aSe+NMegvE="),
        ];
        for (group, version, kind, hash) in rows {
            let found = storage_version_hash(group, version, kind);
            assert_eq!(found, hash, "{kind}");
        }
    }

    #[test]
    fn storage_versions_are_of_known_releases_or_not_known() {
        let release = skewbridge_released_apis::release_of("1.36".parse().unwrap());
        let release = release.unwrap().unwrap();
        let hashes = StorageVersionHashes::of([&release].into_iter());
        let version = |group: &str, name: &str, hash: &str| {
            let resource = ListedResource {
                name: name.to_owned(),
                storage_version_hash: hash.to_owned(),
            };
            hashes.version(group, &resource)
        };
        let v1 = Ok(Some("v1".to_owned()));
        assert_eq!(version("apps", "deployments", "8aSe+NMegvE="), v1);
        assert_eq!(version("", "bindings", ""), Ok(None));
        // Stored in the core group.
        assert_eq!(version("events.k8s.io", "events", "r2yiGXH7wu8="), Ok(None));
        let definitions = "customresourcedefinitions";
        let stored = version("apiextensions.k8s.io", definitions, "jfWCUB31mvA=");
        assert_eq!(stored, Ok(None));
        assert!(version("apps", "deployments", "AAAAAAAAAAA=").is_err());
    }

    #[test]
    fn checks_that_fail_are_read_from_readyz() {
        let text = "[+]ping ok\n[-]etcd failed: reason withheld\n[-]shutdown failed: x\nreadyz check failed\n";
        assert_eq!(failing_in(text), ["etcd", "shutdown"]);
        assert_eq!(failing_in("ok"), Vec::<String>::new());
    }
}
