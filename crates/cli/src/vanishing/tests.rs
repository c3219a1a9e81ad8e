//! Reports of bridges, merged and printed.

use serde_json::{Value, json};
use skewbridge_gateway::vanishing::Report;

use super::merge::{Answer, merge};
use super::{exit_code, render};
use crate::console::Color;

/// A report with these calls.
fn report(target: &str, known: bool, calls: &[Value]) -> Report {
    serde_json::from_value(json!({
        "since": "2026-11-19T15:00:00Z", "newestServer": "1.36",
        "target": target, "targetKnown": known, "calls": calls,
    }))
    .unwrap()
}

/// A call to `volumeattributesclasses`, with the seconds of its first and last time.
fn call(user: &str, agent: &str, verb: &str, count: u64, seen: [u8; 2]) -> Value {
    json!({
        "user": user, "userAgent": agent, "group": "storage.k8s.io", "version": "v1beta1",
        "resource": "volumeattributesclasses", "verb": verb, "reason": "removed",
        "unavailableIn": "1.37", "count": count,
        "firstSeen": format!("2026-11-19T15:00:{:02}Z", seen[0]),
        "lastSeen": format!("2026-11-19T15:00:{:02}Z", seen[1]),
    })
}

fn endpoints(user: &str, agent: &str, count: u64) -> Value {
    let mut call = call(user, agent, "list", count, [1, 1]);
    let other = json!({"group": "", "version": "v1", "resource": "endpoints",
        "reason": "deprecated", "unavailableIn": null,
        "replacement": "discovery.k8s.io/v1 EndpointSlice"});
    call.as_object_mut()
        .unwrap()
        .extend(other.as_object().unwrap().clone());
    call
}

fn answered(bridge: &str, report: Report) -> Answer {
    Answer {
        bridge: bridge.to_owned(),
        report: Ok(report),
    }
}

fn failed(bridge: &str) -> Answer {
    Answer {
        bridge: bridge.to_owned(),
        report: Err("connection refused".to_owned()),
    }
}

#[test]
fn counts_add_up_and_times_extend() {
    let a = report(
        "1.37",
        true,
        &[
            call("alice", "x/1", "list", 3, [5, 9]),
            call("alice", "x/1", "get", 1, [5, 5]),
        ],
    );
    let b = report(
        "1.37",
        true,
        &[
            call("alice", "x/1", "list", 4, [3, 7]),
            call("bob", "x/1", "list", 2, [1, 2]),
        ],
    );
    for answers in [
        vec![answered("a", a.clone()), answered("b", b.clone())],
        vec![answered("b", b), answered("a", a)],
    ] {
        let merged = merge(answers);
        let found: Vec<_> = (merged.calls.iter())
            .map(|it| {
                let seen = [it.stats.first_seen, it.stats.last_seen].map(|it| it.to_string());
                let seconds = seen.map(|it| it[17..19].to_owned()).join("-");
                format!("{} {} {} {seconds}", it.user, it.verb, it.stats.count)
            })
            .collect();
        let expected = [
            "alice get 1 05-05",
            "alice list 7 03-09",
            "bob list 2 01-02",
        ];
        assert_eq!(found, expected);
    }
}

#[test]
fn the_most_severe_reason_counts() {
    let mut deprecated = call("alice", "x/1", "list", 1, [1, 1]);
    deprecated["reason"] = "deprecated".into();
    deprecated["unavailableIn"] = "1.40".into();
    deprecated["replacement"] = "storage.k8s.io/v1 VolumeAttributesClass".into();
    let removed = call("alice", "x/1", "list", 1, [1, 1]);
    let merged = merge(vec![
        answered("a", report("1.36", true, &[deprecated])),
        answered("b", report("1.37", true, &[removed])),
    ]);
    let found = serde_json::to_value(&merged.calls).unwrap();
    assert_eq!(found[0]["reason"], "removed");
    assert_eq!(found[0]["unavailableIn"], "1.37");
    assert_eq!(
        found[0]["replacement"],
        "storage.k8s.io/v1 VolumeAttributesClass"
    );
}

