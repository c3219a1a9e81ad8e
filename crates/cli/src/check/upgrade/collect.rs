//! Reads the cluster, and evaluates it for each target.

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use skewbridge_client::{Kubeconfig, Target};
use skewbridge_discovery::ServerDiscovery;
use skewbridge_released_apis::{ApiName, Minor, Release, known_minors, release_of};
use skewbridge_upgrade_check::facts::{FieldsInUse, ObjectCount, Server};
use skewbridge_upgrade_check::fields::lost_fields;
use skewbridge_upgrade_check::{Direction, Fact, Facts, Report, apis, evaluate, storage};

use super::flags::ClusterOptions;
use super::readers::Readers;
use super::servers::{ServerFacts, StorageVersionHashes};
use super::{ServerSelection, cluster, components, objects, servers};
use crate::check::cluster::{published_addresses, with_address};
use crate::check::parallel;

/// What was read, and a report for each target, the upgrade first.
#[derive(Debug)]
pub(crate) struct Collected {
    pub(crate) facts: Facts,
    pub(crate) reports: Vec<Report>,
}

/// Reads the cluster.
pub(crate) async fn collect(options: &ClusterOptions) -> Result<Collected, String> {
    let config = Kubeconfig::load(options.kubeconfig.as_deref());
    let config = config.map_err(|error| error.to_string())?;
    let target = config.target(options.context.as_deref());
    let target = target.map_err(|error| error.to_string())?;
    let releases: Result<Vec<_>, _> = known_minors().map(release).collect();
    let releases = releases?;
    let Found { servers, unlisted } = servers(options, &target, &releases).await;
    let (targets, servers): (Vec<_>, Vec<_>) = servers.into_iter().unzip();
    let unqueried = unqueried(&servers);
    let leaders: Vec<_> = servers.iter().flat_map(|it| it.leaders.clone()).collect();
    let servers: Vec<_> = servers.into_iter().map(|it| it.server).collect();
    let readers = Readers::new(targets.iter().zip(&servers), options.timeout).await;
    let mut facts = Facts {
        read_at: SystemTime::now(),
        kubelets: cluster::kubelets(&readers).await,
        components: components::read(&readers, &leaders).await,
        objects: BTreeMap::new(),
        stored_versions: cluster::stored_versions(&readers).await,
        migrations: cluster::migrations(&readers).await,
        fields_in_use: Ok(Vec::new()),
        servers,
        unqueried,
        unlisted,
    };
    let mut reports = Vec::new();
    for (direction, minor) in [
        (Direction::Upgrade, options.target),
        (Direction::Rollback, options.rollback),
    ] {
        let Some(minor) = minor else {
            continue;
        };
        let newest = newest(&facts.servers)?;
        let target = release(minor)?;
        let counts = count_objects(&readers, &facts.servers, &releases, &target).await;
        facts.objects.extend(counts);
        if direction == Direction::Rollback {
            facts.fields_in_use = find_fields(&readers, newest, &target).await;
        }
        reports.push(evaluate(&facts, direction, &releases, &target));
    }
    Ok(Collected { facts, reports })
}

/// The servers of the cluster.
struct Found {
    /// With the address that each was read at.
    servers: Vec<(Target, ServerFacts)>,
    /// Why the published addresses could not be read; `servers` is then that of the context.
    unlisted: Option<String>,
}

async fn servers(options: &ClusterOptions, target: &Target, releases: &[Release]) -> Found {
    let hashes = StorageVersionHashes::of(releases.iter());
    let mut unlisted = None;
    let named = match ServerSelection::from(options) {
        ServerSelection::Named(urls) => {
            let name = options.tls_server_name.as_deref();
            let named = urls
                .iter()
                .map(|url| (host(url), target.clone().with_server(url, name)));
            named.collect()
        }
        ServerSelection::Published => {
            let published = published(target).await.unwrap_or_else(|why| {
                unlisted = Some(why);
                Vec::new()
            });
            if published.is_empty() {
                vec![(host(&target.server()), target.clone())]
            } else {
                published
            }
        }
    };
    let servers = read(named, options, &hashes).await;
    Found { servers, unlisted }
}

