//! `docs/metrics.md`, made from the registered metrics. A test compares; with
//! `SKEWBRIDGE_WRITE_DOCS=1` it writes the page.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use http::StatusCode;

use super::Metrics;
use super::streams::StreamMetricsGuard;
use crate::stream_kind::StreamKind;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md");

const HEAD: &str = "\
# Metrics

`/metrics` of `--admin-address` and `--admin-secure-address` in the OpenMetrics text format.
[monitoring.md](monitoring.md) is about scraping them, about alerts and about the dashboard.

This page is made from the code: `SKEWBRIDGE_WRITE_DOCS=1 cargo test -p skewbridge-gateway --lib
documentation` writes it, and the test command compares it.

| stability | meaning |
|---|---|
| kube-apiserver | name, labels and meaning of the metric of kube-apiserver, whose dashboards and rules work with it |
| ALPHA | may change in a minor release; CHANGELOG.md says so |
| DEPRECATED | replaced; removed in a later release |
| process | the names that all Prometheus clients use |

Values of the label `code` are HTTP status codes.
";

/// Notes on metrics and labels, in addition to their help lines.
const NOTES: &[(&str, &str)] = &[
    (
        "apiserver_rerouted_request_total",
        "the name of kube-apiserver",
    ),
    (
        "kubernetes_apiserver_rerouted_request_total",
        "the same as `apiserver_rerouted_request_total`, with the name of KEP-4020",
    ),
    (
        "aggregator_discovery_nopeer_requests_total",
        "the name of kube-apiserver",
    ),
    (
        "aggregator_discovery_local_requests_total",
        "the same as `aggregator_discovery_nopeer_requests_total`, with the name of KEP-4020",
    ),
    (
        "skewbridge_requests_total",
        "label `route` is deprecated: use `destination`",
    ),
    (
        "skewbridge_request_duration_seconds",
        "label `route` is deprecated: use `destination`",
    ),
    (
        "skewbridge_upstream_connections",
        "label `leg` is deprecated: use `identity`",
    ),
    (
        "skewbridge_upstream_streams",
        "label `leg` is deprecated: use `identity`",
    ),
    (
        "skewbridge_streams_total",
        "label `outcome` is deprecated: use `result`",
    ),
    (
        "skewbridge_peering",
        "replaced by `skewbridge_peering_enabled`",
    ),
];

/// A metric as a scrape describes it.
#[derive(Debug, Default)]
struct Description {
    kind: String,
    help: String,
    labels: Vec<String>,
}

/// The metrics of a scrape by the names of their samples.
fn described(scrape: &str) -> BTreeMap<String, Description> {
    let mut families: BTreeMap<String, Description> = BTreeMap::new();
    for line in scrape.lines() {
        let words: Vec<_> = line.splitn(4, ' ').collect();
        match words[..] {
            ["#", "HELP", name, help] => {
                help.trim_end_matches('.')
                    .clone_into(&mut families.entry(name.to_owned()).or_default().help);
            }
            ["#", "TYPE", name, kind] => {
                kind.clone_into(&mut families.entry(name.to_owned()).or_default().kind);
            }
            ["#", ..] => {}
            _ => {
                let end = line.find(['{', ' ']).unwrap();
                let (name, rest) = line.split_at(end);
                let family = families.iter_mut().rev();
                // The longest name that is a prefix: families are in order.
                let mut family = family.filter(|(family, _)| name.starts_with(family.as_str()));
                let (_, family) = family.next().unwrap();
                if family.labels.is_empty() {
                    family.labels = labels(rest);
                }
            }
        }
    }
    let named = families.into_iter().map(|(name, family)| {
        let suffix = match family.kind.as_str() {
            "counter" => "_total",
            "info" => "_info",
            _ => "",
        };
        (format!("{name}{suffix}"), family)
    });
    named.collect()
}

/// The label names of a sample, without the bounds of histogram buckets.
fn labels(sample: &str) -> Vec<String> {
    let Some((labels, _)) = sample.strip_prefix('{').and_then(|it| it.split_once('}')) else {
        return Vec::new();
    };
    let names = labels.split(',').filter_map(|it| it.split_once('='));
    let names = names.map(|(name, _)| name.to_owned());
    names.filter(|it| it != "le").collect()
}

/// Metrics with a series in each family that has labels.
fn with_series() -> Metrics {
    let metrics = Metrics::new();
    metrics.request("local", "get", 200, Duration::ZERO, 0);
    metrics.upstream_connections("front-proxy", "h2");
    metrics.upstream_streams("front-proxy");
    metrics.backend("127.0.0.1:6443");
    metrics.handshake_failed("tls");
    metrics.reloaded("--tls-cert-file");
    metrics.certificate_expires("--tls-cert-file", 0);
    metrics.self_test([("a", true)].into_iter());
    metrics.peers().create_series();
    metrics.placement().create_series();
    metrics.vanishing().create_series();
    metrics.signatures().verified(None);
    let discovery = metrics.discovery();
    discovery.fallback(super::discovery::Fallback::NotSynced);
    discovery.recomputed(Duration::ZERO);
    discovery.observe([("/api", 0)], None);
    for kind in [StreamKind::Exec, StreamKind::PortForward] {
        metrics.streams().translated(kind, StatusCode::OK);
        drop(StreamMetricsGuard::begin(&metrics, kind, "spdy", "spdy"));
    }
    metrics
}

fn stability(name: &str, note: Option<&str>) -> &'static str {
    if note.is_some_and(|it| it.starts_with("replaced by")) {
        "DEPRECATED"
    } else if name.starts_with("skewbridge_") {
        "ALPHA"
    } else if name.starts_with("process_") {
        "process"
    } else {
        "kube-apiserver"
    }
}

fn page(metrics: &BTreeMap<String, Description>) -> String {
    let mut page = HEAD.to_owned();
    page.push_str("\n| metric | type | labels | meaning | stability | note |\n");
    page.push_str("|---|---|---|---|---|---|\n");
    for (name, Description { kind, help, labels }) in metrics {
        let note = NOTES.iter().find(|(about, _)| about == name);
        let note = note.map(|(_, note)| *note);
        let labels: Vec<_> = labels.iter().map(|it| format!("`{it}`")).collect();
        let _ = writeln!(
            page,
            "| `{name}` | {kind} | {} | {help} | {} | {} |",
            labels.join(", "),
            stability(name, note),
            note.unwrap_or_default(),
        );
    }
    page
}

#[test]
fn the_page_of_metrics_is_that_of_the_code() {
    let metrics = described(&with_series().text());
    // A family without a series would have no labels on the page.
    let registered = described(&Metrics::new().text());
    assert_eq!(
        metrics.keys().collect::<Vec<_>>(),
        registered.keys().collect::<Vec<_>>()
    );
    for (name, _) in NOTES {
        assert!(metrics.contains_key(*name), "{name}");
    }
    let expected = page(&metrics);
    if std::env::var_os("SKEWBRIDGE_WRITE_DOCS").is_some() {
        std::fs::write(PAGE, &expected).unwrap();
    }
    let found = std::fs::read_to_string(Path::new(PAGE)).unwrap_or_default();
    assert_eq!(
        found, expected,
        "docs/metrics.md is not that of the code; see CONTRIBUTING.md"
    );
}

#[test]
fn every_family_with_labels_has_a_series_in_the_page() {
    let text = with_series().text();
    for name in described(&text).keys() {
        let family = name.trim_end_matches("_total").trim_end_matches("_info");
        let mut samples = text.lines().filter(|line| !line.starts_with('#'));
        assert!(samples.any(|line| line.starts_with(family)), "{name}");
    }
}
