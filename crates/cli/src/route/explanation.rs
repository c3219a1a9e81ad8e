//! The explanation of a routing decision as text.

use std::fmt;

use serde::Deserialize;

use crate::skew::plain;

/// The response of `/debug/route`.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum ExplanationDocument {
    /// Of a bridge in front of several servers: each is the local server of some requests.
    Backends {
        /// One for each.
        backends: Vec<BackendExplanation>,
    },
    /// Of a bridge beside one server.
    Sole(Explanation),
}

/// The decision if this server is chosen for the request.
#[derive(Debug, Deserialize)]
pub(super) struct BackendExplanation {
    upstream: String,
    identity: String,
    #[serde(flatten)]
    explanation: Explanation,
}

impl fmt::Display for ExplanationDocument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sole(explanation) => explanation.fmt(f),
            Self::Backends { backends } => {
                for (index, it) in backends.iter().enumerate() {
                    let gap = if index == 0 { "" } else { "\n" };
                    let (upstream, identity) = (plain(&it.upstream), plain(&it.identity));
                    writeln!(f, "{gap}If {upstream} ({identity}) is chosen:")?;
                    it.explanation.fmt(f)?;
                }
                Ok(())
            }
        }
    }
}

/// The decision from the view of one server.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Explanation {
    verb: String,
    group: String,
    version: String,
    resource: String,
    #[serde(default)]
    subresource: String,
    component: Option<String>,
    route: String,
    reason: String,
    candidates: Vec<Candidate>,
}

#[derive(Debug, Deserialize)]
struct Candidate {
    server: String,
    host: Option<String>,
    version: Option<String>,
    available: bool,
    #[serde(default)]
    unmet: Vec<String>,
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let request = match (self.resource.as_str(), self.group.as_str()) {
            ("", _) => "a path outside of the resource API".to_owned(),
            (resource, "") => format!("{resource} of {}", self.version),
            (resource, group) => format!("{resource} of {group}/{}", self.version),
        };
        let subresource = match self.subresource.as_str() {
            "" => String::new(),
            name => format!(", subresource {name}"),
        };
        writeln!(
            f,
            "Request:   {} {}{}",
            self.verb,
            plain(&request),
            plain(&subresource)
        )?;
        if let Some(component) = &self.component {
            writeln!(f, "Component: {}", plain(component))?;
        }
        writeln!(f, "Route:     {}", plain(&self.route))?;
        writeln!(f, "Reason:    {}", plain(&self.reason))?;
        if self.candidates.is_empty() {
            return Ok(());
        }
        let rows: Vec<[String; 4]> = (self.candidates.iter())
            .map(|candidate| {
                let name = match &candidate.host {
                    Some(host) => format!("{host} ({})", candidate.server),
                    None => candidate.server.clone(),
                };
                let version = candidate.version.as_deref().unwrap_or("unknown");
                let available = if candidate.available { "yes" } else { "no" };
                let unmet = candidate.unmet.join(", ");
                [
                    plain(&name),
                    plain(version),
                    available.to_owned(),
                    plain(&unmet),
                ]
            })
            .collect();
        let heading = ["SERVER", "VERSION", "AVAILABLE", "RULES NOT SATISFIED"].map(str::to_owned);
        let width = |column: usize| {
            let cells = rows
                .iter()
                .chain([&heading])
                .map(|row| row[column].chars().count());
            cells.max().unwrap_or_default()
        };
        let widths = [width(0), width(1), width(2)];
        writeln!(f)?;
        for [server, version, available, unmet] in [&heading].into_iter().chain(&rows) {
            let line = format!(
                "{server:a$}   {version:b$}   {available:c$}   {unmet}",
                a = widths[0],
                b = widths[1],
                c = widths[2]
            );
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decision_is_a_table_of_servers() {
        let explanation: Explanation = serde_json::from_value(serde_json::json!({
        "verb": "list", "group": "apps", "version": "v1", "resource": "deployments",
        "component": "kubelet 1.36.4", "route": "peer",
        "reason": "a peer satisfies the rule version, the local server does not",
        "candidates": [
            {"server": "apiserver-b", "host": "cp-2", "version": "1.36.4", "available": true},
            {"server": "local", "version": "1.34.4", "available": true, "unmet": ["version"]},
        ]}))
        .unwrap();
        let expected = "\
Request:   list deployments of apps/v1
Component: kubelet 1.36.4
Route:     peer
Reason:    a peer satisfies the rule version, the local server does not

SERVER               VERSION   AVAILABLE   RULES NOT SATISFIED
cp-2 (apiserver-b)   1.36.4    yes
local                1.34.4    yes         version
";
        assert_eq!(explanation.to_string(), expected);
    }

    #[test]
    fn each_of_several_servers_is_explained() {
        let backend = |name: &str, number: u8| {
            serde_json::json!({
            "upstream": name, "identity": format!("upstream-{number}"),
            "verb": "list", "group": "", "version": "v1", "resource": "pods", "route": "local",
            "reason": "the local server satisfies every rule",
            "candidates": [{"server": "local", "version": "1.36.4", "available": true}]})
        };
        let answer: ExplanationDocument = serde_json::from_value(serde_json::json!({
            "backends": [backend("10.0.0.1:6443", 1), backend("10.0.0.2:6443", 2)]}))
        .unwrap();
        let block = |name: &str| {
            format!(
                "If {name} is chosen:\nRequest:   list pods of v1\nRoute:     local\n\
                 Reason:    the local server satisfies every rule\n\n\
                 SERVER   VERSION   AVAILABLE   RULES NOT SATISFIED\nlocal    1.36.4    yes\n"
            )
        };
        let expected = [
            block("10.0.0.1:6443 (upstream-1)"),
            block("10.0.0.2:6443 (upstream-2)"),
        ];
        assert_eq!(answer.to_string(), expected.join("\n"));
    }

    #[test]
    fn a_path_outside_of_the_api_has_no_servers() {
        let explanation: Explanation = serde_json::from_value(serde_json::json!({
            "verb": "get", "group": "", "version": "", "resource": "", "route": "local",
            "reason": "paths outside of the resource API are answered locally",
            "candidates": []}))
        .unwrap();
        let expected = "\
Request:   get a path outside of the resource API
Route:     local
Reason:    paths outside of the resource API are answered locally
";
        assert_eq!(explanation.to_string(), expected);
    }
}
