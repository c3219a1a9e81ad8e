//! Reads objects through a server that shows them: while versions are mixed, one server lacks APIs
//! and fields that another one has.

use std::time::Duration;

use serde_json::Value;
use skewbridge_client::{Endpoint, Target};
use skewbridge_discovery::document::Group;
use skewbridge_released_apis::{ApiName, Minor};
use skewbridge_upgrade_check::Fact;
use skewbridge_upgrade_check::facts::Server;

use super::client::{ApiClient, Extent, Parts};

/// The servers that have answered.
#[derive(Debug, Clone, Default)]
pub(super) struct Readers {
    readers: Vec<Reader>,
    /// Why servers are missing.
    unknown: Vec<String>,
}

/// A server, and what it serves.
#[derive(Debug, Clone)]
struct Reader {
    name: String,
    client: ApiClient,
    minor: Minor,
    discovery: Fact<Vec<Group>>,
}

impl Readers {
    /// Those of these servers whose version is known.
    pub(super) async fn new<'a>(
        servers: impl Iterator<Item = (&'a Target, &'a Server)>,
        timeout: Option<Duration>,
    ) -> Self {
        let mut found = Self::default();
        for (target, server) in servers {
            let endpoint = Endpoint::prepare(target, timeout).await;
            match (endpoint, &server.version) {
                (Ok(endpoint), Ok(version)) => found.readers.push(Reader {
                    name: server.name.clone(),
                    client: ApiClient::new(endpoint),
                    minor: Minor::from(*version),
                    discovery: server.discovery.clone(),
                }),
                (Err(error), _) => found.unknown.push(format!("{}: {error}", server.name)),
                (_, Err(why)) => found.unknown.push(format!("{}: {why}", server.name)),
            }
        }
        found
    }

    /// Those of one minor version.
    pub(super) fn of_minor(&self, minor: Minor) -> Self {
        let same = self.readers.iter().filter(|it| it.minor == minor);
        Self {
            readers: same.cloned().collect(),
            unknown: Vec::new(),
        }
    }

    /// The discovery of the first server whose discovery is known.
    pub(super) fn discovery(&self) -> Fact<&[Group]> {
        let mut why = "no server answers".to_owned();
        for reader in &self.readers {
            match &reader.discovery {
                Ok(groups) => return Ok(groups),
                Err(error) => why = format!("{}: {error}", reader.name),
            }
        }
        Err(why)
    }

    /// Folds the objects of an API that a server has in its discovery. `None` if no server has it,
    /// by the discovery of all of them.
    pub(super) async fn list_if_served<T: Default>(
        &self,
        api: &ApiName,
        namespace: Option<&str>,
        parts: Parts,
        fold: impl Fn(&mut T, &Value),
    ) -> Fact<Option<(T, Extent)>> {
        let is_served = |reader: &&Reader| match &reader.discovery {
            Ok(groups) => serves(groups, api),
            Err(_) => false,
        };
        let serving: Vec<_> = self.readers.iter().filter(is_served).collect();
        if serving.is_empty() {
            let unread = self.readers.iter().filter_map(|it| {
                let why = it.discovery.as_ref().err()?;
                Some(format!("{}: {why}", it.name))
            });
            let unread: Vec<_> = unread.chain(self.unknown.iter().cloned()).collect();
            if unread.is_empty() {
                return Ok(None);
            }
            return Err(unread.join("; "));
        }
        let path = path(api, namespace);
        first_answer(&serving, &path, parts, fold).await.map(Some)
    }

    /// The same for an API that a server has to have.
    pub(super) async fn list<T: Default>(
        &self,
        api: &ApiName,
        parts: Parts,
        fold: impl Fn(&mut T, &Value),
    ) -> Fact<(T, Extent)> {
        let listed = self.list_if_served(api, None, parts, fold).await?;
        listed.ok_or_else(|| format!("no server serves {}", path(api, None)))
    }

    /// Folds all objects of an API that every server has.
    pub(super) async fn all<T: Default>(
        &self,
        path: &str,
        fold: impl Fn(&mut T, &Value),
    ) -> Fact<T> {
        let readers: Vec<_> = self.readers.iter().collect();
        let (folded, extent) = first_answer(&readers, path, Parts::Everything, fold).await?;
        complete(path, folded, extent)
    }
}

/// What was folded, if it is the complete list.
pub(super) fn complete<T>(path: &str, folded: T, extent: Extent) -> Fact<T> {
    if extent.has_more {
        return Err(format!(
            "{path}: there are more than {} objects",
            extent.read
        ));
    }
    Ok(folded)
}

/// The list of the first server that has one. A server that answers 404 has lost the API since its
/// discovery was read, or never had it: another one may have it.
async fn first_answer<T: Default>(
    readers: &[&Reader],
    path: &str,
    parts: Parts,
    fold: impl Fn(&mut T, &Value),
) -> Fact<(T, Extent)> {
    let mut problems = Vec::new();
    for reader in readers {
        match reader.client.list(path, parts, &fold).await {
            Ok(Some(listed)) => return Ok(listed),
            Ok(None) => problems.push(format!("{}: {path}: 404 Not Found", reader.name)),
            Err(why) => problems.push(format!("{}: {why}", reader.name)),
        }
    }
    if problems.is_empty() {
        problems.push(format!("{path}: no server answers"));
    }
    Err(problems.join("; "))
}

fn serves(groups: &[Group], api: &ApiName) -> bool {
    let versions = groups.iter().filter(|it| it.name() == api.group);
    let mut versions = versions.flat_map(|it| &it.versions);
    versions.any(|version| {
        let mut resources = version.resources.iter();
        version.version == api.version
            && resources
                .any(|it| it.resource == api.resource && it.verbs.iter().any(|verb| verb == "list"))
    })
}

fn path(api: &ApiName, namespace: Option<&str>) -> String {
    let prefix = if api.group.is_empty() { "api" } else { "apis" };
    let namespace = namespace.map_or_else(String::new, |it| format!("/namespaces/{it}"));
    format!(
        "/{prefix}/{}{namespace}/{}",
        api.group_version(),
        api.resource
    )
}
