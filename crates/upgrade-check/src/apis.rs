//! APIs that the target removes or adds, their objects, and the requests for them.

use std::collections::{BTreeMap, BTreeSet};

use skewbridge_released_apis::{ApiChanges, ApiName, Minor, Release, Removal, RemovedApi};

use crate::facts::{DeprecatedCalls, Facts, Server};
use crate::finding::{Finding, Severity, Topic, counted};

/// What changes between all servers as they are and the target. Each server is compared as one of its
/// own release.
pub(crate) fn changes(servers: &[Server], releases: &[Release], target: &Release) -> ApiChanges {
    let mut removed = BTreeMap::new();
    let mut added: Option<BTreeSet<ApiName>> = None;
    for server in servers {
        let Ok(groups) = &server.discovery else {
            continue;
        };
        let changes = ApiChanges::between(groups, &server.releases(releases), target);
        for api in changes.removed {
            removed.entry(api.name.clone()).or_insert(api);
        }
        // An API that any server already serves is not new.
        let new: BTreeSet<_> = changes.added.into_iter().collect();
        added = Some(match added {
            Some(others) => others.intersection(&new).cloned().collect(),
            None => new,
        });
    }
    ApiChanges {
        removed: removed.into_values().collect(),
        added: added.unwrap_or_default().into_iter().collect(),
    }
}

/// The findings of the APIs that the target removes, and a note of those that it adds.
pub(crate) fn findings(facts: &Facts, changes: &ApiChanges, target: Minor) -> Vec<Finding> {
    let mut findings: Vec<_> = changes
        .removed
        .iter()
        .map(|api| removed(api, facts, target))
        .collect();
    for server in &facts.servers {
        findings.extend(calls(server, changes, target));
    }
    if !changes.added.is_empty() {
        let names: Vec<_> = changes.added.iter().map(ApiName::qualified).collect();
        let message = format!("served by default since {target}: {}", names.join(", "));
        findings.push(Finding::new(
            Topic::Apis,
            Severity::Note,
            "new APIs",
            message,
        ));
    }
    findings
}

fn removed(api: &RemovedApi, facts: &Facts, target: Minor) -> Finding {
    let RemovedApi {
        name,
        reason,
        remaining_versions,
        ..
    } = api;
    let subject = name.qualified();
    let gone = match reason {
        Removal::Absent => format!("{target} does not serve {}", name.group_version()),
        Removal::OffByDefault => {
            format!(
                "{target} serves {} only if a flag enables it",
                name.group_version()
            )
        }
    };
    let finding =
        |severity, message: String| Finding::new(Topic::Apis, severity, subject.clone(), message);
    if !api.api.listable {
        return finding(Severity::Note, format!("{gone}; it has no stored objects"));
    }
    let objects = match facts.objects.get(name) {
        Some(Ok(objects)) => objects,
        Some(Err(why)) => {
            return finding(
                Severity::NotKnown,
                format!("{gone}; its objects could not be counted: {why}"),
            );
        }
        None => {
            return finding(
                Severity::NotKnown,
                format!("{gone}; its objects were not counted"),
            );
        }
    };
    let count = counted(objects.objects, objects.at_least, "object");
    if objects.objects == 0 {
        return finding(Severity::Note, format!("{gone}; it has no objects"));
    }
    if remaining_versions.is_empty() {
        return finding(
            Severity::Finding,
            format!("{gone}, in no version; {count} can no longer be read"),
        )
        .commands(removal_commands(name, *reason));
    }
    let remaining = remaining_versions.join(", ");
    if objects.written_in_version.is_empty() {
        return finding(
            Severity::Note,
            format!("{gone}; its {count} can be read as {remaining}"),
        );
    }
    let writers: Vec<_> = objects
        .written_in_version
        .iter()
        .map(|(manager, count)| format!("{manager} ({count})"))
        .collect();
    finding(
        Severity::Finding,
        format!(
            "{gone}; its {count} can be read as {remaining}, but these write in {}: {}",
            name.version,
            writers.join(", ")
        ),
    )
    .commands([
        format!("# change the manifests and programs that write {subject} to {remaining}"),
        "# then remove their old entries, which no write in another version removes; server-side apply \
         forgets which fields its managers own"
            .to_owned(),
        reset_managers(name, &qualified_in(name, remaining_versions)),
    ])
}

