//! The status document as text. Names come from clients and servers: control characters are replaced.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use skewbridge_gateway::status::{
    ApiMatrix, ApiMatrixRow, ReachedBy, StatusDocument, StopImpact, Table, TappedRequests,
};

use crate::skew::plain;

/// The rows of a table that are shown.
const MAX_ROWS: usize = 10;

/// The servers of the matrix that are shown.
const MAX_MATRIX_SERVERS: usize = 5;

/// The characters of a name of a server in the matrix, and of a mark.
const MAX_NAME_CHARS: usize = 12;
const MARK_CHARS: usize = 3;

/// The width of the matrix: that of a terminal.
const MATRIX_CHARS: usize = 80;

/// APIs are not shortened below this. Five servers with the longest names leave less room.
const MIN_API_CHARS: usize = 30;

/// Between two columns.
const GAP: &str = "   ";

/// The APIs of a server that are named.
const MAX_APIS: usize = 6;

/// The characters of a cell of a further table.
const MAX_CELL_CHARS: usize = 40;

pub(super) fn text(document: &StatusDocument) -> String {
    let mut out = String::new();
    bridge(document, &mut out);
    servers(document, &mut out);
    if_stopped(document, &mut out);
    matrix(&document.matrix, &mut out);
    traffic(document, &mut out);
    open_watches_and_streams(document, &mut out);
    recorded_requests("Refused requests", &document.refused, &mut out);
    recorded_requests("Rerouted requests", &document.rerouted, &mut out);
    timeline(document, &mut out);
    for table in &document.tables {
        other_table(table, &mut out);
    }
    out
}

fn bridge(document: &StatusDocument, out: &mut String) {
    let bridge = &document.bridge;
    let state = match (bridge.ready, bridge.draining) {
        (_, true) => "shutting down",
        (true, _) => "ready",
        (false, _) => "not ready",
    };
    let _ = writeln!(
        out,
        "Bridge:      {state}, version {}, up {}, {:.1} requests/s",
        plain(&bridge.version),
        duration(bridge.uptime_seconds),
        document.traffic.per_second
    );
    for problem in &bridge.problems {
        let _ = writeln!(out, "Problem:     {}", line(problem));
    }
    if let Some(why) = &bridge.local_only {
        let _ = writeln!(out, "Local only:  {}", plain(why));
    }
    if let Some(what) = &bridge.waiting_for {
        let _ = writeln!(out, "Waiting for: {}", plain(what));
    }
    if let Some(registry) = &bridge.registry {
        let state = if registry.up { "works" } else { "fails" };
        let _ = writeln!(out, "Registry:    {} {state}", plain(&registry.kind));
    }
    if let Some(first) = document.certificates.first() {
        let (flag, day) = (
            plain(&first.flag),
            plain(first.expires.get(..10).unwrap_or_default()),
        );
        let _ = writeln!(
            out,
            "Certificate: the file of {flag} expires first, on {day}"
        );
    }
}

fn servers(document: &StatusDocument, out: &mut String) {
    let rows = document.servers.iter().map(|server| {
        let state = match &server.problem {
            Some(problem) if !server.state.is_good() => {
                format!("{}: {problem}", server.state.as_str())
            }
            _ => server.state.as_str().to_owned(),
        };
        vec![
            server.name().to_owned(),
            server.version_text(),
            server.address.clone().unwrap_or_else(|| "-".to_owned()),
            reached_by(&server.reached_by),
            server.serves_alone.len().to_string(),
            state,
        ]
    });
    out.push('\n');
    table(
        &[
            "SERVER",
            "VERSION",
            "ADDRESS",
            "REACHED BY",
            "ONLY HERE",
            "STATE",
        ],
        &rows.collect::<Vec<_>>(),
        out,
    );
    for departed in &document.departed {
        let at = departed.time.get(11..19).unwrap_or(&departed.time);
        let _ = writeln!(out, "{} left at {} UTC", line(&departed.name), line(at));
    }
}