/// The servers that a bridge lists, and that were not queried. A bridge does not tell addresses.
fn unqueried(servers: &[ServerFacts]) -> Vec<String> {
    let lists = servers.iter().filter_map(|it| it.list.as_ref());
    // A server without a bridge does not tell its identity, but it counts.
    let Some(list) = lists.clone().max_by_key(|it| it.servers.len()) else {
        return Vec::new();
    };
    if list.servers.len() <= servers.len() {
        return Vec::new();
    }
    let queried: BTreeSet<_> = lists
        .flat_map(|it| &it.servers)
        .filter(|it| it.local)
        .map(|it| &it.identity)
        .collect();
    let others = list.servers.iter();
    let others = others.filter(|it| !queried.contains(&it.identity));
    let name = |it: &ServerDiscovery| it.host.clone().unwrap_or_else(|| it.identity.clone());
    others.map(name).collect()
}

/// Reads servers at the same time.
async fn read(
    named: Vec<(String, Target)>,
    options: &ClusterOptions,
    hashes: &StorageVersionHashes,
) -> Vec<(Target, ServerFacts)> {
    let probes = named
        .iter()
        .map(|(name, target)| -> parallel::Probe<'_, _> {
            let name = name.clone();
            Box::pin(servers::read(name, target, options.timeout, hashes))
        });
    let found = parallel::all(probes.collect()).await;
    let targets = named.into_iter().map(|(_, target)| target);
    targets.zip(found).collect()
}

/// The host and port of a URL.
fn host(url: &str) -> String {
    let address = url.split_once("://").map_or(url, |it| it.1);
    address.trim_end_matches('/').to_owned()
}

/// The servers that publish their addresses in the Service `kubernetes`.
async fn published(target: &Target) -> Fact<Vec<(String, Target)>> {
    let addresses = published_addresses(target).await?;
    let addresses = addresses.into_iter().map(|it| it.to_string());
    let published = addresses.map(|address| {
        let target = with_address(target, &address);
        (address, target)
    });
    Ok(published.collect())
}

/// The newest version of the servers.
fn newest(servers: &[Server]) -> Result<Minor, String> {
    let versions = servers.iter().filter_map(|it| it.version.as_ref().ok());
    let minors = versions.map(|version| Minor::from(*version));
    minors.max().ok_or_else(|| {
        let why = servers.iter().find_map(|it| it.version.as_ref().err());
        let why = why.map_or("there is no server", String::as_str);
        format!("no kube-apiserver could be queried: {why}; name each with --server")
    })
}

/// The release of a minor version.
pub(crate) fn release(minor: Minor) -> Result<Release, String> {
    let found = release_of(minor).map_err(|error| error.to_string())?;
    found.ok_or_else(|| {
        format!("the APIs of Kubernetes {minor} are not known to this version of skewbridge")
    })
}

async fn count_objects(
    readers: &Readers,
    servers: &[Server],
    releases: &[Release],
    target: &Release,
) -> BTreeMap<ApiName, Fact<ObjectCount>> {
    let mut counts = BTreeMap::new();
    let mut names = apis::to_count(servers, releases, target);
    for api in storage::to_count(servers, target) {
        names.entry(api).or_default();
    }
    for (api, versions) in names {
        let count = objects::count(readers, &api, &versions).await;
        counts.insert(api, count);
    }
    counts
}

/// Reads the objects through a server of the newest version: an older one does not show the fields
/// that it does not have.
async fn find_fields(readers: &Readers, newest: Minor, target: &Release) -> Fact<Vec<FieldsInUse>> {
    let current = release(newest)?;
    let newest = readers.of_minor(newest);
    let lost = lost_fields(newest.discovery()?, &current, target);
    let mut found = Vec::new();
    for lost in lost.map_err(|error| error.to_string())? {
        found.extend(objects::fields_in_use(&newest, &lost).await?);
    }
    Ok(found)
}
