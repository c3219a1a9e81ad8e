//! The table of calls to APIs that vanish, from the ledger. Made again at most every few seconds: the
//! ledger may have 40,000 entries.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::status::Table;
use crate::status::page::shortened;
use crate::vanishing::ledger::Ledger;
use crate::vanishing::{Call, Reason, Report};

/// The maximum number of rows, one for each caller, API and verb.
const MAX_ROWS: usize = 25;

/// The maximum length of a user and of a user agent.
const MAX_NAME_CHARS: usize = 60;

/// How long a table is served before the ledger is read again.
const TABLE_TTL: Duration = Duration::from_secs(5);

const TABLE_ID: &str = "vanishing";

const TABLE_TITLE: &str = "Who calls APIs that vanish";

/// The last table.
#[derive(Debug, Default)]
pub(super) struct VanishingCache {
    last: Option<(Instant, Arc<Table>)>,
}

impl VanishingCache {
    pub(super) fn of(&mut self, ledger: &Ledger, now: Instant) -> Arc<Table> {
        if let Some((at, table)) = &self.last
            && now < *at + TABLE_TTL
        {
            return table.clone();
        }
        let (report, left_out) = ledger.most_severe(MAX_ROWS);
        let table = Arc::new(table(&report, left_out));
        self.last = Some((now, table.clone()));
        table
    }
}

/// `left_out`: entries of the ledger that are not in the report.
fn table(report: &Report, left_out: usize) -> Table {
    let columns = [
        "API",
        "Change",
        "User",
        "User agent",
        "Verb",
        "Calls",
        "Last call",
    ];
    Table {
        id: TABLE_ID.to_owned(),
        title: TABLE_TITLE.to_owned(),
        caption: caption(report, left_out),
        columns: columns.map(str::to_owned).to_vec(),
        rows: report.calls.iter().map(row).collect(),
    }
}

fn caption(report: &Report, left_out: usize) -> String {
    let found = match report.calls.len() {
        0 => "No call through this bridge",
        _ => "Calls through this bridge",
    };
    let what = match (report.target, report.target_known) {
        (Some(target), true) => {
            format!("APIs that {target} does not serve, or that are deprecated")
        }
        _ => "deprecated APIs".to_owned(),
    };
    let unknown = match (report.target, report.target_known) {
        (Some(_), true) => None,
        (Some(target), false) => Some(format!(
            "This bridge does not know which APIs {target} serves."
        )),
        (None, _) => Some("The version of the servers is not known yet.".to_owned()),
    };
    let shown = report.calls.len();
    let listed = (left_out > 0).then(|| {
        format!(
            "{shown} of {} entries are listed, the most severe first.",
            shown + left_out
        )
    });
    let other = report.other.map(|it| {
        format!(
            "{} calls of further callers are counted together.",
            it.count
        )
    });
    let first = format!("{found} since {} to {what}.", report.since);
    let last = "skewbridge vanishing adds up all bridges.".to_owned();
    let middle = [unknown, listed, other].into_iter().flatten();
    let sentences: Vec<_> = [first].into_iter().chain(middle).chain([last]).collect();
    sentences.join(" ")
}

fn row(call: &Call) -> Vec<String> {
    let api = match call.group.as_str() {
        "" => format!("{} {}", call.version, call.resource),
        group => format!("{group}/{} {}", call.version, call.resource),
    };
    let user = match &call.impersonated_user {
        Some(impersonated) => format!("{} as {impersonated}", call.user),
        None => call.user.clone(),
    };
    let agent = match call.user_agent.as_str() {
        "" => "(none)",
        agent => agent,
    };
    vec![
        api,
        change(call),
        shortened(&user, MAX_NAME_CHARS),
        shortened(agent, MAX_NAME_CHARS),
        call.verb.clone(),
        call.stats.count.to_string(),
        call.stats.last_seen.to_string(),
    ]
}

