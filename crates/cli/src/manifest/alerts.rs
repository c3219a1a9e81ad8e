//! The alerts of a bridge: one table, which `prometheus-rules` prints and docs/monitoring.md shows.

/// How soon an administrator has to act.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Severity {
    /// Requests fail now.
    Critical,
    /// Requests will fail if a second fault is added, or with time.
    Warning,
}

impl Severity {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Critical => "critical",
            Self::Warning => "warning",
        }
    }
}

/// An alert rule.
#[derive(Debug, Clone, Copy)]
pub(super) struct Alert {
    pub(super) name: &'static str,
    /// `JOB` stands for the value of the label `job`.
    pub(super) expr: &'static str,
    /// How long the expression must hold.
    pub(super) hold: &'static str,
    pub(super) severity: Severity,
    /// What has happened, with the labels of the series.
    pub(super) summary: &'static str,
    /// The effect, and the remedy.
    pub(super) reason: &'static str,
}

pub(super) const ALERTS: [Alert; 19] = [
    Alert {
        name: "SkewbridgeDown",
        expr: "up{job=\"JOB\"} == 0",
        hold: "5m",
        severity: Severity::Critical,
        summary: "{{ $labels.instance }} cannot be scraped",
        reason: "The bridge does not run, or refuses the scraper: look at the last error of the \
                 target in Prometheus. 401 and 403: the token or its rights. 503: kube-apiserver \
                 has answered no review for 5 minutes.",
    },
    Alert {
        name: "SkewbridgeNotReady",
        expr: "skewbridge_ready == 0",
        hold: "2m",
        severity: Severity::Critical,
        summary: "{{ $labels.instance }} is not ready",
        reason: "Clients of this bridge get errors, or a load balancer has taken it out. \
                 /readyz?verbose names the check that fails; usually the kube-apiserver behind the \
                 bridge is down.",
    },
    Alert {
        name: "SkewbridgeRestarting",
        expr: "changes(process_start_time_seconds{job=\"JOB\"}[30m]) > 2",
        hold: "0m",
        severity: Severity::Warning,
        summary: "{{ $labels.instance }} has restarted {{ $value }} times in 30 minutes",
        reason: "A restart ends all watches and streams of the bridge. The end of the previous \
                 log has the cause: a rejected flag or file, a failed liveness probe, or the memory \
                 limit.",
    },
    Alert {
        name: "SkewbridgeSelfTestFailed",
        expr: "skewbridge_self_test_up == 0",
        hold: "5m",
        severity: Severity::Critical,
        summary: "{{ $labels.instance }} fails the self-test {{ $labels.test }}",
        reason: "kube-apiserver does not accept the users that the bridge asserts, so that users \
                 of the bridge get 401 or 403. The log names the flag and the file that do not \
                 match those of kube-apiserver.",
    },
    Alert {
        name: "SkewbridgeBackendNotReady",
        expr: "skewbridge_backend_ready == 0",
        hold: "5m",
        severity: Severity::Warning,
        summary: "{{ $labels.instance }} sends no requests to {{ $labels.upstream }}",
        reason: "A bridge in front of several kube-apiservers has one less. Requests that only \
                 this server can serve get 503.",
    },
    Alert {
        name: "SkewbridgePeerUnreachable",
        expr: "skewbridge_peer_up == 0",
        hold: "5m",
        severity: Severity::Warning,
        summary: "{{ $labels.instance }} does not reach the peer {{ $labels.peer }} on \
                  {{ $labels.host }}",
        reason: "Requests for APIs that only this peer serves get 503. /debug/peers shows the \
                 error: an address, a firewall, or a certificate.",
    },
    Alert {
        name: "SkewbridgePeerWithoutBridge",
        expr: "skewbridge_peers_without_bridge > 0",
        hold: "1h",
        severity: Severity::Warning,
        summary: "{{ $labels.instance }} knows {{ $value }} kube-apiservers whose bridge has left",
        reason: "Clients of these servers have no protection against mixed versions. Start the \
                 bridge again, or remove the server's identity Lease if the server is gone.",
    },
    Alert {
        name: "SkewbridgeRegistryDown",
        expr: "skewbridge_peer_registry_up == 0 and skewbridge_peering_enabled == 1",
        hold: "5m",
        severity: Severity::Warning,
        summary: "{{ $labels.instance }} cannot use the registry of peer addresses",
        reason: "Known peers stay in use, but new, moved or removed peers are not detected. \
                 /debug/peers shows the error of the registry.",
    },
    Alert {
        name: "SkewbridgeDiscoveryStale",
        expr: "skewbridge_discovery_staleness_seconds > 600",
        hold: "5m",
        severity: Severity::Warning,
        summary: "{{ $labels.instance }} has had no answer from a peer for {{ $value }} s",
        reason: "The bridge routes by what this peer served then. An API that the peer has gained \
                 or lost since then is routed wrongly.",
    },
    Alert {
        name: "SkewbridgeReroutedRequestsFail",
        expr: "sum by (job, instance) (increase(skewbridge_rerouted_requests_total{code=~\"502|503|504\"}[5m])) > 0",
        hold: "2m",
        severity: Severity::Critical,
        summary: "{{ $labels.instance }} has no peer that answers rerouted requests",
        reason: "Clients get errors for APIs that the local kube-apiserver does not serve. Look at \
                 SkewbridgePeerUnreachable, and at the log of the peer.",
    },
    Alert {
        name: "SkewbridgeWritesRefused",
        expr: "increase(skewbridge_unmet_placements_total{rule=\"admission\"}[5m]) > 0",
        hold: "1m",
        severity: Severity::Critical,
        summary: "{{ $labels.instance }} refuses writes that an admission policy may match",
        reason: "No available server enforces the policy, so writes get 503 and are not made \
                 without it. Bring the newer kube-apiserver back, or delete the policy.",
    },
    Alert {
        name: "SkewbridgePoliciesUnknown",
        expr: "skewbridge_unknown_policy_kinds > 0",
        hold: "15m",
        severity: Severity::Warning,
        summary: "{{ $labels.instance }} cannot read {{ $value }} kinds of admission policies",
        reason: "Every write counts as matched and goes to the newer servers. The bridge's user \
                 lacks the right to list the policies, or no server that has them answers.",
    },
    Alert {
        name: "SkewbridgeFieldsUnknown",
        expr: "skewbridge_fields_known == 0 and skewbridge_peering_enabled == 1",
        hold: "15m",
        severity: Severity::Warning,
        summary: "{{ $labels.instance }} does not know the fields of all servers",
        reason: "Writes of all kinds go to the newest server, so that it has their load alone and \
                 no field is lost. /readyz?verbose names the server whose OpenAPI cannot be read.",
    },
    Alert {
        name: "SkewbridgeDiscoveryFallback",
        expr: "increase(skewbridge_discovery_fallbacks_total{reason!=\"no_peering\"}[15m]) > 0",
        hold: "15m",
        severity: Severity::Warning,
        summary: "{{ $labels.instance }} sends discovery of its own server only: \
                  {{ $labels.reason }}",
        reason: "Clients such as the garbage collector and the namespace controller do not see \
                 APIs that only other servers have.",
    },
    Alert {
        name: "SkewbridgeCertificateExpires",
        expr: "skewbridge_certificate_expiration_timestamp_seconds - time() < 7 * 24 * 3600",
        hold: "1h",
        severity: Severity::Warning,
        summary: "the certificate of {{ $labels.flag }} on {{ $labels.instance }} expires in \
                  {{ $value | humanizeDuration }}",
        reason: "Clients, kube-apiserver or peers will refuse the bridge. Renew the certificate \
                 (kubeadm certs renew); a running bridge reads it again.",
    },
    Alert {
        name: "SkewbridgeFileReloadFailed",
        expr: "increase(skewbridge_file_reloads_total{result=\"failed\"}[15m]) > 0",
        hold: "0m",
        severity: Severity::Warning,
        summary: "{{ $labels.instance }} cannot use the new content of {{ $labels.flag }}",
        reason: "The old content stays in use, and the next start of the bridge would fail. The \
                 log names the file and the cause. The value peering means that CA files conflict: \
                 peering is disabled.",
    },
    Alert {
        name: "SkewbridgeConnectionsRejected",
        expr: "sum by (job, instance) (increase(skewbridge_connection_evictions_total{reason=~\"slots-full|source-limit\"}[5m])) > 0",
        hold: "2m",
        severity: Severity::Warning,
        summary: "{{ $labels.instance }} closes client connections to free their slots",
        reason: "--max-connections or the limit of one source is reached: an attack, a client that \
                 leaks connections, or a load balancer that hides its clients (PROXY protocol).",
    },
    Alert {
        name: "SkewbridgeAuthenticationsLimited",
        expr: "sum by (job, instance) (increase(skewbridge_authentications_limited_total[5m])) > 0",
        hold: "2m",
        severity: Severity::Warning,
        summary: "{{ $labels.instance }} answers 429 to a source of failed authentications",
        reason: "A source guesses credentials, or a client repeats an expired one. The access log \
                 (--v=2) has its address.",
    },
    Alert {
        name: "SkewbridgeStreamsCut",
        expr: "sum by (job, instance) (increase(skewbridge_streams_total{result=\"disconnected\"}[15m])) > 5",
        hold: "0m",
        severity: Severity::Warning,
        summary: "{{ $labels.instance }} has lost {{ $value }} streams in 15 minutes",
        reason: "Users lose kubectl exec, attach and port-forward. The connection to \
                 kube-apiserver, to the kubelet or to the container's runtime breaks.",
    },
];

