//! The sections of the page.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::html::{Escaped, short_number, shortened, time_of_day};
use super::picture::{picture, state_class};
use crate::status::{Server, StatusDocument, Table, TappedRequests};

/// The rows of the tap and the timeline that the page shows; JSON has all.
const MAX_ROWS: usize = 25;

/// The rows of open requests that the page shows.
const MAX_OPEN_REQUEST_ROWS: usize = 20;

/// Certificates that expire within so many days are marked.
const EXPIRY_WARNING_DAYS: i64 = 30;

/// A section: its identifier, and the element.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Section {
    pub(crate) id: String,
    pub(crate) html: String,
}

/// All sections, in their order.
pub(crate) fn sections(document: &StatusDocument) -> Vec<Section> {
    let mut all = vec![
        section("summary", "Now", &summary(document)),
        section("picture", "Control plane", &control_plane(document)),
        section("timeline", "The last hour", &timeline(document)),
        section("stops", "If this server stops now", &if_stopped(document)),
        section("traffic", "Requests", &traffic(document)),
        section("matrix", "What only some servers serve", &matrix(document)),
        section("open", "Open watches and streams", &open(document)),
    ];
    all.extend(document.tables.iter().map(table_section));
    all.extend([
        section(
            "refused",
            "Refused requests",
            &tapped(&document.refused, "No request was refused."),
        ),
        section(
            "rerouted",
            "Rerouted requests",
            &tapped(&document.rerouted, "No request was rerouted."),
        ),
        section("servers", "Servers", &servers(document)),
        section(
            "certificates",
            "Certificates of this bridge",
            &certificates(document),
        ),
    ]);
    all
}

fn section(id: &str, title: &str, content: &str) -> Section {
    let (id_text, title) = (Escaped(id), Escaped(title));
    Section {
        id: id.to_owned(),
        html: format!(
            "<section id=\"{id_text}\" aria-labelledby=\"{id_text}-title\">\
             <h2 id=\"{id_text}-title\">{title}</h2>{content}</section>"
        ),
    }
}

fn summary(document: &StatusDocument) -> String {
    let bridge = &document.bridge;
    let (good, all) = (
        document
            .servers
            .iter()
            .filter(|it| it.state.is_good())
            .count(),
        document.servers.len(),
    );
    let versions: BTreeSet<_> = (document.servers.iter())
        .filter_map(|it| it.version.as_deref())
        .collect();
    let versions: Vec<_> = versions.into_iter().collect();
    let problem = (bridge.problems.first()).or(bridge.local_only.as_ref());
    let waiting = bridge
        .waiting_for
        .as_ref()
        .map(|it| format!("the bridge does not know {it} yet"));
    let (tone, verdict) = match (problem, waiting) {
        _ if bridge.draining => ("bad", "This bridge is shutting down.".to_owned()),
        (Some(problem), _) => ("bad", problem.clone()),
        (None, Some(waiting)) => ("unknown", waiting),
        _ if good < all => (
            "bad",
            format!("{} of {all} servers do not answer.", all - good),
        ),
        _ if versions.len() > 1 => (
            "mixed",
            format!(
                "All {all} servers answer. They run {} versions.",
                versions.len()
            ),
        ),
        _ if all == 1 => ("good", "The server answers.".to_owned()),
        _ => (
            "good",
            format!("All {all} servers answer, with the same version."),
        ),
    };
    let refused = document
        .traffic
        .rows
        .iter()
        .filter(|it| it.server.is_none());
    let refused: u64 = refused.map(|it| it.total).sum();
    let errors: u64 = document
        .traffic
        .rows
        .iter()
        .map(|it| it.errors_in_minute)
        .sum();
    let rerouted = document
        .traffic
        .rows
        .iter()
        .filter(|it| is_rerouted(&it.rule));
    let rerouted: f64 = rerouted.map(|it| it.per_second).sum();
    let open: usize = document.open.iter().map(|it| it.count).sum();
    let mut out = format!(
        "<p class=\"verdict {tone}\">{}</p><dl class=\"tiles\">",
        Escaped(&verdict)
    );
    let mut tile = |name: &str, value: &str, more: &str| {
        let _ = write!(out, "<div><dt>{name}</dt><dd>{value}{more}</dd></div>");
    };
    tile("Versions", &Escaped(&versions.join(", ")).to_string(), "");
    tile(
        "Requests per second",
        &short_number(document.traffic.per_second),
        &sparkline(&document.traffic.history),
    );
    tile("Rerouted per second", &short_number(rerouted), "");
    tile("Errors in the last minute", &errors.to_string(), "");
    tile("Refused since the start", &refused.to_string(), "");
    tile("Open watches and streams", &open.to_string(), "");
    tile(
        "Kinds with different fields",
        &bridge.differing_kinds.to_string(),
        "",
    );
    if let Some(registry) = &bridge.registry {
        let state = if registry.up { "works" } else { "fails" };
        tile(
            "Registry",
            &format!("{} {state}", Escaped(&registry.kind)),
            "",
        );
    }
    out.push_str("</dl>");
    out
}

