//! Stored versions of objects: of built-in resources, and of custom ones.

use std::collections::BTreeSet;

use skewbridge_released_apis::{ApiName, Minor, Release};

use crate::components::between;
use crate::direction::Direction;
use crate::facts::{Facts, ObjectCount, Server};
use crate::finding::{Finding, Severity, Topic, counted};

/// The findings of stored versions that the target cannot read, and of unfinished migrations.
pub(crate) fn findings(facts: &Facts, direction: Direction, target: &Release) -> Vec<Finding> {
    let mut findings = unread(facts);
    findings.extend(built_in(facts, direction, target));
    findings.extend(custom(facts));
    findings.extend(migrations(facts));
    findings
}

/// Servers whose stored versions could not be read.
fn unread(facts: &Facts) -> Vec<Finding> {
    let unread = facts.servers.iter().filter_map(|server| {
        let why = server.storage_versions.as_ref().err()?;
        Some(Finding::new(
            Topic::Storage,
            Severity::NotKnown,
            &server.name,
            format!("the versions in which it stores objects could not be read: {why}"),
        ))
    });
    unread.collect()
}

/// A resource that servers store in a version that the target does not have.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Unreadable {
    /// In the version in which it is stored.
    api: ApiName,
}

impl Unreadable {
    fn of(servers: &[Server], target: &Release) -> BTreeSet<Self> {
        let stored = servers.iter();
        let stored = stored.filter_map(|server| server.storage_versions.as_ref().ok());
        let stored = stored
            .flatten()
            .map(|((group, resource), version)| ApiName {
                group: group.clone(),
                version: version.clone(),
                resource: resource.clone(),
            });
        // A resource that the target lacks is reported with its API.
        let is_unreadable = |api: &ApiName| {
            target.apis().any(|(name, _)| is_same_resource(name, api)) && target.api(api).is_none()
        };
        stored
            .filter(is_unreadable)
            .map(|api| Self { api })
            .collect()
    }

    /// The resource in a version in which a server lists it: if possible in one that the target has.
    fn listed(&self, servers: &[Server], target: &Release) -> Option<ApiName> {
        let discoveries = servers.iter().filter_map(|it| it.discovery.as_ref().ok());
        let groups = discoveries
            .flatten()
            .filter(|it| it.name() == self.api.group);
        let versions = groups.flat_map(|it| &it.versions).filter(|version| {
            let mut resources = version.resources.iter();
            resources.any(|it| {
                it.resource == self.api.resource && it.verbs.iter().any(|verb| verb == "list")
            })
        });
        let listed = versions.map(|it| ApiName {
            version: it.version.clone(),
            ..self.api.clone()
        });
        let listed: Vec<_> = listed.collect();
        let in_target = listed.iter().find(|it| target.api(it).is_some());
        in_target.or(listed.first()).cloned()
    }

    /// The number of its objects. Each version of a resource lists the same objects.
    fn count<'a>(&self, facts: &'a Facts) -> Result<&'a ObjectCount, String> {
        let counts = facts.objects.iter();
        let counts = counts.filter(|(name, _)| is_same_resource(name, &self.api));
        let mut why = "they were not counted".to_owned();
        for (_, count) in counts {
            match count {
                Ok(count) => return Ok(count),
                Err(error) => why.clone_from(error),
            }
        }
        Err(why)
    }
}

fn is_same_resource(one: &ApiName, other: &ApiName) -> bool {
    one.group == other.group && one.resource == other.resource
}

/// The APIs whose objects are to be counted: of resources that servers store in a version that the
/// target does not have.
pub fn to_count(servers: &[Server], target: &Release) -> Vec<ApiName> {
    let unreadable = Unreadable::of(servers, target).into_iter();
    unreadable
        .filter_map(|it| it.listed(servers, target))
        .collect()
}

/// Resources that the servers store in a version that the target does not have.
fn built_in(facts: &Facts, direction: Direction, target: &Release) -> Vec<Finding> {
    let minor = Minor::from(target.version);
    let unreadable = Unreadable::of(&facts.servers, target).into_iter();
    unreadable
        .map(|it| {
            let subject = match it.api.group.as_str() {
                "" => it.api.resource.clone(),
                group => format!("{}.{group}", it.api.resource),
            };
            let version = &it.api.version;
            let (severity, message) = match it.count(facts) {
                Ok(count) if count.objects == 0 && !count.at_least => (
                    Severity::Note,
                    format!("it is stored as {version}, which {minor} does not have; it has no objects"),
                ),
                Ok(count) => (
                    Severity::Finding,
                    format!(
                        "its {} may be stored as {version}, which {minor} does not have",
                        counted(count.objects, count.at_least, "object")
                    ),
                ),
                Err(why) => (
                    Severity::NotKnown,
                    format!(
                        "it is stored as {version}, which {minor} does not have; its objects could not \
                         be counted: {why}"
                    ),
                ),
            };
            let finding = Finding::new(Topic::Storage, severity, &subject, message);
            if severity != Severity::Finding {
                return finding;
            }
            let listed = it.listed(&facts.servers, target).unwrap_or(it.api);
            finding.commands(commands(facts, direction, &listed, minor))
        })
        .collect()
}

