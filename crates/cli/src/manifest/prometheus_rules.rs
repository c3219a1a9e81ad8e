//! `skewbridge manifest prometheus-rules`: alert rules for the metrics of bridges.

use std::fmt::Write as _;

use clap::{Args, ValueEnum};

use super::alerts::{ALERTS, Alert};
use super::output::{GeneratedFile, Mode};

// The flags of `manifest prometheus-rules`.
#[derive(Debug, Clone, Args)]
pub(super) struct Flags {
    /// Value of the label job of the bridges in Prometheus
    #[arg(long, value_name = "NAME", default_value = "skewbridge")]
    job: String,
    /// Rule file of Prometheus, or object of the Prometheus Operator
    #[arg(long, value_enum, default_value = "file")]
    format: Format,
}

/// What to print.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    File,
    Object,
}

const FILE_HEAD: &str = "\
# Alert rules for Skewbridge: docs/monitoring.md.
#
# What changes: nothing on the machines of bridges. Prometheus evaluates these rules.
# Apply:  write this file where rule_files of prometheus.yml finds it, and reload Prometheus.
#         Check it: promtool check rules FILE
# Undo:   remove the file, and reload Prometheus.
";

const OBJECT_HEAD: &str = "\
# Alert rules for Skewbridge, for the Prometheus Operator: docs/monitoring.md.
#
# What changes: one PrometheusRule, skewbridge in the namespace monitoring. Prometheus evaluates it.
# Apply:  skewbridge manifest prometheus-rules --format=object | kubectl apply -f -
# Undo:   skewbridge manifest prometheus-rules --format=object | kubectl delete -f -
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: skewbridge
  namespace: monitoring
spec:
";

pub(super) fn manifest(flags: &Flags) -> GeneratedFile {
    let (head, indent) = match flags.format {
        Format::File => (FILE_HEAD, ""),
        Format::Object => (OBJECT_HEAD, "  "),
    };
    let mut text = head.to_owned();
    for line in rules(&flags.job).lines() {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{indent}{line}");
    }
    GeneratedFile {
        name: "prometheus-rules.yaml",
        mode: Mode::Readable,
        text,
    }
}

fn rules(job: &str) -> String {
    let mut text = "groups:\n- name: skewbridge\n  rules:\n".to_owned();
    for alert in &ALERTS {
        rule(&mut text, alert, job);
    }
    text
}

fn rule(text: &mut String, alert: &Alert, job: &str) {
    let Alert {
        name,
        expr,
        hold,
        severity,
        summary,
        reason,
    } = alert;
    // In single quotes YAML has no escapes but that of the quote.
    let quoted = |text: &str| format!("'{}'", text.replace('\'', "''"));
    // A name of a job with a quote would end the string of the expression.
    let job = job.replace('\\', "\\\\").replace('"', "\\\"");
    let expr = quoted(&expr.replace("JOB", &job));
    // Writing to a string does not fail.
    let _ = write!(
        text,
        "  - alert: {name}
    expr: {expr}
    for: {hold}
    labels:
      severity: {}
    annotations:
      summary: {}
      description: {}
",
        severity.as_str(),
        quoted(summary),
        quoted(reason),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMITTED: &str = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../deploy/prometheus-rules.yaml"
    );

    fn text(job: &str, format: Format) -> String {
        let job = job.to_owned();
        manifest(&Flags { job, format }).text
    }

    fn parsed(text: &str) -> serde_json::Value {
        serde_saphyr::from_str(text).unwrap()
    }

    #[test]
    fn the_committed_rules_are_those_that_the_command_prints() {
        super::super::assert_committed(COMMITTED, &text("skewbridge", Format::File));
    }

    #[test]
    fn both_formats_have_all_alerts() {
        let file = parsed(&text("skewbridge", Format::File));
        let object = parsed(&text("skewbridge", Format::Object));
        assert_eq!(object["kind"], "PrometheusRule");
        assert_eq!(object["spec"]["groups"], file["groups"]);
        let rules = file["groups"][0]["rules"].as_array().unwrap();
        assert_eq!(rules.len(), ALERTS.len());
        for (rule, alert) in rules.iter().zip(ALERTS) {
            assert_eq!(rule["alert"], alert.name);
            assert_eq!(rule["annotations"]["description"], alert.reason);
            assert_eq!(rule["labels"]["severity"], alert.severity.as_str());
        }
    }

    #[test]
    fn the_name_of_the_job_is_part_of_expressions() {
        let rules = parsed(&text("a\"b\\'c", Format::File));
        let expr = &rules["groups"][0]["rules"][0]["expr"];
        assert_eq!(expr, "up{job=\"a\\\"b\\\\'c\"} == 0");
    }
}