fn is_rerouted(rule: &str) -> bool {
    !matches!(rule, "local" | "discovery" | "stream" | "refused")
}

/// Requests of each second of the last minute.
fn sparkline(history: &[u64]) -> String {
    const HEIGHT: u64 = 26;
    const STEP: usize = 2;
    const SECONDS: usize = 60;
    let first = SECONDS.saturating_sub(history.len());
    let highest = history.iter().copied().max().unwrap_or(0).max(1);
    let mut path = String::new();
    for (count, second) in history.iter().zip(0..) {
        let letter = if second == 0 { 'M' } else { 'L' };
        let y = HEIGHT - count * (HEIGHT - 2) / highest;
        let _ = write!(path, "{letter}{} {y}", (first + second) * STEP);
    }
    format!(
        "<svg class=\"spark\" viewBox=\"0 0 120 28\" role=\"img\" aria-label=\"Requests in each of the last \
         {} seconds, at most {highest}\"><path d=\"{path}\"/></svg>",
        history.len()
    )
}

fn control_plane(document: &StatusDocument) -> String {
    let mut out = picture(document);
    for departed in &document.departed {
        let version = departed.version.as_deref().unwrap_or("version not known");
        let _ = write!(
            out,
            "<p class=\"departed\">{} ({}) left at {} UTC.</p>",
            Escaped(&departed.name),
            Escaped(version),
            time_of_day(&departed.time)
        );
    }
    out
}

fn timeline(document: &StatusDocument) -> String {
    if document.timeline.is_empty() {
        return empty("Nothing has changed since the start of the bridge, or in the last hour.");
    }
    let mut out = "<ol class=\"events\" tabindex=\"0\" aria-label=\"Changes\">".to_owned();
    for event in document.timeline.iter().take(MAX_ROWS) {
        let tone = match event.tone.as_str() {
            "good" => "good",
            "bad" => "bad",
            _ => "neutral",
        };
        let server = event
            .server
            .as_deref()
            .map(|it| format!("<b>{}</b> ", Escaped(it)));
        let _ = write!(
            out,
            "<li class=\"{tone}\">{} {}{}</li>",
            time_of_day(&event.time),
            server.unwrap_or_default(),
            Escaped(&event.text)
        );
    }
    out.push_str("</ol>");
    out
}

fn if_stopped(document: &StatusDocument) -> String {
    if document.if_stopped.is_empty() {
        return empty("No server answers.");
    }
    let rows = document.if_stopped.iter().map(|it| {
        let apis = match (it.is_last, it.apis.len()) {
            (true, _) => "<strong>all requests</strong>".to_owned(),
            (false, 0) => "none".to_owned(),
            (false, count) => expandable_list(&format!("{count} APIs"), &it.apis),
        };
        let remaining = if it.remaining.is_empty() {
            "no server remains".to_owned()
        } else {
            Escaped(&it.remaining.join(", ")).to_string()
        };
        [
            Cell::Header(Escaped(&it.server).to_string()),
            Cell::Text(apis),
            Cell::Number(it.watches.to_string()),
            Cell::Number(it.streams.to_string()),
            Cell::Number(it.clients.to_string()),
            Cell::Number(short_number(it.requests_per_second)),
            Cell::Text(remaining),
        ]
    });
    table(
        "APIs that get 503 because no other server that answers now serves them, and what begins again at another server. Watches, streams, clients and requests are those of this bridge.",
        &[
            "Server",
            "Get 503",
            "Watches",
            "Streams",
            "Clients",
            "Requests/s",
            "Remaining",
        ],
        rows,
    )
}

fn traffic(document: &StatusDocument) -> String {
    if document.traffic.rows.is_empty() {
        return empty("No request has ended yet.");
    }
    let milliseconds = |value: Option<f64>| {
        value.map_or("–".to_owned(), |it| format!("≤ {} ms", short_number(it)))
    };
    let rows = document.traffic.rows.iter().map(|row| {
        [
            Cell::Header(Escaped(row.server.as_deref().unwrap_or("no server")).to_string()),
            Cell::Text(Escaped(&row.rule).to_string()),
            Cell::Number(short_number(row.per_second)),
            Cell::Number(milliseconds(row.p50_milliseconds)),
            Cell::Number(milliseconds(row.p99_milliseconds)),
            Cell::Number(row.errors_in_minute.to_string()),
            Cell::Number(row.total.to_string()),
        ]
    });
    table(
        "By the server that answered and the rule that chose it. Rates of 10 s, latency and errors of a minute; watches and streams have no latency.",
        &[
            "Server",
            "Rule",
            "Per second",
            "Median",
            "99 %",
            "Errors",
            "Total",
        ],
        rows,
    )
}

