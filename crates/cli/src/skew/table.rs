//! The report as text.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use skewbridge_discovery::diff::{Difference, Missing};

use super::report::{Bridge, Loss, Report, group_version, plain, resource};

/// A longer name is replaced by its number.
pub(super) const MAX_LABEL_CHARS: usize = 24;

/// Lists are wrapped for a narrow terminal.
const LINE_WIDTH_CHARS: usize = 80;

/// The level of detail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Detail {
    /// Subresources are on the line of their resource.
    Short,
    /// Every resource on its own line, with its verbs; servers with their addresses.
    Long,
}

/// First the servers, then the differences, then what their clients miss.
pub(crate) fn render(report: &Report, detail: Detail) -> String {
    let table = Table {
        report,
        detail,
        numbered: (report.servers.iter())
            .any(|server| server.name.chars().count() > MAX_LABEL_CHARS),
    };
    let mut out = table.servers();
    if report.skew.is_empty() {
        out.push_str(&table.nothing());
    } else {
        out.push('\n');
        out.push_str(&table.differences());
        out.push_str(&table.losses());
    }
    out.push_str(&table.bridges());
    plain(&out)
}

struct Table<'a> {
    report: &'a Report,
    detail: Detail,
    /// Whether servers have long names.
    numbered: bool,
}

