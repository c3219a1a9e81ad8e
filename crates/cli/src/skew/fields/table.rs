//! The report as text.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::report::{FieldReport, known_by, resource_name};
use crate::skew::report::plain;
use crate::skew::table::{Detail, MAX_LABEL_CHARS, aligned, listed, numbered_label, served_by};

/// First the servers, then the fields that not all know, then what writes through each erase.
pub(in crate::skew) fn render(report: &FieldReport, detail: Detail) -> String {
    let mut servers = report.servers.iter();
    let table = Table {
        report,
        detail,
        numbered: servers.any(|server| server.name.chars().count() > MAX_LABEL_CHARS),
    };
    let mut out = table.servers();
    out.push('\n');
    if report.skew.is_empty() {
        out.push_str(&table.nothing());
    } else {
        out.push_str(&table.differences());
        out.push_str(&table.erased());
        out.push_str(&table.ambiguous());
    }
    plain(&out)
}

struct Table<'a> {
    report: &'a FieldReport,
    detail: Detail,
    /// Whether servers have long names.
    numbered: bool,
}

impl Table<'_> {
    fn servers(&self) -> String {
        let long = self.detail == Detail::Long;
        let mut head = vec!["SERVER", "VERSION", "KINDS"];
        if self.numbered {
            head.insert(0, "#");
        }
        if long {
            head.push("ADDRESS");
        }
        let mut rows = vec![head.into_iter().map(str::to_owned).collect::<Vec<_>>()];
        for (number, server) in self.report.servers.iter().enumerate() {
            let unknown = || "-".to_owned();
            let kinds = server.fields.as_ref().map(|it| it.kinds().count());
            let mut row = vec![
                server.name.clone(),
                server.version.clone().unwrap_or_else(unknown),
                kinds.map_or("?".to_owned(), |count| count.to_string()),
            ];
            if self.numbered {
                row.insert(0, (number + 1).to_string());
            }
            if long {
                row.push(server.address.clone().unwrap_or_else(unknown));
            }
            rows.push(row);
        }
        aligned(&rows)
    }

    fn nothing(&self) -> String {
        let (all, known) = (self.report.servers.len(), self.report.known_count());
        match (all == known, known) {
            (true, 1) => "No skew: there is one server.\n".to_owned(),
            (true, _) => format!("No skew: all {all} servers know the same fields.\n"),
            (false, 0 | 1) => format!("Nothing to compare: {known} of {all} is known.\n"),
            (false, _) => "No skew, as far as is known.\n".to_owned(),
        }
    }

    /// By kind: the fields that not all servers know.
    fn differences(&self) -> String {
        let mut rows = vec![vec!["FIELD".to_owned(), "KNOWN BY".to_owned()]];
        for (group, resource, difference) in self.report.skew.differences() {
            let name = resource_name(group, resource);
            rows.push(vec![format!("{name} ({})", difference.kind())]);
            // A server that does not serve the kind neither has nor lacks a field, so "all but"
            // is used only where all serve it.
            let compared = difference.servers().count();
            let all = Some(compared).filter(|it| *it == self.report.known_count());
            for path in difference.unknown() {
                let servers = known_by(difference, path);
                let known = served_by(&servers, all.unwrap_or(usize::MAX), |index| {
                    self.label(index)
                });
                rows.push(vec![format!("  {path}"), known]);
            }
        }
        aligned(&rows)
    }

    /// Server by server.
    fn erased(&self) -> String {
        let mut out = String::new();
        for server in 0..self.report.known_count() {
            let label = self.label(server);
            let differences = self.report.skew.differences();
            let lacking = differences.filter(|(_, _, it)| !it.lacking(server).is_empty());
            let resources: Vec<_> = lacking
                .map(|(group, resource, _)| resource_name(group, resource))
                .collect();
            if resources.is_empty() {
                let _ = write!(out, "\nA write through {label} erases no field.\n");
                continue;
            }
            let count = match resources.len() {
                1 => "1 kind".to_owned(),
                count => format!("{count} kinds"),
            };
            let title = format!("A write through {label} can erase fields of {count}:");
            let _ = write!(out, "\n{}", listed(&title, &resources));
        }
        out
    }

    /// Kinds of which no server has all fields.
    fn ambiguous(&self) -> String {
        let mut by_newest = BTreeMap::<&[usize], Vec<String>>::new();
        for (group, resource, difference) in self.report.skew.differences() {
            if difference.is_ambiguous() {
                let resources = by_newest.entry(difference.knows_most()).or_default();
                resources.push(resource_name(group, resource));
            }
        }
        let mut out = String::new();
        for (newest, resources) in by_newest {
            let labels: Vec<_> = newest.iter().map(|it| self.label(*it)).collect();
            let title = format!(
                "No server has all fields of these. Keep to the newest, {}:",
                labels.join(", ")
            );
            let _ = write!(out, "\n{}", listed(&title, &resources));
        }
        out
    }

    fn label(&self, index: usize) -> String {
        let place = self.report.place(index);
        match self.report.servers.get(place) {
            Some(server) if !self.numbered => server.name.clone(),
            Some(server) => numbered_label(place, server.version.as_deref()),
            None => String::new(),
        }
    }
}

#[cfg(test)]
mod tests;