/// A server writes all objects in its own version for the resource. So writing them again helps only
/// after the servers have changed to a minor version in between, and before the target.
fn commands(facts: &Facts, direction: Direction, api: &ApiName, target: Minor) -> Vec<String> {
    let qualified = api.qualified();
    let versions = facts.servers.iter();
    let minors = versions.filter_map(|it| it.version.as_ref().ok().map(|it| Minor::from(*it)));
    let (from, verb) = match direction {
        Direction::Upgrade => (minors.min(), "upgrade"),
        Direction::Rollback => (minors.max(), "return"),
    };
    let in_between = from.map(|from| between(from, target)).unwrap_or_default();
    if !in_between.is_empty() {
        let minors: Vec<_> = in_between.iter().map(Minor::to_string).collect();
        let minors = minors.join(" and ");
        return vec![
            format!(
                "# {verb} to {minors} first, and write all objects again after each, when all \
                 kube-apiservers have it; before that, it changes nothing"
            ),
            format!("kubectl get {qualified} -A -o json | kubectl replace -f -"),
            "# instead of this command, a StorageVersionMigration does the same where it is served"
                .to_owned(),
        ];
    }
    let file = format!("{}.yaml", api.resource);
    vec![
        format!(
            "# the kube-apiservers of now write no version that {target} has: save the objects, delete \
             them, and create them again afterwards"
        ),
        format!("kubectl get {qualified} -A -o yaml > {file}"),
        format!("kubectl delete {qualified} -A --all"),
        format!("# afterwards: kubectl create -f {file}"),
    ]
}

fn custom(facts: &Facts) -> Vec<Finding> {
    let definitions = match &facts.stored_versions {
        Ok(definitions) => definitions,
        Err(why) => {
            return vec![Finding::new(
                Topic::Storage,
                Severity::NotKnown,
                "custom resources",
                format!("their stored versions could not be read: {why}"),
            )];
        }
    };
    let judged = definitions.iter().filter_map(|it| {
        let it = match it {
            Ok(it) => it,
            Err(why) => {
                return Some(Finding::new(
                    Topic::Storage,
                    Severity::NotKnown,
                    "custom resources",
                    format!("stored versions could not be read: {why}"),
                ));
            }
        };
        let unserved: Vec<_> = it
            .stored
            .iter()
            .filter(|version| !it.served.contains(version))
            .cloned()
            .collect();
        let migrate = format!(
            "kubectl get {} -A -o json | kubectl replace -f -",
            it.definition
        );
        let settle = format!(
            "kubectl patch crd {} --subresource=status --type=merge -p '{{\"status\":{{\"storedVersions\":[\"{}\"]}}}}'",
            it.definition, it.storage
        );
        if !unserved.is_empty() {
            return Some(
                Finding::new(
                    Topic::Storage,
                    Severity::Finding,
                    &it.definition,
                    format!(
                        "objects may be stored as {}, which is not served",
                        unserved.join(", ")
                    ),
                )
                .commands([migrate, settle]),
            );
        }
        (it.stored.len() > 1).then(|| {
            Finding::new(
                Topic::Storage,
                Severity::Note,
                &it.definition,
                format!(
                    "objects may be stored as {}; all of these are served",
                    it.stored.join(", ")
                ),
            )
            .commands([migrate, settle])
        })
    });
    judged.collect()
}

fn migrations(facts: &Facts) -> Vec<Finding> {
    let migrations = match &facts.migrations {
        Ok(migrations) => migrations,
        Err(why) => {
            return vec![Finding::new(
                Topic::Storage,
                Severity::NotKnown,
                "StorageVersionMigrations",
                format!("they could not be read: {why}"),
            )];
        }
    };
    migrations
        .iter()
        .map(|it| {
            let state = if it.failed {
                "has failed"
            } else {
                "has not finished"
            };
            Finding::new(
                Topic::Storage,
                Severity::Finding,
                format!("StorageVersionMigration {}", it.name),
                format!("the migration of {} {state}", it.resource),
            )
            .commands([format!(
                "kubectl describe storageversionmigrations {}",
                it.name
            )])
        })
        .collect()
}