fn reached_by(bridges: &[ReachedBy]) -> String {
    let bridges = bridges.iter().map(|it| {
        if it.reached {
            it.bridge.clone()
        } else {
            format!("not {}", it.bridge)
        }
    });
    bridges.collect::<Vec<_>>().join(", ")
}

fn if_stopped(document: &StatusDocument, out: &mut String) {
    let rows = document.if_stopped.iter().map(|it| {
        vec![
            it.server.clone(),
            unserved(it),
            it.watches.to_string(),
            it.streams.to_string(),
            it.clients.to_string(),
            format!("{:.1}", it.requests_per_second),
        ]
    });
    let _ = writeln!(out, "\nIf a server stops now");
    table(
        &[
            "SERVER",
            "GET 503",
            "WATCHES",
            "STREAMS",
            "CLIENTS",
            "REQUESTS/S",
        ],
        &rows.collect::<Vec<_>>(),
        out,
    );
}

fn unserved(it: &StopImpact) -> String {
    if it.is_last {
        return "all requests".to_owned();
    }
    match it.apis.as_slice() {
        [] => "none".to_owned(),
        apis => {
            let named: Vec<_> = apis.iter().take(MAX_APIS).map(String::as_str).collect();
            let more = match apis.len() - named.len() {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            format!("{}{more}", named.join(", "))
        }
    }
}

/// One row for each API that only some servers serve. The servers come first and the API last, so that
/// a row is cut at its end.
fn matrix(matrix: &ApiMatrix, out: &mut String) {
    if matrix.rows.is_empty() {
        return;
    }
    let (servers, more_servers) = match matrix.servers.len().checked_sub(MAX_MATRIX_SERVERS) {
        None | Some(0) => (matrix.servers.as_slice(), 0),
        Some(more) => (&matrix.servers[..MAX_MATRIX_SERVERS], more),
    };
    let names = matrix_names(servers);
    let width = names
        .iter()
        .map(|it| it.chars().count().max(MARK_CHARS) + GAP.len());
    let remaining = MATRIX_CHARS.saturating_sub(width.sum());
    let rows = matrix.rows.iter().take(MAX_ROWS).map(|row| {
        let marks = (0..servers.len()).map(|server| match row.served_by.get(server) {
            Some(Some(true)) => "yes".to_owned(),
            Some(Some(false)) => "-".to_owned(),
            Some(None) | None => "?".to_owned(),
        });
        let api = shortened(&api(row), remaining.max(MIN_API_CHARS));
        marks.chain([api]).collect()
    });
    let rows: Vec<_> = rows.collect();
    let _ = writeln!(out, "\nWhat only some servers serve");
    table(&[names, vec!["API".to_owned()]].concat(), &rows, out);
    if more_servers > 0 {
        let _ = writeln!(out, "and {more_servers} more servers: skewbridge skew");
    }
    more(matrix.rows.len() + matrix.omitted, "skew", out);
}

/// The first label of each host name; whole names if they would be the same. Long names keep their
/// end: that is where hosts differ.
fn matrix_names(servers: &[String]) -> Vec<String> {
    // The first part of an address is a number.
    let is_label = |label: &str| label.contains(|it: char| !it.is_ascii_digit());
    let label = |name: &str| match name.split_once('.') {
        Some((label, _)) if is_label(label) => label.to_owned(),
        _ => name.to_owned(),
    };
    let labels: Vec<_> = servers.iter().map(|it| label(it)).collect();
    let distinct: BTreeSet<_> = labels.iter().collect();
    let names = if distinct.len() == labels.len() {
        labels
    } else {
        servers.to_vec()
    };
    let end = |name: String| {
        let letters: Vec<char> = name.chars().collect();
        match letters.len().checked_sub(MAX_NAME_CHARS) {
            None | Some(0) => name,
            Some(more) => ['…'].iter().chain(&letters[more + 1..]).collect(),
        }
    };
    names.into_iter().map(end).collect()
}

fn api(row: &ApiMatrixRow) -> String {
    match row.resources.as_slice() {
        [one] => format!("{} {one}", row.group_version),
        many => format!("{} {}: {}", row.group_version, many.len(), many.join(", ")),
    }
}

fn traffic(document: &StatusDocument, out: &mut String) {
    if document.traffic.rows.is_empty() {
        return;
    }
    let milliseconds = |it: Option<f64>| it.map_or("-".to_owned(), |it| format!("{it} ms"));
    let rows = document.traffic.rows.iter().map(|row| {
        vec![
            row.server.clone().unwrap_or_else(|| "no server".to_owned()),
            row.rule.clone(),
            format!("{:.1}", row.per_second),
            milliseconds(row.p50_milliseconds),
            milliseconds(row.p99_milliseconds),
            row.errors_in_minute.to_string(),
            row.total.to_string(),
        ]
    });
    let _ = writeln!(out, "\nRequests");
    table(
        &[
            "SERVER",
            "RULE",
            "PER SECOND",
            "MEDIAN",
            "99 %",
            "ERRORS",
            "TOTAL",
        ],
        &rows.collect::<Vec<_>>(),
        out,
    );
}

fn open_watches_and_streams(document: &StatusDocument, out: &mut String) {
    if document.open.is_empty() {
        return;
    }
    let rows = document.open.iter().take(MAX_ROWS).map(|it| {
        vec![
            it.kind.clone(),
            it.server.clone(),
            it.user.clone(),
            it.program.clone(),
            it.count.to_string(),
        ]
    });
    let _ = writeln!(out, "\nOpen watches and streams");
    table(
        &["KIND", "SERVER", "USER", "PROGRAM", "OPEN"],
        &rows.collect::<Vec<_>>(),
        out,
    );
}

fn recorded_requests(title: &str, recorded: &TappedRequests, out: &mut String) {
    if recorded.requests.is_empty() {
        return;
    }
    let rows = recorded.requests.iter().take(MAX_ROWS).map(|it| {
        vec![
            it.time.get(11..19).unwrap_or(&it.time).to_owned(),
            it.code.to_string(),
            it.verb.clone(),
            it.path.clone(),
            it.rule.clone().unwrap_or_else(|| "-".to_owned()),
            it.server.clone().unwrap_or_else(|| "-".to_owned()),
            it.user.clone(),
        ]
    });
    let _ = writeln!(out, "\n{title}");
    table(
        &["TIME", "CODE", "VERB", "PATH", "RULE", "SERVER", "USER"],
        &rows.collect::<Vec<_>>(),
        out,
    );
}

fn timeline(document: &StatusDocument, out: &mut String) {
    if document.timeline.is_empty() {
        return;
    }
    let _ = writeln!(out, "\nThe last hour (UTC)");
    for event in document.timeline.iter().take(MAX_ROWS) {
        let at = event.time.get(11..19).unwrap_or(&event.time);
        let server = event
            .server
            .as_deref()
            .map(|it| format!("{it} "))
            .unwrap_or_default();
        let _ = writeln!(out, "{}  {}{}", line(at), line(&server), line(&event.text));
    }
}

fn other_table(other: &Table, out: &mut String) {
    let _ = writeln!(out, "\n{}", line(&other.title));
    let _ = writeln!(out, "{}", line(&other.caption));
    if other.rows.is_empty() {
        return;
    }
    let columns: Vec<_> = other.columns.iter().map(|it| it.to_uppercase()).collect();
    let rows = other.rows.iter().take(MAX_ROWS).map(|row| {
        let cells = row.iter().map(|it| shortened(it, MAX_CELL_CHARS));
        cells.collect::<Vec<_>>()
    });
    table(&columns, &rows.collect::<Vec<_>>(), out);
    more(other.rows.len(), "status -o json", out);
}

/// The number of rows that are left out.
fn more(rows: usize, command: &str, out: &mut String) {
    if let Some(more) = rows.checked_sub(MAX_ROWS).filter(|it| *it > 0) {
        let _ = writeln!(out, "and {more} more: skewbridge {command}");
    }
}

fn shortened(text: &str, max_chars: usize) -> String {
    if text.chars().count() <= max_chars {
        return text.to_owned();
    }
    let kept: String = text.chars().take(max_chars.saturating_sub(1)).collect();
    format!("{kept}…")
}

/// Text on one line.
fn line(text: &str) -> String {
    plain(text).replace(['\n', '\t'], " ")
}

fn duration(seconds: u64) -> String {
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, minutes) => format!("{minutes} min"),
        (0, hours, minutes) => format!("{hours} h {minutes} min"),
        (days, hours, _) => format!("{days} d {hours} h"),
    }
}

