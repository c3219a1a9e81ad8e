use skewbridge_discovery::document::{Group, Metadata, Resource, Subresource, Version};

use super::*;
use crate::skew::json;
use crate::skew::report::{ServedState, Server};

/// Written as `apps/v1 deployments get,list`, one line for each.
fn serving(lines: &[&str]) -> Vec<Group> {
    let group = |line: &&str| {
        let words: Vec<_> = line.split(' ').collect();
        let (group, version) = words[0].split_once('/').unwrap_or(("", words[0]));
        let (name, subresource) = words[1].split_once('/').unwrap_or((words[1], ""));
        let verbs: Vec<_> = words[2].split(',').map(str::to_owned).collect();
        let mut resource = Resource {
            resource: name.to_owned(),
            ..Resource::default()
        };
        if subresource.is_empty() {
            resource.verbs = verbs;
        } else {
            resource.subresources.push(Subresource {
                subresource: subresource.to_owned(),
                verbs,
                ..Subresource::default()
            });
        }
        Group {
            metadata: Metadata {
                name: group.to_owned(),
                ..Metadata::default()
            },
            versions: vec![Version {
                version: version.to_owned(),
                resources: vec![resource],
                ..Version::default()
            }],
        }
    };
    lines.iter().map(group).collect()
}

fn server(name: &str, version: &str, served: ServedState) -> Server {
    Server {
        name: name.to_owned(),
        version: Some(version.to_owned()),
        address: Some("https://10.0.0.1:6443".to_owned()),
        last_sync: None,
        served,
        bridge: None,
    }
}

const OLD: [&str; 3] = [
    "v1 pods get",
    "apps/v1 sets get",
    "x.io/v1alpha1 things get",
];
const NEW: [&str; 5] = [
    "v1 pods get,watch",
    "v1 pods/resize patch",
    "apps/v1 sets get",
    "apps/v1 policies get",
    "apps/v1 policies/status get",
];

fn two() -> Report {
    Report::new(vec![
        server("old", "v1.34.4", ServedState::Now(serving(&OLD))),
        server("new", "v1.36.4", ServedState::Now(serving(&NEW))),
    ])
}

#[test]
fn servers_then_differences_then_losses() {
    let expected = "\
SERVER   VERSION   RESOURCES
old      v1.34.4   3
new      v1.36.4   3

RESOURCE                    SERVED BY
v1
  pods (watch)              only new
  pods/resize               only new
apps/v1
  policies (+status)        only new
x.io/v1alpha1 (all of it)   only old
  things

A client pinned to old would miss 1 resource, 1 subresource and 1 verb:
  v1: pods (watch), pods/resize
  apps/v1: policies

A client pinned to new would miss 1 resource:
  x.io/v1alpha1, all of it: things
";
    assert_eq!(render(&two(), Detail::Short), expected);
}

#[test]
fn wide_output_lists_every_difference() {
    let expected = "\
SERVER   VERSION   RESOURCES   SUBRESOURCES   ADDRESS                 LAST SYNC
old      v1.34.4   3           0              https://10.0.0.1:6443   -
new      v1.36.4   3           2              https://10.0.0.1:6443   -

RESOURCE                    SERVED BY   VERBS
v1
  pods                      only new    watch
  pods/resize               only new    patch
apps/v1
  policies                  only new    get
  policies/status           only new    get
x.io/v1alpha1 (all of it)   only old
  things                    only old    get
";
    let table = render(&two(), Detail::Long);
    let (table, _) = table.split_once("\nA client").unwrap();
    assert_eq!(table, expected);
}

#[test]
fn long_names_are_replaced_by_numbers_and_server_lists_are_abbreviated() {
    let identity = |letter: &str| format!("apiserver-{}", letter.repeat(26));
    let servers = [
        ("a", &["v1 pods get"][..]),
        ("b", &["v1 pods get", "g/v1 x get"]),
    ];
    let more = [
        ("c", &["g/v1 x get", "g/v1 y get"][..]),
        ("d", &["g/v1 x get", "g/v1 y get"]),
    ];
    let servers = servers.into_iter().chain(more);
    let report = Report::new(
        servers
            .map(|(letter, lines)| {
                server(
                    &identity(letter),
                    "v1.1.1",
                    ServedState::Now(serving(lines)),
                )
            })
            .collect(),
    );
    let table = render(&report, Detail::Short);
    let expected = "\
#   SERVER                                 VERSION   RESOURCES
1   apiserver-aaaaaaaaaaaaaaaaaaaaaaaaaa   v1.1.1    1
2   apiserver-bbbbbbbbbbbbbbbbbbbbbbbbbb   v1.1.1    2
3   apiserver-cccccccccccccccccccccccccc   v1.1.1    2
4   apiserver-dddddddddddddddddddddddddd   v1.1.1    2

RESOURCE         SERVED BY
v1 (all of it)   #1 (v1.1.1), #2 (v1.1.1)
  pods
g/v1
  x              all but #1 (v1.1.1)
  y              #3 (v1.1.1), #4 (v1.1.1)
";
    assert!(table.starts_with(expected), "{table}");
    assert!(
        table
            .lines()
            .all(|line| line.chars().count() <= LINE_WIDTH_CHARS)
    );
}