impl Table<'_> {
    fn servers(&self) -> String {
        let long = self.detail == Detail::Long;
        let mut head = vec!["SERVER", "VERSION", "RESOURCES"];
        if self.numbered {
            head.insert(0, "#");
        }
        if long {
            head.extend(["SUBRESOURCES", "ADDRESS", "LAST SYNC"]);
        }
        let mut rows = vec![head.into_iter().map(str::to_owned).collect::<Vec<_>>()];
        for (number, server) in self.report.servers.iter().enumerate() {
            let or_unknown = |text: Option<&String>| match text {
                Some(text) => text.clone(),
                None => "-".to_owned(),
            };
            let counts = self.report.index(number);
            let counts = counts.map(|index| self.report.skew.servers[index]);
            let mut resources = counts.map_or("?".to_owned(), |it| it.resources.to_string());
            if server.problem().is_some() && counts.is_some() {
                resources.push_str(" (before)");
            }
            let mut row = vec![
                server.name.clone(),
                or_unknown(server.version.as_ref()),
                resources,
            ];
            if self.numbered {
                row.insert(0, (number + 1).to_string());
            }
            if long {
                row.push(counts.map_or("?".to_owned(), |it| it.subresources.to_string()));
                row.push(or_unknown(server.address.as_ref()));
                row.push(or_unknown(server.last_sync.as_ref()));
            }
            rows.push(row);
        }
        aligned(&rows)
    }

    fn nothing(&self) -> String {
        let all = self.report.servers.len();
        let served = self.report.skew.servers.len();
        match (self.report.is_complete(), served) {
            (true, 1) => "\nNo skew: there is one server.\n".to_owned(),
            (true, _) => format!("\nNo skew: all {all} servers serve the same.\n"),
            (false, 0 | 1) => format!("\nNothing to compare: {served} of {all} is known.\n"),
            (false, _) => "\nNo skew, as far as is known.\n".to_owned(),
        }
    }

    /// By group-version: what not all servers have.
    fn differences(&self) -> String {
        let mut sections = BTreeMap::<(&str, &str), Vec<&Difference>>::new();
        for it in &self.report.skew.differences {
            let section = sections.entry((&it.group, &it.version)).or_default();
            section.push(it);
        }
        let mut rows = vec![vec!["RESOURCE".to_owned(), "SERVED BY".to_owned()]];
        if self.detail == Detail::Long {
            rows[0].push("VERBS".to_owned());
        }
        for ((group, version), section) in sections {
            let mut title = group_version(group, version);
            let stale = self.report.skew.stale.iter();
            let stale = stale.filter(|it| (&*it.group, &*it.version) == (group, version));
            for stale in stale {
                let _ = write!(title, " (stale on {})", self.labels(&stale.on).join(", "));
            }
            let is_whole = section.iter().all(|it| {
                let whole = it.missing.iter().all(|it| it.missing == Missing::Version);
                whole && it.on == section[0].on
            });
            if is_whole {
                rows.push(vec![
                    format!("{title} (all of it)"),
                    self.served_by(&section[0].on),
                ]);
            } else {
                rows.push(vec![title]);
            }
            for (name, it) in self.entries(&section) {
                let mut row = vec![format!("  {name}")];
                match (is_whole, self.detail) {
                    (true, Detail::Short) => {}
                    (_, Detail::Short) => row.push(self.served_by(&it.on)),
                    (_, Detail::Long) => row.extend([self.served_by(&it.on), it.verbs.join(",")]),
                }
                rows.push(row);
            }
        }
        aligned(&rows)
    }

    /// One line: a resource with those subresources that the same servers have, or its verbs.
    fn entries<'d>(&self, section: &[&'d Difference]) -> Vec<(String, &'d Difference)> {
        let is_verbs = |it: &Difference| it.missing.iter().any(|it| it.missing == Missing::Verbs);
        let itself = |it: &Difference| {
            section.iter().find(|other| {
                other.subresource.is_empty()
                    && other.resource == it.resource
                    && other.on == it.on
                    && !is_verbs(other)
            })
        };
        let mut entries = Vec::new();
        for it in section.iter().copied() {
            if self.detail == Detail::Long || is_verbs(it) {
                let verbs = match self.detail {
                    Detail::Short => format!(" ({})", it.verbs.join(", ")),
                    Detail::Long => String::new(),
                };
                entries.push((format!("{}{verbs}", resource(it)), it));
            } else if it.subresource.is_empty() {
                let parts = section.iter().filter(|part| {
                    !part.subresource.is_empty()
                        && part.resource == it.resource
                        && part.on == it.on
                        && !is_verbs(part)
                });
                let parts: Vec<_> = parts.map(|part| format!("+{}", part.subresource)).collect();
                let parts = if parts.is_empty() {
                    String::new()
                } else {
                    format!(" ({})", parts.join(" "))
                };
                entries.push((format!("{}{parts}", it.resource), it));
            } else if itself(it).is_none() {
                entries.push((resource(it), it));
            }
        }
        entries
    }

    /// Server by server.
    fn losses(&self) -> String {
        let mut out = String::new();
        for index in 0..self.report.skew.servers.len() {
            let label = self.label(index);
            let loss = self.report.loss(index);
            if loss == Loss::default() {
                let reason = match self.report.server(index).and_then(|it| it.bridge.as_ref()) {
                    Some(Bridge::Peering { servers, .. }) if *servers > 1 => {
                        format!(": its bridge serves what any of {servers} servers serves")
                    }
                    _ => String::new(),
                };
                let _ = write!(
                    out,
                    "\nA client pinned to {label} would miss nothing{reason}.\n"
                );
                continue;
            }
            let _ = write!(
                out,
                "\nA client pinned to {label} would miss {}:\n",
                describe_loss(loss)
            );
            let mut sections = BTreeMap::<(&str, &str), Vec<&Difference>>::new();
            for it in self.report.reach.missing_from(index) {
                let section = sections.entry((&it.group, &it.version)).or_default();
                section.push(it);
            }
            for ((group, version), section) in sections {
                let whole = section[0].missing_on(index) == Some(Missing::Version);
                let title = group_version(group, version);
                let all = if whole { ", all of it" } else { "" };
                let mut items: Vec<String> = Vec::new();
                for it in section {
                    let item = match it.missing_on(index) {
                        Some(Missing::Version | Missing::Resource) => it.resource.clone(),
                        Some(Missing::Verbs) => {
                            format!("{} ({})", resource(it), it.verbs.join(" "))
                        }
                        _ => resource(it),
                    };
                    if items.last() != Some(&item) {
                        items.push(item);
                    }
                }
                out.push_str(&listed(&format!("  {title}{all}:"), &items));
            }
        }
        out
    }

    /// Notes about the bridges.
    fn bridges(&self) -> String {
        let mut out = String::new();
        for index in 0..self.report.skew.servers.len() {
            let label = self.label(index);
            match self.report.server(index).and_then(|it| it.bridge.as_ref()) {
                Some(Bridge::LocalOnly(reason)) => {
                    let _ = write!(
                        out,
                        "\nThe bridge {label} runs local-only ({reason}).\n\
                         Its clients reach its local server only.\n"
                    );
                }
                Some(Bridge::Peering {
                    servers,
                    unreachable: unreachable @ 1..,
                    ..
                }) => {
                    let _ = write!(
                        out,
                        "\nThe bridge {label} cannot reach {unreachable} of {servers} servers.\n\
                         Requests for what no other server serves are answered with 503.\n"
                    );
                }
                Some(Bridge::Peering { .. }) | None => {}
            }
        }
        out
    }

    /// The servers that have something, abbreviated.
    fn served_by(&self, on: &[usize]) -> String {
        served_by(on, self.report.skew.servers.len(), |index| {
            self.label(index)
        })
    }

    fn labels(&self, places: &[usize]) -> Vec<String> {
        places.iter().map(|index| self.label(*index)).collect()
    }

    fn label(&self, index: usize) -> String {
        match self.report.server(index) {
            Some(server) if !self.numbered => server.name.clone(),
            Some(server) => numbered_label(self.report.number(index), server.version.as_deref()),
            None => String::new(),
        }
    }
}