fn matrix(document: &StatusDocument) -> String {
    let matrix = &document.matrix;
    if matrix.rows.is_empty() {
        return empty("Every server whose APIs are known serves the same.");
    }
    let columns: Vec<_> = ["API", "Resources"]
        .into_iter()
        .chain(matrix.servers.iter().map(String::as_str))
        .collect();
    let rows = matrix.rows.iter().map(|row| {
        let resources = match row.resources.as_slice() {
            [one] => Escaped(one).to_string(),
            many => expandable_list(&format!("{} resources", many.len()), many),
        };
        let marks = row.served_by.iter().map(|it| match it {
            Some(true) => Cell::Mark("yes", "✓"),
            Some(false) => Cell::Mark("no", "–"),
            None => Cell::Mark("unknown", "?"),
        });
        let first = [
            Cell::Header(Escaped(&row.group_version).to_string()),
            Cell::Text(resources),
        ];
        first.into_iter().chain(marks).collect::<Vec<_>>()
    });
    let mut out = table(
        "Without custom resources and aggregated APIs, which all servers share.",
        &columns,
        rows,
    );
    if matrix.omitted > 0 {
        let _ = write!(
            out,
            "<p>{} further rows are in <code>skewbridge skew</code>.</p>",
            matrix.omitted
        );
    }
    out
}

fn open(document: &StatusDocument) -> String {
    if document.open.is_empty() {
        return empty("No watch and no stream is open.");
    }
    let rows = document.open.iter().take(MAX_OPEN_REQUEST_ROWS).map(|it| {
        [
            Cell::Header(Escaped(&it.kind).to_string()),
            Cell::Text(Escaped(&it.server).to_string()),
            Cell::Text(Escaped(&it.user).to_string()),
            Cell::Text(Escaped(&it.program).to_string()),
            Cell::Number(it.count.to_string()),
        ]
    });
    table(
        "Through this bridge, by server and client.",
        &["Kind", "Server", "User", "Program", "Open"],
        rows,
    )
}

fn tapped(tapped: &TappedRequests, nothing: &str) -> String {
    if tapped.requests.is_empty() {
        return empty(nothing);
    }
    let rows = tapped.requests.iter().take(MAX_ROWS).map(|it| {
        let rule = it
            .rule
            .as_deref()
            .map(|rule| format!("{} ", Escaped(rule)))
            .unwrap_or_default();
        let server = it.server.as_deref().map_or("–".to_owned(), |server| {
            format!("{rule}→ {}", Escaped(server))
        });
        [
            Cell::Text(time_of_day(&it.time)),
            Cell::Text(Escaped(&it.verb).to_string()),
            Cell::Header(format!("<code>{}</code>", Escaped(&it.path))),
            Cell::Number(it.code.to_string()),
            Cell::Number(format!("{} ms", it.milliseconds)),
            Cell::Text(server),
            Cell::Text(format!(
                "{} <small>{}</small>",
                Escaped(&it.user),
                Escaped(&shortened(&it.user_agent, 60))
            )),
        ]
    });
    let mut out = table(
        "The newest first, without queries.",
        &[
            "Time (UTC)",
            "Verb",
            "Path",
            "Code",
            "Took",
            "Rule and server",
            "Client",
        ],
        rows,
    );
    if tapped.skipped > 0 {
        let _ = write!(
            out,
            "<p>{} further requests are not listed: there were more than ten in a second.</p>",
            tapped.skipped
        );
    }
    out
}

fn servers(document: &StatusDocument) -> String {
    let rows = document.servers.iter().map(|it| {
        [
            Cell::Header(format!(
                "{}<br><small>{}</small>",
                Escaped(it.name()),
                Escaped(&it.identity)
            )),
            Cell::Text(state(it)),
            Cell::Text(format!(
                "{}{}",
                Escaped(&it.version_text()),
                version_details(it)
            )),
            Cell::Text(Escaped(it.address.as_deref().unwrap_or("–")).to_string()),
            Cell::Text(reached_by(it)),
            Cell::Number(it.requests_in_flight.to_string()),
            Cell::Text(match it.serves_alone.as_slice() {
                [] => "none".to_owned(),
                apis => expandable_list(&format!("{} APIs", apis.len()), apis),
            }),
            Cell::Text(
                it.certificate_expires
                    .as_deref()
                    .map_or("not seen".to_owned(), |at| {
                        Escaped(at.get(..10).unwrap_or(at)).to_string()
                    }),
            ),
        ]
    });
    table(
        "The same as in the picture.",
        &[
            "Server",
            "State",
            "Version",
            "Address",
            "Reached by",
            "In flight",
            "Only here",
            "Certificate until",
        ],
        rows,
    )
}