/// Resets `metadata.managedFields` of the objects that have an entry in this version.
fn reset_managers(name: &ApiName, qualified: &str) -> String {
    let version = name.group_version();
    format!(
        "kubectl get {qualified} -A -o go-template='{{{{range $it := .items}}}}\
         {{{{range .metadata.managedFields}}}}{{{{if eq .apiVersion \"{version}\"}}}}{{{{$it.metadata.name}}}}\
         {{{{with $it.metadata.namespace}}}} -n {{{{.}}}}{{{{end}}}}{{{{\"\\n\"}}}}{{{{end}}}}{{{{end}}}}{{{{end}}}}' \
         | sort -u | xargs -r -L 1 kubectl patch {qualified} --type=json \
         -p='[{{\"op\":\"replace\",\"path\":\"/metadata/managedFields\",\"value\":[{{}}]}}]'"
    )
}

/// The resource in the most stable version that stays, as kubectl accepts it.
fn qualified_in(name: &ApiName, versions: &[String]) -> String {
    let version = versions.first().cloned().unwrap_or_default();
    let name = ApiName {
        version,
        ..name.clone()
    };
    name.qualified()
}

fn removal_commands(name: &ApiName, reason: Removal) -> Vec<String> {
    let subject = name.qualified();
    let mut commands = vec![
        format!("kubectl get {subject} -A -o yaml > {}.yaml", name.resource),
        format!("kubectl delete {subject} -A --all"),
    ];
    if reason == Removal::OffByDefault {
        commands.push(format!(
            "# or start kube-apiserver with --runtime-config={}=true",
            name.group_version()
        ));
    }
    commands
}

/// Calls of deprecated APIs: those that the target does not serve are findings.
fn calls(server: &Server, changes: &ApiChanges, target: Minor) -> Vec<Finding> {
    let calls = match &server.deprecated_calls {
        Ok(calls) => calls,
        Err(why) => {
            return vec![Finding::new(
                Topic::Calls,
                Severity::NotKnown,
                &server.name,
                format!("its calls of deprecated APIs could not be read: {why}"),
            )];
        }
    };
    let goes = |name: &ApiName| changes.removed.iter().any(|it| it.name == *name);
    let finding = |call: &DeprecatedCalls| {
        let subresource = match call.subresource.as_str() {
            "" => String::new(),
            subresource => format!("/{subresource}"),
        };
        let removed = call.removed_release.filter(|release| *release > target);
        let is_gone = goes(&call.api) || (call.removed_release.is_some() && removed.is_none());
        let (severity, fate) = if is_gone {
            (Severity::Finding, format!("and {target} does not serve it"))
        } else {
            let until = removed.map_or_else(String::new, |it| format!(", {it} will not"));
            (
                Severity::Note,
                format!("and it is deprecated; {target} serves it{until}"),
            )
        };
        let finding = Finding::new(
            Topic::Calls,
            severity,
            format!("{}{subresource}", call.api.qualified()),
            format!(
                "{} has answered requests for it since it started, {fate}",
                server.name
            ),
        );
        if !is_gone {
            return finding;
        }
        finding.commands([format!(
            "# find its clients by user agent in the audit log of {}",
            server.name
        )])
    };
    calls.iter().map(finding).collect()
}

/// The servers of releases that are not known.
pub(crate) fn unknown_releases(servers: &[Server], releases: &[Release]) -> Vec<Finding> {
    let unknown = servers.iter().filter_map(|server| {
        let served = server.served_minor()?;
        let is_known = releases.iter().any(|it| Minor::from(it.version) == served);
        let message = format!(
            "the APIs of {served} are not known to this version of skewbridge: which of them go is not \
             known"
        );
        (!is_known).then(|| Finding::new(Topic::Apis, Severity::NotKnown, &server.name, message))
    });
    unknown.collect()
}

/// The APIs whose objects are to be counted, of servers of these releases; and the same resource in
/// versions that stay, the most stable one first. A list in one of these is no call of the API that
/// goes, which servers count.
pub fn to_count(
    servers: &[Server],
    releases: &[Release],
    target: &Release,
) -> BTreeMap<ApiName, Vec<ApiName>> {
    let changes = changes(servers, releases, target);
    let listable = changes.removed.into_iter().filter(|it| it.api.listable);
    listable
        .map(|it| {
            let versions = it.remaining_versions.into_iter();
            let others = versions.map(|version| ApiName {
                version,
                ..it.name.clone()
            });
            let others = others.collect();
            (it.name, others)
        })
        .collect()
}
