//! The report as JSON. The format is documented in docs/skew.md, and is stable.

use serde::Serialize;

use super::report::{FieldReport, known_by};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Document<'a> {
    kind: &'static str,
    api_version: &'static str,
    skew: bool,
    complete: bool,
    servers: Vec<ServerView<'a>>,
    differences: Vec<DifferenceView<'a>>,
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
    problem: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kinds: Option<usize>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct DifferenceView<'a> {
    group: &'a str,
    resource: &'a str,
    kind: &'a str,
    fields: Vec<FieldView<'a>>,
    knows_most: Vec<&'a str>,
    ambiguous: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct FieldView<'a> {
    path: String,
    known_by: Vec<&'a str>,
}

/// The whole report, with a line break at its end.
pub(in crate::skew) fn render(report: &FieldReport) -> String {
    let name = |index: &usize| {
        let server = report.servers.get(report.place(*index));
        server.map_or("", |server| &*server.name)
    };
    let names = |indexes: &[usize]| indexes.iter().map(name).collect::<Vec<_>>();
    let differences = report.skew.differences();
    let differences = differences.map(|(group, resource, it)| DifferenceView {
        group,
        resource,
        kind: it.kind(),
        fields: it
            .unknown()
            .iter()
            .map(|path| FieldView {
                path: path.to_string(),
                known_by: names(&known_by(it, path)),
            })
            .collect(),
        knows_most: names(it.knows_most()),
        ambiguous: it.is_ambiguous(),
    });
    let servers = report.servers.iter().map(|server| ServerView {
        name: &server.name,
        version: server.version.as_deref(),
        address: server.address.as_deref(),
        problem: server.fields.as_ref().err().map(String::as_str),
        kinds: server.fields.as_ref().ok().map(|it| it.kinds().count()),
    });
    let document = Document {
        kind: "FieldSkewReport",
        api_version: "skewbridge.io/v1alpha1",
        skew: !report.skew.is_empty(),
        complete: report.problems().next().is_none(),
        servers: servers.collect(),
        differences: differences.collect(),
    };
    let mut text = serde_json::to_string_pretty(&document).unwrap_or_default();
    text.push('\n');
    text
}
