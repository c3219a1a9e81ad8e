//! The merged report as a table and as JSON.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde::Serialize;
use skewbridge_gateway::vanishing::{Call, Reason};

use super::merge::Merged;
use crate::console::Color;
use crate::skew::{group_version, plain};

/// Users and user agents are not shortened below this.
const MIN_TEXT_CHARS: usize = 12;

const INDENT: usize = 2;
const GAP: usize = 3;

/// The text for people: callers by API, those with the most calls first. On a terminal of this width
/// users and user agents are shortened.
pub(super) fn table(merged: &Merged, color: Color, width: Option<usize>) -> String {
    let mut text = String::new();
    let mut rest = merged.calls.as_slice();
    while let [first, ..] = rest {
        let same = |call: &&Call| api(call) == api(first);
        let (same_api, others) = rest.split_at(rest.iter().take_while(same).count());
        rest = others;
        // Writing to a string does not fail.
        let _ = writeln!(text, "{}", color.bold(plain(&heading(same_api))));
        rows(&mut text, same_api, width);
        text.push('\n');
    }
    if let Some(other) = merged.other {
        let _ = writeln!(
            text,
            "{} calls of further callers, which the bridges count together.\n",
            other.count
        );
    }
    summary(&mut text, merged);
    text
}

fn api(call: &Call) -> (&str, &str, &str) {
    (&call.group, &call.version, &call.resource)
}

/// The API, and whether the target release serves it.
fn heading(calls: &[Call]) -> String {
    let Some(worst) = calls.iter().min_by_key(|it| it.reason) else {
        return String::new();
    };
    let name = format!(
        "{} {}",
        group_version(&worst.group, &worst.version),
        worst.resource
    );
    let minor = worst.unavailable_in;
    let availability = match (worst.reason, minor) {
        (Reason::Removed, Some(minor)) => format!("not served by {minor}"),
        (Reason::Removed, None) => "removed".to_owned(),
        (Reason::OffByDefault, Some(minor)) => format!("off by default in {minor}"),
        (Reason::OffByDefault, None) => "off by default".to_owned(),
        (Reason::Deprecated, Some(minor)) => format!("deprecated, not served from {minor} on"),
        (Reason::Deprecated, None) => "deprecated".to_owned(),
    };
    match calls.iter().find_map(|it| it.replacement.as_ref()) {
        Some(replacement) => format!("{name}: {availability}; use {replacement}"),
        None => format!("{name}: {availability}"),
    }
}

fn rows(text: &mut String, calls: &[Call], width: Option<usize>) {
    let mut calls: Vec<_> = calls.iter().collect();
    // Stable: callers with as many calls stay in order.
    calls.sort_by_key(|it| std::cmp::Reverse(it.stats.count));
    let mut rows = vec![["COUNT", "LAST SEEN", "VERB", "USER", "USER AGENT"].map(str::to_owned)];
    rows.extend(calls.into_iter().map(|call| {
        let user = match &call.impersonated_user {
            Some(impersonated) => format!("{} as {impersonated}", call.user),
            None => call.user.clone(),
        };
        let agent = match call.user_agent.as_str() {
            "" => "(none)",
            agent => agent,
        };
        [
            call.stats.count.to_string(),
            call.stats.last_seen.to_string(),
            call.verb.clone(),
            user,
            agent.to_owned(),
        ]
        // A cell is one line.
        .map(|cell| plain(&cell).replace(['\n', '\t'], " "))
    }));
    let widest = |column: usize| {
        let lengths = rows.iter().map(|row| row[column].chars().count());
        lengths.max().unwrap_or_default()
    };
    let mut widths = [0, 1, 2, 3, 4].map(widest);
    if let Some(width) = width {
        let fixed = INDENT + widths[..3].iter().map(|it| it + GAP).sum::<usize>() + GAP;
        let (user, agent) = shared(width.saturating_sub(fixed), widths[3], widths[4]);
        (widths[3], widths[4]) = (user, agent);
    }
    let [count, seen, verb, user, agent] = widths;
    for row in &rows {
        let line = format!(
            "{:INDENT$}{:>count$}{:GAP$}{:<seen$}{:GAP$}{:<verb$}{:GAP$}{:<user$}{:GAP$}{}",
            "",
            row[0],
            "",
            row[1],
            "",
            row[2],
            "",
            shortened(&row[3], user),
            "",
            shortened(&row[4], agent)
        );
        let _ = writeln!(text, "{}", line.trim_end());
    }
}

/// The widths of two columns that share this many characters.
fn shared(available: usize, first: usize, second: usize) -> (usize, usize) {
    let half = available / 2;
    let first_width = if first <= half || second <= half {
        first.min(available.saturating_sub(second).max(half))
    } else {
        half
    };
    let first_width = first_width.max(MIN_TEXT_CHARS.min(first));
    let second_width = available.saturating_sub(first_width);
    (
        first_width,
        second_width.clamp(MIN_TEXT_CHARS.min(second), second),
    )
}

fn shortened(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(width.saturating_sub(1)).collect();
    short.push('…');
    short
}

fn counted(count: usize, noun: &str) -> String {
    match count {
        1 => format!("1 {noun}"),
        count => format!("{count} {noun}s"),
    }
}

/// How much was counted, by how many bridges, and since when.
fn summary(text: &mut String, merged: &Merged) {
    let answered = merged.counted().count();
    let Some(since) = merged.counted().map(|it| it.since).max() else {
        return;
    };
    let bridges = counted(answered, "bridge");
    let targets: BTreeSet<_> = (merged.counted().filter(|it| it.target_known))
        .filter_map(|it| it.target)
        .map(|it| it.to_string())
        .collect();
    // Before the first version is known, a bridge does not compare either.
    let unknown = merged.counted().filter(|it| !it.target_known);
    let unknown: BTreeSet<_> = unknown
        .filter_map(|it| Some(format!("{} removes from {}", it.target?, it.newest_server?)))
        .collect();
    let targets = targets.into_iter().collect::<Vec<_>>().join(", ");
    if merged.calls.is_empty() && merged.other.is_none() {
        let apis = match targets.as_str() {
            "" => "deprecated APIs".to_owned(),
            targets => format!("APIs that {targets} does not serve, or to deprecated APIs"),
        };
        let _ = writeln!(text, "No calls to {apis} since {since} ({bridges}).");
    } else {
        let calls: u64 = merged.calls.iter().map(|it| it.stats.count).sum();
        let callers: BTreeSet<_> = (merged.calls.iter())
            .map(|it| (&it.user, &it.impersonated_user, &it.user_agent))
            .collect();
        let compared = match targets.as_str() {
            "" => String::new(),
            targets => format!("; compared with {targets}"),
        };
        let _ = writeln!(
            text,
            "{calls} calls of {}, counted by {bridges} since {since}{compared}.",
            counted(callers.len(), "caller")
        );
    }
    if !unknown.is_empty() {
        let unknown = unknown.into_iter().collect::<Vec<_>>().join(", ");
        let _ = writeln!(
            text,
            "The bridges do not know what {unknown}: only calls to deprecated APIs are counted. \
             `serve --watch-target` sets another release."
        );
    }
}

/// The document for programs.
pub(super) fn json(merged: &Merged) -> String {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Document<'a> {
        api_version: &'static str,
        kind: &'static str,
        #[serde(flatten)]
        merged: &'a Merged,
    }
    let document = Document {
        api_version: "skewbridge.io/v1alpha1",
        kind: "VanishingReport",
        merged,
    };
    // Maps with text keys only: serialization does not fail.
    serde_json::to_string_pretty(&document).unwrap_or_default() + "\n"
}
