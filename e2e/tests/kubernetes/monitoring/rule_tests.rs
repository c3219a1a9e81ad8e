//! The alert rules as printed, in tests of promtool: with their own times and without a bridge.

use skewbridge_e2e::{ControlPlane, ServerSpec, newest, versions};

use super::{fast_rules, manifest};

/// Series of a bridge without a fault, per minute, and the alert that other values cause.
const SERIES: [(&str, &str, &str, &str); 19] = [
    ("up{job=\"skewbridge\"}", "1x60", "0x60", "SkewbridgeDown"),
    ("skewbridge_ready{}", "1x60", "0x60", "SkewbridgeNotReady"),
    (
        "process_start_time_seconds{job=\"skewbridge\"}",
        "7x60",
        "7+60x60",
        "SkewbridgeRestarting",
    ),
    (
        "skewbridge_self_test_up{test=\"a\"}",
        "1x60",
        "0x60",
        "SkewbridgeSelfTestFailed",
    ),
    (
        "skewbridge_backend_ready{upstream=\"a\"}",
        "1x60",
        "0x60",
        "SkewbridgeBackendNotReady",
    ),
    (
        "skewbridge_peer_up{peer=\"a\"}",
        "1x60",
        "0x60",
        "SkewbridgePeerUnreachable",
    ),
    (
        "skewbridge_peers_without_bridge{}",
        "0x70",
        "1x70",
        "SkewbridgePeerWithoutBridge",
    ),
    (
        "skewbridge_peer_registry_up{}",
        "1x60",
        "0x60",
        "SkewbridgeRegistryDown",
    ),
    (
        "skewbridge_discovery_staleness_seconds{}",
        "30x60",
        "700x60",
        "SkewbridgeDiscoveryStale",
    ),
    (
        "skewbridge_rerouted_requests_total{code=\"503\"}",
        "3x60",
        "0+1x60",
        "SkewbridgeReroutedRequestsFail",
    ),
    (
        "skewbridge_unmet_placements_total{rule=\"admission\"}",
        "3x60",
        "0+1x60",
        "SkewbridgeWritesRefused",
    ),
    (
        "skewbridge_unknown_policy_kinds{}",
        "0x60",
        "1x60",
        "SkewbridgePoliciesUnknown",
    ),
    (
        "skewbridge_fields_known{}",
        "1x60",
        "0x60",
        "SkewbridgeFieldsUnknown",
    ),
    (
        "skewbridge_discovery_fallbacks_total{reason=\"not_synced\"}",
        "3x60",
        "0+1x60",
        "SkewbridgeDiscoveryFallback",
    ),
    (
        "skewbridge_certificate_expiration_timestamp_seconds{flag=\"--a\"}",
        "9000000x70",
        "90000x70",
        "SkewbridgeCertificateExpires",
    ),
    (
        "skewbridge_file_reloads_total{result=\"failed\"}",
        "3x60",
        "0+1x60",
        "SkewbridgeFileReloadFailed",
    ),
    (
        "skewbridge_connection_evictions_total{reason=\"slots-full\"}",
        "3x60",
        "0+1x60",
        "SkewbridgeConnectionsRejected",
    ),
    (
        "skewbridge_authentications_limited_total{reason=\"token\"}",
        "3x60",
        "0+1x60",
        "SkewbridgeAuthenticationsLimited",
    ),
    (
        "skewbridge_streams_total{result=\"disconnected\"}",
        "3x60",
        "0+1x60",
        "SkewbridgeStreamsCut",
    ),
];

/// A test of promtool: with one series faulty exactly its alert fires, and without a fault none.
fn rule_tests() -> String {
    let mut text = "rule_files: [rules.yaml]\nevaluation_interval: 1m\ntests:\n".to_owned();
    let faults = SERIES
        .iter()
        .map(|(series, _, _, alert)| Some((series, alert)));
    for fault in faults.chain([None]) {
        text.push_str("- interval: 1m\n  input_series:\n");
        text.push_str("  - {series: 'skewbridge_peering_enabled', values: '1x70'}\n");
        for (series, normal, faulty, _) in &SERIES {
            let values = if fault.is_some_and(|it| it.0 == series) {
                faulty
            } else {
                normal
            };
            let line = format!("  - {{series: '{series}', values: '{values}'}}\n");
            text.push_str(&line);
        }
        let firing = "ALERTS{alertstate=\"firing\"}";
        let expected = match fault {
            Some((_, alert)) => format!("[{{labels: '{{alertname=\"{alert}\"}}', value: 1}}]"),
            None => "[]".to_owned(),
        };
        let query = format!(
            "  promql_expr_test:
  - expr: count by (alertname) ({firing})
    eval_time: 61m
    exp_samples: {expected}
"
        );
        text.push_str(&query);
    }
    text
}

#[tokio::test]
async fn each_fault_fires_its_alert_and_no_other() {
    let version = newest(&versions()).to_owned();
    let plane = ControlPlane::prepare(&[ServerSpec::of(&version)]);
    fast_rules(&plane).await;
    let tests = plane.file("rule-tests.yaml", &rule_tests());
    let tested = plane.promtool(&["test", "rules", &tests]).await;
    assert_eq!(tested.code, Some(0), "{tested:?}");
    // Every rule has a row.
    let rules = manifest(&plane, "prometheus-rules").await.stdout;
    assert_eq!(rules.matches("- alert: ").count(), SERIES.len());
}