/// Left-aligned columns.
fn table(columns: &[impl AsRef<str>], rows: &[Vec<String>], out: &mut String) {
    let heading: Vec<_> = columns.iter().map(|it| line(it.as_ref())).collect();
    let rows = rows
        .iter()
        .map(|row| row.iter().map(|it| line(it)).collect::<Vec<_>>());
    let all: Vec<_> = [heading].into_iter().chain(rows).collect();
    let width = |column: usize| {
        let cells = all.iter().filter_map(|row| row.get(column));
        cells.map(|it| it.chars().count()).max().unwrap_or_default()
    };
    for row in &all {
        let cells = row.iter().enumerate().map(|(column, cell)| {
            let width = width(column);
            format!("{cell:width$}")
        });
        let text = cells.collect::<Vec<_>>().join(GAP);
        let _ = writeln!(out, "{}", text.trim_end());
    }
}

#[cfg(test)]
mod tests {
    use skewbridge_gateway::status::{Bridge, Event, Server, ServerState, TrafficRow};

    use super::*;

    #[test]
    fn the_status_is_tables_of_plain_text() {
        let server = |name: &str, state, version: &str| Server {
            identity: format!("apiserver-{name}"),
            host: Some(name.to_owned()),
            state,
            version: Some(version.to_owned()),
            address: Some("10.0.0.1:6443".to_owned()),
            ..Server::default()
        };
        let mut document = StatusDocument {
            bridge: Bridge {
                version: "1.0".to_owned(),
                uptime_seconds: 3_700,
                ready: true,
                ..Bridge::default()
            },
            servers: vec![
                server("cp-1", ServerState::Ready, "1.34.4"),
                server("cp-2", ServerState::Unreachable, "1.36.4"),
            ],
            timeline: vec![Event {
                time: "2026-11-19T12:00:01.000000Z".to_owned(),
                server: Some("cp-2".to_owned()),
                text: "is unreachable: \u{1b}[1mrefused".to_owned(),
                ..Event::default()
            }],
            if_stopped: vec![StopImpact {
                server: "cp-1".to_owned(),
                is_last: true,
                ..StopImpact::default()
            }],
            ..StatusDocument::default()
        };
        document.servers[1].problem = Some("refused".to_owned());
        document.traffic.rows = vec![TrafficRow {
            server: Some("cp-1".to_owned()),
            rule: "local".to_owned(),
            total: 7,
            p50_milliseconds: Some(0.5),
            ..TrafficRow::default()
        }];
        let expected = "\
Bridge:      ready, version 1.0, up 1 h 1 min, 0.0 requests/s

SERVER   VERSION   ADDRESS         REACHED BY   ONLY HERE   STATE
cp-1     1.34.4    10.0.0.1:6443                0           ready
cp-2     1.36.4    10.0.0.1:6443                0           unreachable: refused

If a server stops now
SERVER   GET 503        WATCHES   STREAMS   CLIENTS   REQUESTS/S
cp-1     all requests   0         0         0         0.0

Requests
SERVER   RULE    PER SECOND   MEDIAN   99 %   ERRORS   TOTAL
cp-1     local   0.0          0.5 ms   -      0        7

The last hour (UTC)
12:00:01  cp-2 is unreachable: ";
        let text = text(&document);
        assert_eq!(text.get(..expected.len()), Some(expected), "{text}");
        assert!(!text.contains('\u{1b}'));
    }

