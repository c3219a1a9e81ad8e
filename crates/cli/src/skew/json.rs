//! The report as JSON. The format is documented in docs/skew.md, and is stable.

use serde::Serialize;
use skewbridge_discovery::diff::{Difference, Missing};

use super::report::{Bridge, Report, group_version, resource};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Document<'a> {
    kind: &'static str,
    api_version: &'static str,
    skew: bool,
    complete: bool,
    servers: Vec<ServerView<'a>>,
    differences: Vec<DifferenceView<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    stale: Vec<StaleView<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ServerView<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_sync: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bridge: Option<BridgeView<'a>>,
    #[serde(flatten)]
    served: Option<ServedView>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct BridgeView<'a> {
    mode: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    servers: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unreachable: Option<usize>,
}

impl<'a> BridgeView<'a> {
    fn of(bridge: &'a Bridge) -> Self {
        match bridge {
            Bridge::Peering {
                servers,
                unreachable,
                ..
            } => Self {
                mode: "peering",
                reason: None,
                servers: Some(*servers),
                unreachable: Some(*unreachable),
            },
            Bridge::LocalOnly(reason) => Self {
                mode: "local-only",
                reason: Some(reason),
                servers: None,
                unreachable: None,
            },
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ServedView {
    resources: usize,
    subresources: usize,
    only_here: Vec<String>,
    misses: Vec<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct DifferenceView<'a> {
    group: &'a str,
    version: &'a str,
    resource: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    subresource: &'a str,
    verbs: &'a [String],
    on: Vec<&'a str>,
    missing: Vec<MissingView<'a>>,
}

#[derive(Serialize)]
struct MissingView<'a> {
    server: &'a str,
    lacks: &'static str,
}

#[derive(Serialize)]
struct StaleView<'a> {
    group: &'a str,
    version: &'a str,
    on: Vec<&'a str>,
}

/// The whole report, with a line break at its end.
pub(crate) fn render(report: &Report) -> String {
    let name = |index: &usize| report.server(*index).map_or("", |server| &server.name);
    let names = |places: &[usize]| places.iter().map(name).collect();
    let differences = report.skew.differences.iter().map(|it| DifferenceView {
        group: &it.group,
        version: &it.version,
        resource: &it.resource,
        subresource: &it.subresource,
        verbs: &it.verbs,
        on: names(&it.on),
        missing: it
            .missing
            .iter()
            .map(|missing| MissingView {
                server: name(&missing.server),
                lacks: missing_level(missing.missing),
            })
            .collect(),
    });
    let servers = report.servers.iter().enumerate();
    let servers = servers.map(|(number, server)| ServerView {
        name: &server.name,
        version: server.version.as_deref(),
        address: server.address.as_deref(),
        last_sync: server.last_sync.as_deref(),
        problem: server.problem(),
        bridge: server.bridge.as_ref().map(BridgeView::of),
        served: report.index(number).map(|index| ServedView {
            resources: report.skew.servers[index].resources,
            subresources: report.skew.servers[index].subresources,
            only_here: lines(report.skew.only_on(index), |it| {
                it.missing.iter().any(|it| it.missing == Missing::Verbs)
            }),
            misses: lines(report.reach.missing_from(index), |it| {
                it.missing_on(index) == Some(Missing::Verbs)
            }),
        }),
    });
    let stale = report.skew.stale.iter().map(|stale| StaleView {
        group: &stale.group,
        version: &stale.version,
        on: names(&stale.on),
    });
    let document = Document {
        kind: "SkewReport",
        api_version: "skewbridge.io/v1alpha1",
        skew: !report.skew.is_empty(),
        complete: report.is_complete(),
        servers: servers.collect(),
        differences: differences.collect(),
        stale: stale.collect(),
    };
    let mut text = serde_json::to_string_pretty(&document).unwrap_or_default();
    text.push('\n');
    text
}

fn missing_level(lacks: Missing) -> &'static str {
    match lacks {
        Missing::Version => "version",
        Missing::Resource => "resource",
        Missing::Subresource => "subresource",
        Missing::Verbs => "verbs",
    }
}

/// `apps/v1 deployments/scale`, with verbs if only some are missing.
fn lines<'a>(
    differences: impl Iterator<Item = &'a Difference>,
    of_verbs: impl Fn(&Difference) -> bool,
) -> Vec<String> {
    let line = |it: &Difference| {
        let line = format!("{} {}", group_version(&it.group, &it.version), resource(it));
        if of_verbs(it) {
            format!("{line} {}", it.verbs.join(","))
        } else {
            line
        }
    };
    let mut lines: Vec<_> = differences.map(line).collect();
    // A resource can be in several differences, because of other servers.
    lines.dedup();
    lines
}