#[test]
fn the_exit_code_is_that_of_skew() {
    let empty = || answered("a", report("1.37", true, &[]));
    let removed = || {
        let calls = [call("alice", "x/1", "list", 1, [1, 1])];
        answered("b", report("1.37", true, &calls))
    };
    let deprecated = || answered("c", report("1.37", true, &[endpoints("a", "x", 1)]));
    let mut full = report("1.37", true, &[]);
    full.other = Some(report("1.37", true, &[call("a", "", "get", 1, [1, 1])]).calls[0].stats);
    for (answers, expected) in [
        (vec![empty()], 0),
        (vec![empty(), deprecated()], 0),
        (vec![empty(), removed()], 2),
        (vec![answered("full", full)], 2),
        (vec![removed(), failed("d")], 1),
        // Not known is not good.
        (vec![answered("e", report("1.38", false, &[]))], 1),
        (
            vec![removed(), answered("e", report("1.38", false, &[]))],
            1,
        ),
    ] {
        assert_eq!(exit_code(&merge(answers.clone())), expected, "{answers:?}");
    }
}

#[test]
fn the_table_lists_callers_by_api() {
    let mut impersonated = call("alice", "kubectl/v1.30.0", "list", 2, [1, 2]);
    impersonated["impersonatedUser"] = "carol".into();
    let merged = merge(vec![answered(
        "a",
        report(
            "1.37",
            true,
            &[
                call("bob", "", "watch", 12, [1, 2]),
                impersonated,
                endpoints("alice", "a\u{1b}[1m\nb", 1),
            ],
        ),
    )]);
    let expected = "\
v1 endpoints: deprecated; use discovery.k8s.io/v1 EndpointSlice
  COUNT   LAST SEEN              VERB   USER    USER AGENT
      1   2026-11-19T15:00:01Z   list   alice   a\u{fffd}[1m b

storage.k8s.io/v1beta1 volumeattributesclasses: not served by 1.37
  COUNT   LAST SEEN              VERB    USER             USER AGENT
     12   2026-11-19T15:00:02Z   watch   bob              (none)
      2   2026-11-19T15:00:02Z   list    alice as carol   kubectl/v1.30.0

15 calls of 3 callers, counted by 1 bridge since 2026-11-19T15:00:00Z; compared with 1.37.
";
    assert_eq!(render::table(&merged, Color::Plain, None), expected);
}

#[test]
fn lines_fit_a_terminal() {
    let agent = "x".repeat(300);
    let user = "system:serviceaccount:default:".to_owned() + &"y".repeat(200);
    let rows = [
        (user.as_str(), agent.as_str()),
        (&user, "a"),
        ("a", &agent),
        ("a", "b"),
    ];
    for (user, agent) in rows {
        for width in [80, 100, 120, 200] {
            let calls = [call(user, agent, "deletecollection", 123_456, [1, 2])];
            let merged = merge(vec![answered("a", report("1.37", true, &calls))]);
            let text = render::table(&merged, Color::Plain, Some(width));
            let longest = text
                .lines()
                .skip(1)
                .take(2)
                .map(|it| it.chars().count())
                .max();
            assert!(longest <= Some(width), "{width}: {text}");
        }
    }
}

#[test]
fn nothing_counted_and_an_unknown_target_are_stated() {
    let merged = merge(vec![answered("a", report("1.37", true, &[])), failed("b")]);
    assert_eq!(
        render::table(&merged, Color::Plain, None),
        "No calls to APIs that 1.37 does not serve, or to deprecated APIs since 2026-11-19T15:00:00Z (1 bridge).\n"
    );
    let merged = merge(vec![answered("a", report("1.38", false, &[]))]);
    let text = render::table(&merged, Color::Plain, None);
    assert!(
        text.contains("do not know what 1.38 removes from 1.36"),
        "{text}"
    );
    assert_eq!(
        render::table(&merge(vec![failed("b")]), Color::Plain, None),
        ""
    );
}

#[test]
fn json_names_each_bridge_and_its_error() {
    let calls = [call("alice", "x/1", "list", 3, [5, 9])];
    let merged = merge(vec![
        answered("http://127.0.0.1:1", report("1.37", true, &calls)),
        failed("http://127.0.0.1:2"),
    ]);
    let document: Value = serde_json::from_str(&render::json(&merged)).unwrap();
    assert_eq!(document["kind"], "VanishingReport");
    let bridges = json!([
        {"bridge": "http://127.0.0.1:1", "since": "2026-11-19T15:00:00Z", "newestServer": "1.36",
         "target": "1.37", "targetKnown": true},
        {"bridge": "http://127.0.0.1:2", "error": "connection refused"},
    ]);
    assert_eq!(document["bridges"], bridges);
    assert_eq!(document["calls"], json!(calls));
}