    #[test]
    fn the_matrix_fits_a_terminal() {
        let (yes, no) = (Some(true), Some(false));
        let row =
            |group_version: &str, resources: &[&str], served_by: &[Option<bool>]| ApiMatrixRow {
                group_version: group_version.to_owned(),
                resources: resources.iter().map(|it| (*it).to_owned()).collect(),
                served_by: served_by.to_vec(),
            };
        let strings = |names: &[&str]| names.iter().map(|it| (*it).to_owned()).collect();
        let mut document = StatusDocument::default();
        assert!(!text(&document).contains("What only some servers serve"));
        document.matrix = ApiMatrix {
            servers: strings(&["cp-1.example.com", "cp-2.example.com", "cp-3.example.com"]),
            rows: vec![
                row("v1", &["pods/resize"], &[no, yes, None]),
                row("resource.k8s.io/v1", &["a", "b"], &[yes, no]),
                row("forged/v1", &["a\nBridge: ready"], &[yes, no, no]),
                row(
                    "admissionregistration.k8s.io/v1beta1",
                    &[
                        "mutatingadmissionpolicies",
                        "mutatingadmissionpolicybindings",
                    ],
                    &[yes, no, no],
                ),
            ],
            omitted: 0,
        };
        let expected = "
What only some servers serve
cp-1   cp-2   cp-3   API
-      yes    ?      v1 pods/resize
yes    -      ?      resource.k8s.io/v1 2: a, b
yes    -      -      forged/v1 a Bridge: ready
yes    -      -      admissionregistration.k8s.io/v1beta1 2: mutatingadmissionp…
";
        let found = text(&document);
        assert!(found.contains(expected), "{found}");

        document.matrix.servers = strings(&["ip-10-0-0-101.a", "ip-10-0-0-102.a", "10.0.0.3:443"]);
        let rows = document.matrix.rows.iter().cycle().take(12).cloned();
        document.matrix.rows = rows.collect();
        document.matrix.omitted = 7;
        let found = text(&document);
        assert!(
            found.contains("\n…-10-0-0-101   …-10-0-0-102   10.0.0.3:443   API\n"),
            "{found}"
        );
        assert!(found.contains("\nand 9 more: skewbridge skew\n"), "{found}");
        // Labels that are the same do not tell servers apart.
        document.matrix.servers = strings(&["cp.a", "cp.b", "cp.c"]);
        assert!(text(&document).contains("\ncp.a   cp.b   cp.c   API\n"));
        document.matrix.servers = (0..9)
            .map(|it| format!("server-of-a-long-name-{it}"))
            .collect();
        let found = text(&document);
        assert!(
            found.contains("\nand 4 more servers: skewbridge skew\n"),
            "{found}"
        );
        let longest = found.lines().map(|it| it.chars().count()).max();
        assert!(longest <= Some(5 * 15 + MIN_API_CHARS), "{found}");
    }