/// The servers that have something, abbreviated, out of all with a number below `all`.
pub(super) fn served_by(on: &[usize], all: usize, label: impl Fn(usize) -> String) -> String {
    match on {
        [only] => format!("only {}", label(*only)),
        // With three servers or more, the one without it is shorter to name.
        on if on.len() + 1 == all => {
            let missing = (0..all).find(|index| !on.contains(index));
            format!("all but {}", missing.map(label).unwrap_or_default())
        }
        on => {
            let labels: Vec<_> = on.iter().map(|index| label(*index)).collect();
            labels.join(", ")
        }
    }
}

/// `#2 (v1.36.4)`, in place of a long name.
pub(super) fn numbered_label(place: usize, version: Option<&str>) -> String {
    let number = place + 1;
    match version {
        Some(version) => format!("#{number} ({version})"),
        None => format!("#{number}"),
    }
}

/// `2 resources and 1 subresource`
fn describe_loss(loss: Loss) -> String {
    let counts = [
        (loss.resources, "resource"),
        (loss.subresources, "subresource"),
        (loss.verbs, "verb"),
    ];
    let words: Vec<_> = counts
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, word)| match count {
            1 => format!("1 {word}"),
            _ => format!("{count} {word}s"),
        })
        .collect();
    match words.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        Some((last, _)) => last.clone(),
        None => String::new(),
    }
}

/// A title and items, separated by commas, wrapped at the width.
pub(super) fn listed(title: &str, items: &[String]) -> String {
    let mut out = String::from(title);
    let mut column = title.chars().count();
    for (index, item) in items.iter().enumerate() {
        let comma = if index + 1 < items.len() { "," } else { "" };
        let length = item.chars().count() + comma.len();
        if column + 1 + length > LINE_WIDTH_CHARS {
            out.push_str("\n   ");
            column = 3;
        }
        let _ = write!(out, " {item}{comma}");
        column += 1 + length;
    }
    out.push('\n');
    out
}

/// Columns as in kubectl: as wide as their widest cell, three spaces apart. A row with one cell
/// is a title of any width.
pub(super) fn aligned(rows: &[Vec<String>]) -> String {
    let length = |cell: &String| cell.chars().count();
    let columns = rows.iter().map(Vec::len).max().unwrap_or_default();
    let widths: Vec<_> = (0..columns)
        .map(|column| {
            let rows = rows.iter().filter(|row| row.len() > 1 || columns == 1);
            let cells = rows.filter_map(|row| row.get(column));
            cells.map(length).max().unwrap_or_default()
        })
        .collect();
    let mut out = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            let _ = write!(line, "{cell:<width$}   ");
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests;
