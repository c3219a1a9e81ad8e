//! Reports as text, JSON, Markdown and HTML.

use std::fmt::Write as _;

use serde::Serialize;
use skewbridge_upgrade_check::{Finding, Report, Severity, Topic};

use crate::check::render::{DEFAULT_WIDTH, MIN_WIDTH, indented, wrapped};
use crate::console::Color;
use crate::skew::plain;

/// The heading of a topic.
fn title(topic: Topic) -> &'static str {
    match topic {
        Topic::Apis => "APIs",
        Topic::Calls => "calls of deprecated APIs",
        Topic::Storage => "stored versions",
        Topic::Fields => "fields that are erased",
        Topic::Versions => "versions",
        Topic::Servers => "kube-apiservers",
    }
}

/// What a severity is called in a table.
fn word(severity: Severity) -> &'static str {
    match severity {
        Severity::Finding => "finding",
        Severity::NotKnown => "not known",
        Severity::Note => "note",
    }
}

/// The text for terminals: the verdict, then all findings by topic.
pub(super) fn text(reports: &[Report], color: Color, width: usize) -> String {
    let width = width.clamp(MIN_WIDTH, DEFAULT_WIDTH);
    let mut text = String::new();
    for (number, report) in reports.iter().enumerate() {
        let gap = if number == 0 { "" } else { "\n" };
        // Writing to a string does not fail.
        let _ = writeln!(text, "{gap}{}", color.bold(report));
        let mut topic = None;
        for finding in &report.findings {
            if topic != Some(finding.topic) {
                let _ = writeln!(text, "\n{}", color.bold(title(finding.topic)));
                topic = Some(finding.topic);
            }
            line(&mut text, finding, color, width);
        }
    }
    text
}

fn line(text: &mut String, finding: &Finding, color: Color, width: usize) {
    let sign = match finding.severity {
        Severity::Finding => color.failure("✗"),
        Severity::NotKnown => color.warning("?"),
        Severity::Note => color.dim("·"),
    };
    let mut lines = wrapped(&plain(&finding.subject), width - 2).into_iter();
    let _ = writeln!(text, "{sign} {}", lines.next().unwrap_or_default());
    for rest in lines {
        let _ = writeln!(text, "  {rest}");
    }
    indented(text, "", &plain(&finding.message), width);
    for command in &finding.commands {
        match command.strip_prefix("# ") {
            Some(words) => indented(text, "→ ", &plain(words), width),
            // Not wrapped: it can be copied.
            None => {
                let _ = writeln!(text, "      {}", color.name(plain(command)));
            }
        }
    }
}

/// The document for programs.
pub(super) fn json(reports: &[Report]) -> String {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Document<'a> {
        api_version: &'static str,
        kind: &'static str,
        reports: &'a [Report],
    }
    let document = Document {
        api_version: "skewbridge.io/v1alpha1",
        kind: "UpgradeCheckReport",
        reports,
    };
    // Maps with text keys only: serialization does not fail.
    serde_json::to_string_pretty(&document).unwrap_or_default() + "\n"
}

/// The document for tickets and merge requests.
pub(super) fn markdown(reports: &[Report]) -> String {
    let mut text = String::new();
    for (number, report) in reports.iter().enumerate() {
        let gap = if number == 0 { "" } else { "\n" };
        let _ = writeln!(text, "{gap}## {}\n", escaped_markdown(&report.to_string()));
        if report.findings.is_empty() {
            continue;
        }
        text.push_str("| | topic | subject | |\n|---|---|---|---|\n");
        for finding in &report.findings {
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} |",
                word(finding.severity),
                title(finding.topic),
                escaped_markdown(&finding.subject),
                escaped_markdown(&finding.message)
            );
        }
        let commands: Vec<_> = with_commands(report).collect();
        if !commands.is_empty() {
            text.push_str("\n```sh\n");
            for finding in commands {
                let _ = writeln!(
                    text,
                    "# {}: {}",
                    plain(&finding.subject),
                    word(finding.severity)
                );
                for command in &finding.commands {
                    // A name with a line of ``` would end the block.
                    let _ = writeln!(text, "{}", plain(command).replace("```", "` ` `"));
                }
            }
            text.push_str("```\n");
        }
    }
    text
}

fn with_commands(report: &Report) -> impl Iterator<Item = &Finding> {
    report.findings.iter().filter(|it| !it.commands.is_empty())
}

/// Without line breaks, and without the characters that Markdown and HTML give a meaning.
pub(crate) fn escaped_markdown(text: &str) -> String {
    let mut escaped = String::new();
    for letter in plain(text).chars() {
        match letter {
            '\n' => escaped.push(' '),
            '\\' | '`' | '*' | '_' | '[' | ']' | '<' | '>' | '|' | '#' => {
                escaped.push('\\');
                escaped.push(letter);
            }
            letter => escaped.push(letter),
        }
    }
    escaped
}