    #[test]
    fn a_further_table_has_a_bound_and_cells_of_one_short_line() {
        let rows = (0..12).map(|number| vec![format!("v1 r{number}"), "x".repeat(200)]);
        let mut rows: Vec<_> = rows.collect();
        rows[0][1] = "forged\nBridge: ready".to_owned();
        let mut document = StatusDocument {
            tables: vec![Table {
                title: "Who calls APIs that vanish".to_owned(),
                caption: "Calls since yesterday.".to_owned(),
                columns: vec!["API".to_owned(), "User".to_owned()],
                rows,
                ..Table::default()
            }],
            ..StatusDocument::default()
        };
        let long = format!("{}…", "x".repeat(39));
        let middle: Vec<_> = (1..10).map(|it| format!("v1 r{it}   {long}\n")).collect();
        let middle = middle.concat();
        let expected = format!(
            "\nWho calls APIs that vanish\nCalls since yesterday.\nAPI     USER\n\
             v1 r0   forged Bridge: ready\n{middle}and 2 more: skewbridge status -o json\n"
        );
        let found = text(&document);
        assert!(found.ends_with(&expected), "{found}");
        document.tables[0].rows.clear();
        let found = text(&document);
        let expected = "\nWho calls APIs that vanish\nCalls since yesterday.\n";
        assert!(found.ends_with(expected), "{found}");
    }
}
