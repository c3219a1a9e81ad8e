//! `skewbridge manifest grafana-dashboard`: a dashboard for the metrics of bridges.

use serde_json::{Value, json};

use super::output::{GeneratedFile, Mode};

/// A graph, and its queries with the legend of each.
struct Panel {
    title: &'static str,
    /// What the graph shows, and what is normal.
    description: &'static str,
    /// A unit of Grafana.
    unit: &'static str,
    queries: &'static [(&'static str, &'static str)],
}

/// The selector of the variables of the dashboard.
const SELECTED: &str = "job=~\"$job\",instance=~\"$instance\"";

/// Graphs of the grid in a row.
const COLUMNS: usize = 3;
const PANEL_WIDTH: usize = 8;
const PANEL_HEIGHT: usize = 8;

/// `SELECTED` in a query stands for the selector.
const PANELS: [Panel; 18] = [
    Panel {
        title: "Ready",
        description: "1 if the bridge and its kube-apiserver are ready.",
        unit: "none",
        queries: &[("skewbridge_ready{SELECTED}", "{{instance}}")],
    },
    Panel {
        title: "Requests",
        description: "Requests per second, by the server that answered them.",
        unit: "reqps",
        queries: &[(
            "sum by (destination) (rate(skewbridge_requests_total{SELECTED}[$__rate_interval]))",
            "{{destination}}",
        )],
    },
    Panel {
        title: "Errors",
        description: "Responses with 5xx and 429. Normal: near 0.",
        unit: "reqps",
        queries: &[(
            "sum by (code, destination) (rate(skewbridge_requests_total{SELECTED,code=~\"5..|429\"}[$__rate_interval]))",
            "{{code}} {{destination}}",
        )],
    },
    Panel {
        title: "Duration of reads and writes, 99th percentile",
        description: "Without watches and streams, which last as long as their clients want.",
        unit: "s",
        queries: &[(
            "histogram_quantile(0.99, sum by (le, verb) (rate(skewbridge_request_duration_seconds_bucket{SELECTED,verb=~\"get|list|create|update|patch|delete\"}[$__rate_interval])))",
            "{{verb}}",
        )],
    },
    Panel {
        title: "Peers that can be reached",
        description: "1 for each peer that answers.",
        unit: "none",
        queries: &[(
            "min by (host, peer) (skewbridge_peer_up{SELECTED})",
            "{{host}} {{peer}}",
        )],
    },
    Panel {
        title: "Requests to peers",
        description: "Requests per second that another server has answered, by the rule that sent them there.",
        unit: "reqps",
        queries: &[(
            "sum by (rule) (rate(skewbridge_placed_requests_total{SELECTED}[$__rate_interval]))",
            "{{rule}}",
        )],
    },
    Panel {
        title: "Requests that no server satisfies",
        description: "By rule; those of the rule admission get 503. Normal: 0.",
        unit: "reqps",
        queries: &[(
            "sum by (rule) (rate(skewbridge_unmet_placements_total{SELECTED}[$__rate_interval]))",
            "{{rule}}",
        )],
    },
    Panel {
        title: "Duration of requests to peers, 99th percentile",
        description: "To the head of the response.",
        unit: "s",
        queries: &[(
            "histogram_quantile(0.99, sum by (le, host) (rate(skewbridge_peer_request_duration_seconds_bucket{SELECTED}[$__rate_interval])))",
            "{{host}}",
        )],
    },
    Panel {
        title: "Difference between servers",
        description: "Resources whose fields differ, and admission policies that not all servers enforce. 0 when all servers have one version.",
        unit: "none",
        queries: &[
            (
                "max(skewbridge_field_differences{SELECTED})",
                "resources whose fields differ",
            ),
            (
                "sum(max by (resource) (skewbridge_guarded_policies{SELECTED}))",
                "policies that not all enforce",
            ),
        ],
    },
    Panel {
        title: "Age of peers' discovery",
        description: "Time since a peer has answered.",
        unit: "s",
        queries: &[(
            "max by (instance) (skewbridge_discovery_staleness_seconds{SELECTED})",
            "{{instance}}",
        )],
    },
    Panel {
        title: "Backends",
        description: "1 for each kube-apiserver that a balancer sends requests to.",
        unit: "none",
        queries: &[(
            "min by (upstream) (skewbridge_backend_ready{SELECTED})",
            "{{upstream}}",
        )],
    },
    Panel {
        title: "Requests in flight at backends",
        description: "By kube-apiserver and class.",
        unit: "none",
        queries: &[(
            "sum by (upstream, class) (skewbridge_backend_requests_in_flight{SELECTED})",
            "{{upstream}} {{class}}",
        )],
    },
    Panel {
        title: "Client connections",
        description: "By class; compare with --max-connections.",
        unit: "none",
        queries: &[(
            "sum by (class) (skewbridge_connection_slots{SELECTED})",
            "{{class}}",
        )],
    },
    Panel {
        title: "Closed connections and failed authentications",
        description: "Connections that lost their slot, and refused credentials.",
        unit: "ops",
        queries: &[
            (
                "sum by (reason) (rate(skewbridge_connection_evictions_total{SELECTED}[$__rate_interval]))",
                "closed: {{reason}}",
            ),
            (
                "sum by (reason) (rate(skewbridge_authentication_failures_total{SELECTED}[$__rate_interval]))",
                "refused: {{reason}}",
            ),
        ],
    },
    Panel {
        title: "Streams",
        description: "Open exec, attach and port-forward, and the rate of lost ones.",
        unit: "none",
        queries: &[
            (
                "sum by (kind) (skewbridge_streams_open{SELECTED})",
                "open: {{kind}}",
            ),
            (
                "sum by (kind) (increase(skewbridge_streams_total{SELECTED,result=\"disconnected\"}[$__rate_interval]))",
                "lost: {{kind}}",
            ),
        ],
    },
    Panel {
        title: "Days until certificates expire",
        description: "The first certificate of each flag.",
        unit: "d",
        queries: &[(
            "min by (flag) (skewbridge_certificate_expiration_timestamp_seconds{SELECTED} - time()) / 86400",
            "{{flag}}",
        )],
    },
    Panel {
        title: "CPU",
        description: "Cores in use.",
        unit: "none",
        queries: &[(
            "rate(process_cpu_seconds_total{SELECTED}[$__rate_interval])",
            "{{instance}}",
        )],
    },
    Panel {
        title: "Memory",
        description: "Resident memory, and bytes buffered for clients.",
        unit: "bytes",
        queries: &[
            (
                "process_resident_memory_bytes{SELECTED}",
                "resident: {{instance}}",
            ),
            (
                "skewbridge_buffered_bytes{SELECTED}",
                "buffered: {{instance}}",
            ),
        ],
    },
];