/// The names of the metrics in an expression.
#[cfg(test)]
pub(super) fn metrics_of(expression: &str) -> Vec<String> {
    let words = expression.split(|it: char| !it.is_ascii_alphanumeric() && it != '_');
    let names = words.filter(|word| {
        ["skewbridge_", "apiserver_", "aggregator_", "process_"]
            .iter()
            .any(|prefix| word.starts_with(prefix))
    });
    names.map(ToOwned::to_owned).collect()
}

/// Asserts that docs/metrics.md, which is made from the code, has these metrics.
#[cfg(test)]
pub(super) fn assert_metrics_exist(expression: &str) {
    const METRICS: &str = include_str!("../../../../docs/metrics.md");
    let found = metrics_of(expression);
    assert!(
        !found.is_empty() || expression.contains("up{"),
        "{expression}"
    );
    for name in found {
        let name = ["_bucket", "_sum", "_count"]
            .iter()
            .find_map(|suffix| name.strip_suffix(suffix))
            .unwrap_or(&name);
        assert!(
            METRICS.contains(&format!("| `{name}` |")),
            "{name} does not exist"
        );
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_metric_of_a_rule_exists() {
        for alert in ALERTS {
            assert_metrics_exist(alert.expr);
        }
    }

    #[test]
    fn alerts_have_names_of_their_own_and_say_why_they_matter() {
        let names: BTreeSet<_> = ALERTS.iter().map(|it| it.name).collect();
        assert_eq!(names.len(), ALERTS.len());
        for alert in ALERTS {
            assert!(alert.name.starts_with("Skewbridge"), "{alert:?}");
            assert!(
                alert.summary.contains("{{ $labels.instance }}"),
                "{alert:?}"
            );
            assert!(alert.reason.ends_with('.'), "{alert:?}");
            assert!(!alert.expr.contains('\''), "{alert:?}");
        }
    }

    /// The table of docs/monitoring.md.
    fn table() -> String {
        let mut table =
            "| alert | severity | when | why, and what to do |\n|---|---|---|---|\n".to_owned();
        for alert in ALERTS {
            let expr = alert.expr.replace("JOB", "skewbridge").replace('|', "\\|");
            let hold = match alert.hold {
                "0m" => String::new(),
                hold => format!(" for {hold}"),
            };
            let (name, severity) = (alert.name, alert.severity.as_str());
            let row = format!(
                "| {name} | {severity} | `{expr}`{hold} | {} |\n",
                alert.reason
            );
            table.push_str(&row);
        }
        table
    }

    #[test]
    fn the_documentation_has_the_table_of_alerts() {
        const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/monitoring.md");
        const BEGIN: &str = "<!-- made from the code: see CONTRIBUTING.md -->\n";
        const END: &str = "<!-- end -->\n";
        let page = std::fs::read_to_string(PAGE).unwrap();
        let (before, rest) = page.split_once(BEGIN).unwrap();
        let (_, after) = rest.split_once(END).unwrap();
        let expected = format!("{before}{BEGIN}{}{END}{after}", table());
        super::super::assert_committed(PAGE, &expected);
    }

    #[test]
    fn the_page_of_an_upgrade_explains_every_alert() {
        const PAGE: &str = include_str!("../../../../docs/upgrade-day.md");
        let rows = PAGE.lines().filter_map(|line| {
            let (name, _) = line.strip_prefix("| Skewbridge")?.split_once(" |")?;
            Some(format!("Skewbridge{name}"))
        });
        let explained: Vec<_> = rows.collect();
        assert_eq!(explained, ALERTS.map(|it| it.name));
    }

    #[test]
    fn names_of_metrics_are_found_in_expressions() {
        let expression = "sum by (job) (rate(skewbridge_requests_total{code=\"503\"}[5m])) > up";
        assert_eq!(metrics_of(expression), ["skewbridge_requests_total"]);
    }
}