fn state(server: &Server) -> String {
    let words = server.state.as_str();
    let class = state_class(server.state);
    let problem = server
        .problem
        .as_deref()
        .map(|it| format!("<br><small>{}</small>", Escaped(it)));
    format!(
        "<span class=\"state {class}\">{words}</span>{}",
        problem.unwrap_or_default()
    )
}

/// Build metadata of the version, and the minimum compatibility version.
fn version_details(server: &Server) -> String {
    let mut out = String::new();
    if let (Some(git_version), Some(version)) = (&server.git_version, &server.version)
        && git_version.trim_start_matches('v') != version
    {
        let _ = write!(out, "<br><small>{}</small>", Escaped(git_version));
    }
    if let Some(version) = &server.min_compatibility_version {
        let _ = write!(
            out,
            "<br><small>compatible with {}</small>",
            Escaped(version)
        );
    }
    out
}

fn reached_by(server: &Server) -> String {
    let bridges = server.reached_by.iter().map(|it| {
        let (mark, words) = if it.reached { ("✓", "reached by") } else { ("✗", "not reached by") };
        format!("<span class=\"hidden\">{words} </span>{}&nbsp;<span aria-hidden=\"true\">{mark}</span>", Escaped(&it.bridge))
    });
    bridges.collect::<Vec<_>>().join("<br>")
}

fn certificates(document: &StatusDocument) -> String {
    let rows = document.certificates.iter().map(|it| {
        let days = match it.days_left {
            left if left < 0 => "<strong class=\"bad\">expired</strong>".to_owned(),
            left if left < EXPIRY_WARNING_DAYS => {
                format!("<strong class=\"bad\">{left} days</strong>")
            }
            left => format!("{left} days"),
        };
        [
            Cell::Header(format!("<code>{}</code>", Escaped(&it.flag))),
            Cell::Text(Escaped(it.expires.get(..10).unwrap_or(&it.expires)).to_string()),
            Cell::Number(days),
        ]
    });
    table(
        "The certificate of each file that expires first.",
        &["File of", "Expires", "Left"],
        rows,
    )
}

fn table_section(table_data: &Table) -> Section {
    let columns: Vec<_> = table_data.columns.iter().map(String::as_str).collect();
    let rows = table_data.rows.iter().map(|row| {
        let cells = row.iter().map(|it| Cell::Text(Escaped(it).to_string()));
        cells.collect::<Vec<_>>()
    });
    let content = if table_data.rows.is_empty() {
        empty(&Escaped(&table_data.caption).to_string())
    } else {
        table(&table_data.caption, &columns, rows)
    };
    section(&table_data.id, &table_data.title, &content)
}

fn empty(html: &str) -> String {
    format!("<p class=\"empty\">{html}</p>")
}

/// A summary that opens a list.
fn expandable_list(summary: &str, items: &[String]) -> String {
    let mut list = String::new();
    for item in items {
        let _ = write!(list, "<li>{}</li>", Escaped(item));
    }
    format!("<details><summary>{summary}</summary><ul>{list}</ul></details>")
}

/// A cell of a table; its text is HTML.
enum Cell {
    Header(String),
    Text(String),
    Number(String),
    /// A word, and the character that shows it.
    Mark(&'static str, &'static str),
}

/// A table that scrolls by itself on narrow screens. What it shows stands above it, and does not scroll;
/// screen readers get it as the caption.
fn table<R: IntoIterator<Item = Cell>>(
    caption: &str,
    columns: &[&str],
    rows: impl Iterator<Item = R>,
) -> String {
    let caption = Escaped(caption);
    let mut out = format!(
        "<p class=\"caption\" aria-hidden=\"true\">{caption}</p>\
         <div class=\"scroll\" tabindex=\"0\" role=\"group\" aria-label=\"{caption}\">\
         <table><caption class=\"hidden\">{caption}</caption><thead><tr>"
    );
    for column in columns {
        let _ = write!(out, "<th scope=\"col\">{}</th>", Escaped(column));
    }
    out.push_str("</tr></thead><tbody>");
    for row in rows {
        out.push_str("<tr>");
        for cell in row {
            let _ = match cell {
                Cell::Header(html) => write!(out, "<th scope=\"row\">{html}</th>"),
                Cell::Text(html) => write!(out, "<td>{html}</td>"),
                Cell::Number(html) => write!(out, "<td class=\"number\">{html}</td>"),
                Cell::Mark(word, mark) => write!(
                    out,
                    "<td class=\"mark {word}\"><span aria-hidden=\"true\">{mark}</span><span class=\"hidden\">{word}</span></td>"
                ),
            };
        }
        out.push_str("</tr>");
    }
    out.push_str("</tbody></table></div>");
    out
}