const HTML_HEAD: &str = "<!DOCTYPE html>
<html lang=\"en\"><head><meta charset=\"utf-8\">
<meta name=\"viewport\" content=\"width=device-width\">
<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">
<title>Upgrade check</title>
<style>
:root { color-scheme: light dark; font: 1rem/1.5 system-ui, sans-serif; }
body { max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .3rem .6rem; border-bottom: 1px solid #8886; }
pre { margin: .3rem 0 0; white-space: pre-wrap; font-size: .9em; }
</style></head><body>
";

/// One page, without anything from elsewhere.
pub(super) fn html(reports: &[Report]) -> String {
    let mut text = HTML_HEAD.to_owned();
    for report in reports {
        let _ = writeln!(text, "<h1>{}</h1>", escaped_html(&report.to_string()));
        if report.findings.is_empty() {
            continue;
        }
        text.push_str(
            "<table><thead><tr><th>Result</th><th>Topic</th><th>Subject</th><th>Message</th></tr></thead><tbody>\n",
        );
        for finding in &report.findings {
            let commands = match finding.commands.join("\n") {
                none if none.is_empty() => none,
                commands => format!("<pre>{}</pre>", escaped_html(&commands)),
            };
            let _ = writeln!(
                text,
                "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}{commands}</td></tr>",
                word(finding.severity),
                title(finding.topic),
                escaped_html(&finding.subject),
                escaped_html(&finding.message)
            );
        }
        text.push_str("</tbody></table>\n");
    }
    text.push_str("</body></html>\n");
    text
}

fn escaped_html(text: &str) -> String {
    let mut escaped = String::new();
    for letter in plain(text).chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            letter => escaped.push(letter),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use skewbridge_upgrade_check::{Direction, Verdict};

    use super::*;

    fn report() -> Report {
        let finding = |topic, severity, subject: &str, commands: &[&str]| Finding {
            topic,
            severity,
            subject: subject.to_owned(),
            message: "a message".to_owned(),
            commands: commands.iter().map(|&it| it.to_owned()).collect(),
            planned: false,
        };
        Report {
            direction: Direction::Upgrade,
            target: "1.37".parse().unwrap(),
            verdict: Verdict::Findings,
            findings: vec![
                finding(
                    Topic::Apis,
                    Severity::Finding,
                    "things.v1.a",
                    &["kubectl get things", "# then more"],
                ),
                finding(Topic::Apis, Severity::Note, "<b>|_x_\u{1b}[31m", &[]),
                finding(Topic::Servers, Severity::NotKnown, "cp-1", &[]),
            ],
        }
    }

    #[test]
    fn text_begins_with_the_verdict_and_has_a_heading_for_each_topic() {
        assert_eq!(
            text(&[report()], Color::Plain, 80),
            "upgrade to 1.37: 1 finding, 1 check could not be made\n\
             \n\
             APIs\n\
             ✗ things.v1.a\n\
             \x20   a message\n\
             \x20     kubectl get things\n\
             \x20   → then more\n\
             · <b>|_x_\u{fffd}[31m\n\
             \x20   a message\n\
             \n\
             kube-apiservers\n\
             ? cp-1\n\
             \x20   a message\n"
        );
    }

    #[test]
    fn names_from_the_cluster_are_text_in_markdown_and_html() {
        let markdown = markdown(&[report()]);
        assert!(
            markdown.contains("| note | APIs | \\<b\\>\\|\\_x\\_\u{fffd}\\[31m | a message |"),
            "{markdown}"
        );
        assert!(
            markdown
                .contains("```sh\n# things.v1.a: finding\nkubectl get things\n# then more\n```")
        );
        let html = html(&[report()]);
        assert!(
            html.contains("<td>&lt;b&gt;|_x_\u{fffd}[31m</td>"),
            "{html}"
        );
        assert!(!html.contains("<b>"));
    }

    #[test]
    fn json_has_the_verdict_and_the_commands() {
        let value: serde_json::Value = serde_json::from_str(&json(&[report()])).unwrap();
        assert_eq!(value["kind"], "UpgradeCheckReport");
        let report = &value["reports"][0];
        assert_eq!(report["target"], "1.37");
        assert_eq!(report["direction"], "upgrade");
        assert_eq!(report["verdict"], "findings");
        assert_eq!(report["findings"][0]["commands"][0], "kubectl get things");
        assert_eq!(report["findings"][2]["severity"], "notKnown");
    }
}