pub(super) fn manifest() -> GeneratedFile {
    GeneratedFile {
        name: "grafana-dashboard.json",
        mode: Mode::Readable,
        text: format!("{:#}\n", dashboard()),
    }
}

fn dashboard() -> Value {
    let panels: Vec<_> = PANELS.iter().enumerate().map(panel).collect();
    json!({
        "uid": "skewbridge",
        "title": "Skewbridge",
        // JSON has no comments: Grafana shows this text.
        "description": "Bridges by their metrics: docs/monitoring.md. Changes nothing on a machine. \
                        Apply: Grafana, Dashboards, New, Import. Undo: delete the dashboard.",
        "tags": ["skewbridge", "kubernetes"],
        "schemaVersion": 39,
        "editable": true,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [
            {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
            variable("job", "label_values(skewbridge_build_info, job)"),
            variable("instance", "label_values(skewbridge_build_info{job=~\"$job\"}, instance)"),
        ]},
        "panels": panels,
    })
}

fn variable(name: &str, query: &str) -> Value {
    json!({
        "name": name,
        "label": name,
        "type": "query",
        "datasource": datasource(),
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "includeAll": true,
        "multi": true,
        "current": {"text": "All", "value": "$__all"},
    })
}

fn datasource() -> Value {
    json!({"type": "prometheus", "uid": "${datasource}"})
}

fn panel((index, panel): (usize, &Panel)) -> Value {
    let targets = panel
        .queries
        .iter()
        .zip('A'..)
        .map(|((query, legend), id)| {
            json!({
                "refId": id.to_string(),
                "datasource": datasource(),
                "expr": query.replace("SELECTED", SELECTED),
                "legendFormat": legend,
            })
        });
    json!({
        "id": index + 1,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.description,
        "datasource": datasource(),
        "gridPos": {
            "x": index % COLUMNS * PANEL_WIDTH,
            "y": index / COLUMNS * PANEL_HEIGHT,
            "w": PANEL_WIDTH,
            "h": PANEL_HEIGHT,
        },
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}},
        "targets": targets.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::super::alerts::assert_metrics_exist;
    use super::*;

    const COMMITTED: &str = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../deploy/grafana-dashboard.json"
    );

    #[test]
    fn the_committed_dashboard_is_that_which_the_command_prints() {
        super::super::assert_committed(COMMITTED, &manifest().text);
    }

    #[test]
    fn every_metric_of_the_dashboard_exists() {
        for panel in &PANELS {
            for (query, _) in panel.queries {
                assert_metrics_exist(query);
                assert!(query.contains("SELECTED"), "{query}");
            }
        }
        let dashboard = dashboard();
        for variable in dashboard["templating"]["list"].as_array().unwrap() {
            if let Some(query) = variable["query"]["query"].as_str() {
                assert_metrics_exist(query);
            }
        }
    }

    #[test]
    fn graphs_do_not_overlap() {
        let dashboard = dashboard();
        let panels = dashboard["panels"].as_array().unwrap();
        assert_eq!(panels.len(), PANELS.len());
        let places: std::collections::BTreeSet<_> =
            panels.iter().map(|it| it["gridPos"].to_string()).collect();
        assert_eq!(places.len(), panels.len());
    }
}