#[test]
fn an_unknown_server_is_shown_and_not_compared() {
    let mut report = two();
    let mut servers = std::mem::take(&mut report.servers);
    servers.insert(
        1,
        server("dead", "", ServedState::Nothing("no route".to_owned())),
    );
    servers[1].version = None;
    let report = Report::new(servers);
    assert!(!report.is_complete());
    assert_eq!(
        report.problems().collect::<Vec<_>>(),
        [("dead", "no route")]
    );
    let table = render(&report, Detail::Short);
    assert!(table.contains("\ndead     -         ?\n"), "{table}");
    assert!(table.contains("only new"), "{table}");
    assert!(!table.contains("pinned to dead"), "{table}");

    let json: serde_json::Value = serde_json::from_str(&json::render(&report)).unwrap();
    assert_eq!(json["complete"], false);
    assert_eq!(json["servers"][1]["problem"], "no route");
    assert!(json["servers"][1].get("resources").is_none());
    assert_eq!(json["differences"][0]["on"], serde_json::json!(["new"]));
}

#[test]
fn stale_discovery_is_compared_and_marked() {
    let served = ServedState::Before(serving(&OLD), "refused".to_owned());
    let report = Report::new(vec![
        server("old", "v1.34.4", served),
        server("new", "v1.36.4", ServedState::Now(serving(&OLD))),
    ]);
    assert!(!report.is_complete());
    let table = render(&report, Detail::Short);
    assert!(table.contains("3 (before)"), "{table}");
    assert!(table.ends_with("No skew, as far as is known.\n"), "{table}");
}

#[test]
fn the_json_is_as_documented() {
    let json: serde_json::Value = serde_json::from_str(&json::render(&two())).unwrap();
    let expected = serde_json::json!({
        "kind": "SkewReport",
        "apiVersion": "skewbridge.io/v1alpha1",
        "skew": true,
        "complete": true,
        "servers": [
            {
                "name": "old", "version": "v1.34.4", "address": "https://10.0.0.1:6443",
                "resources": 3, "subresources": 0,
                "onlyHere": ["x.io/v1alpha1 things"],
                "misses": [
                    "v1 pods watch", "v1 pods/resize", "apps/v1 policies", "apps/v1 policies/status",
                ],
            },
            {
                "name": "new", "version": "v1.36.4", "address": "https://10.0.0.1:6443",
                "resources": 3, "subresources": 2,
                "onlyHere": [
                    "v1 pods watch", "v1 pods/resize", "apps/v1 policies", "apps/v1 policies/status",
                ],
                "misses": ["x.io/v1alpha1 things"],
            },
        ],
        "differences": [
            {
                "group": "", "version": "v1", "resource": "pods", "verbs": ["watch"],
                "on": ["new"], "missing": [{"server": "old", "lacks": "verbs"}],
            },
            {
                "group": "", "version": "v1", "resource": "pods", "subresource": "resize",
                "verbs": ["patch"],
                "on": ["new"], "missing": [{"server": "old", "lacks": "subresource"}],
            },
            {
                "group": "apps", "version": "v1", "resource": "policies", "verbs": ["get"],
                "on": ["new"], "missing": [{"server": "old", "lacks": "resource"}],
            },
            {
                "group": "apps", "version": "v1", "resource": "policies", "subresource": "status",
                "verbs": ["get"],
                "on": ["new"], "missing": [{"server": "old", "lacks": "resource"}],
            },
            {
                "group": "x.io", "version": "v1alpha1", "resource": "things", "verbs": ["get"],
                "on": ["old"], "missing": [{"server": "new", "lacks": "version"}],
            },
        ],
    });
    assert_eq!(json, expected);
}

#[test]
fn names_from_servers_have_no_control_characters() {
    let report = Report::new(vec![
        server(
            "old\u{1b}[31m",
            "v1\u{7}",
            ServedState::Now(serving(&["v1 pods\u{1b}[2J get"])),
        ),
        server("new", "v1.36.4", ServedState::Now(Vec::new())),
    ]);
    for text in [
        render(&report, Detail::Short),
        render(&report, Detail::Long),
        json::render(&report),
    ] {
        assert!(
            !text.chars().any(|it| it.is_control() && it != '\n'),
            "{text:?}"
        );
    }
}

#[test]
fn long_lists_are_wrapped() {
    let items: Vec<_> = (0..30).map(|number| format!("resource{number}")).collect();
    let text = listed("  group/v1:", &items);
    assert!(text.lines().count() > 3);
    assert!(
        text.lines().all(|line| line.len() <= LINE_WIDTH_CHARS),
        "{text}"
    );
    assert!(
        text.lines().skip(1).all(|line| line.starts_with("    r")),
        "{text}"
    );
}