/// What changes for the API.
fn change(call: &Call) -> String {
    let change = match (call.reason, call.unavailable_in) {
        (Reason::Removed, Some(minor)) => format!("not served by {minor}"),
        (Reason::Removed, None) => "removed".to_owned(),
        (Reason::OffByDefault, Some(minor)) => format!("off by default in {minor}"),
        (Reason::OffByDefault, None) => "off by default".to_owned(),
        (Reason::Deprecated, Some(minor)) => format!("deprecated, not served from {minor} on"),
        (Reason::Deprecated, None) => "deprecated".to_owned(),
    };
    match &call.replacement {
        Some(replacement) => format!("{change}; use {replacement}"),
        None => change,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::metrics::Metrics;

    fn report(report: serde_json::Value) -> Report {
        serde_json::from_value(report).unwrap()
    }

    fn call(reason: &str) -> serde_json::Value {
        json!({
            "user": "alice", "userAgent": "", "group": "", "version": "v1", "resource": "endpoints",
            "verb": "list", "reason": reason, "count": 3,
            "firstSeen": "2026-11-19T15:00:01Z", "lastSeen": "2026-11-19T15:00:02Z",
        })
    }

    #[test]
    fn a_row_has_the_api_its_change_and_the_caller() {
        let mut vanishing = call("removed");
        vanishing["group"] = "storage.k8s.io".into();
        vanishing["impersonatedUser"] = "bob".into();
        vanishing["userAgent"] = "x".repeat(256).into();
        vanishing["unavailableIn"] = "1.37".into();
        vanishing["replacement"] = "storage.k8s.io/v1".into();
        let long = format!("{}…", "x".repeat(59));
        for (call, expected) in [
            (
                call("deprecated"),
                ["v1 endpoints", "deprecated", "alice", "(none)"],
            ),
            (
                call("off-by-default"),
                ["v1 endpoints", "off by default", "alice", "(none)"],
            ),
            (
                vanishing,
                [
                    "storage.k8s.io/v1 endpoints",
                    "not served by 1.37; use storage.k8s.io/v1",
                    "alice as bob",
                    &long,
                ],
            ),
        ] {
            let report = report(json!({
                "since": "2026-11-19T15:00:00Z", "targetKnown": true, "calls": [call]}));
            let table = table(&report, 0);
            assert_eq!(table.rows[0][..4], expected);
            assert_eq!(table.rows[0][4..], ["list", "3", "2026-11-19T15:00:02Z"]);
            assert_eq!(table.rows[0].len(), table.columns.len());
        }
    }

    #[test]
    fn the_caption_states_what_is_counted_and_what_is_left_out() {
        let since = "since 2026-11-19T15:00:00Z to";
        let all = "skewbridge vanishing adds up all bridges.";
        let other = json!({"count": 7, "firstSeen": "2026-11-19T15:00:01Z", "lastSeen": "2026-11-19T15:00:01Z"});
        for (fields, left_out, expected) in [
            (
                json!({"target": "1.37", "targetKnown": true, "calls": []}),
                0,
                format!(
                    "No call through this bridge {since} APIs that 1.37 does not serve, or that are deprecated. {all}"
                ),
            ),
            (
                json!({"target": "1.37", "targetKnown": true, "calls": [call("removed")], "other": other}),
                40,
                format!(
                    "Calls through this bridge {since} APIs that 1.37 does not serve, or that are deprecated. 1 of 41 entries are listed, the most severe first. 7 calls of further callers are counted together. {all}"
                ),
            ),
            (
                json!({"target": "1.99", "targetKnown": false, "calls": []}),
                0,
                format!(
                    "No call through this bridge {since} deprecated APIs. This bridge does not know which APIs 1.99 serves. {all}"
                ),
            ),
            (
                json!({"targetKnown": false, "calls": []}),
                0,
                format!(
                    "No call through this bridge {since} deprecated APIs. The version of the servers is not known yet. {all}"
                ),
            ),
        ] {
            let mut fields = fields;
            fields["since"] = "2026-11-19T15:00:00Z".into();
            assert_eq!(caption(&report(fields), left_out), expected);
        }
    }

    #[test]
    fn the_ledger_is_read_at_most_every_few_seconds() {
        let (ledger, _unreviewed) = Ledger::new(None, &Metrics::new());
        let mut cache = VanishingCache::default();
        let now = Instant::now();
        let first = cache.of(&ledger, now);
        let again = |cache: &mut VanishingCache, at| Arc::ptr_eq(&first, &cache.of(&ledger, at));
        assert!(again(&mut cache, now));
        assert!(again(&mut cache, now + TABLE_TTL / 2));
        assert!(!again(&mut cache, now + TABLE_TTL));
    }
}
