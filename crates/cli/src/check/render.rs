//! Reports as text and as JSON.

use std::fmt::Write as _;

use serde::Serialize;

use super::finding::{Finding, Outcome, Report, Section, Summary};
use crate::console::Color;
use crate::skew::plain;

/// The width of lines where there is no terminal, and the most on a terminal.
pub(crate) const DEFAULT_WIDTH: usize = 100;

/// Narrower terminals break lines themselves.
pub(super) const MIN_WIDTH: usize = 40;

const INDENT: &str = "    ";

/// The text for people.
pub(crate) fn text(report: &Report, color: Color, width: usize) -> String {
    let width = width.clamp(MIN_WIDTH, DEFAULT_WIDTH);
    let mut text = String::new();
    let mut section: Option<Section> = None;
    for finding in report.findings() {
        if section != Some(finding.section) {
            let title = finding.section.title();
            let gap = if section.is_some() { "\n" } else { "" };
            // Writing to a string does not fail.
            let _ = writeln!(
                text,
                "{gap}{}\n{}",
                color.bold(title),
                "-".repeat(title.len())
            );
            section = Some(finding.section);
        }
        line(&mut text, finding, color, width);
    }
    let Summary {
        ok,
        warnings,
        failures,
        not_known,
    } = report.summary();
    let counts = [
        (ok, "✓"),
        (warnings, "!"),
        (failures, "✗"),
        (not_known, "?"),
    ];
    let counts: Vec<_> = (counts.iter().filter(|(count, _)| *count > 0))
        .map(|(count, sign)| format!("{count} {sign}"))
        .collect();
    let _ = writeln!(text, "\nResult: {}", counts.join(", "));
    text
}

fn line(text: &mut String, finding: &Finding, color: Color, width: usize) {
    let sign = match finding.outcome {
        Outcome::Ok => color.success("✓"),
        Outcome::Warning => color.warning("!"),
        Outcome::Failure => color.failure("✗"),
        Outcome::NotKnown => color.dim("?"),
    };
    let name = plain(&finding.name);
    let message = plain(&finding.message).replace('\n', " ");
    let one_line = finding.outcome == Outcome::Ok && !message.is_empty();
    let length = name.chars().count() + message.chars().count() + 5;
    if one_line && length <= width {
        let _ = writeln!(text, "{sign} {name} {}", color.dim(format!("({message})")));
    } else {
        let mut lines = wrapped(&name, width - 2).into_iter();
        let _ = writeln!(text, "{sign} {}", lines.next().unwrap_or_default());
        for rest in lines {
            let _ = writeln!(text, "  {rest}");
        }
        indented(text, "", &message, width);
    }
    if let Some(remedy) = &finding.remedy {
        indented(text, "→ ", &plain(&remedy.text), width);
        if let Some(command) = &remedy.command {
            // Not wrapped: it can be copied.
            let _ = writeln!(text, "{INDENT}    {}", color.name(plain(command)));
        }
    }
}

pub(super) fn indented(text: &mut String, mark: &str, words: &str, width: usize) {
    let hanging = " ".repeat(mark.chars().count());
    let width = width - INDENT.len() - hanging.len();
    for (index, line) in wrapped(words, width).into_iter().enumerate() {
        let mark = if index == 0 { mark } else { &hanging };
        let _ = writeln!(text, "{INDENT}{mark}{line}");
    }
}

/// Lines of at most this many characters, if no word is longer.
pub(super) fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// The document for programs.
pub(crate) fn json(report: &Report) -> String {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Document<'a> {
        api_version: &'static str,
        kind: &'static str,
        success: bool,
        summary: Summary,
        findings: &'a [Finding],
    }
    let document = Document {
        api_version: "skewbridge.io/v1alpha1",
        kind: "CheckReport",
        success: report.exit_code() == 0,
        summary: report.summary(),
        findings: report.findings(),
    };
    // Maps with text keys only: serialization does not fail.
    serde_json::to_string_pretty(&document).unwrap_or_default() + "\n"
}

#[cfg(test)]
mod tests {
    use super::super::finding::Remedy;
    use super::*;

    fn report() -> Report {
        Report::new(vec![
            Finding::ok(Section::Ports, "10.0.0.11:6443 is free"),
            Finding::ok(Section::Certificates, "--tls-cert-file is valid").message("364 days left"),
            Finding::failure(
                Section::Upstream,
                "https://127.0.0.1:6443 is reached",
                "Connection refused, which is a message that needs more than one line of a terminal",
                Remedy::command("systemctl start kubelet", "start kube-apiserver"),
            ),
            Finding::warning(
                Section::Kernel,
                "a",
                "b",
                Remedy::set("--max-connections", 9),
            ),
            Finding::not_known(Section::Peers, "c\u{1b}[31m", "no address"),
        ])
    }

    #[test]
    fn text_has_sections_signs_and_remedies_and_fits_the_terminal() {
        let text = text(&report(), Color::Plain, 60);
        assert_eq!(
            text,
            "certificates and CAs\n\
             --------------------\n\
             ✓ --tls-cert-file is valid (364 days left)\n\
             \n\
             ports\n\
             -----\n\
             ✓ 10.0.0.11:6443 is free\n\
             \n\
             kube-apiserver\n\
             --------------\n\
             ✗ https://127.0.0.1:6443 is reached\n\
             \x20   Connection refused, which is a message that needs more\n\
             \x20   than one line of a terminal\n\
             \x20   → start kube-apiserver\n\
             \x20       systemctl start kubelet\n\
             \n\
             peers\n\
             -----\n\
             ? c\u{fffd}[31m\n\
             \x20   no address\n\
             \n\
             kernel limits\n\
             -------------\n\
             ! a\n\
             \x20   b\n\
             \x20   → set --max-connections=9\n\
             \n\
             Result: 2 ✓, 1 !, 1 ✗, 1 ?\n"
        );
    }

    #[test]
    fn json_has_the_parts_of_a_remedy() {
        let value: serde_json::Value = serde_json::from_str(&json(&report())).unwrap();
        assert_eq!(value["kind"], "CheckReport");
        assert_eq!(value["success"], false);
        assert_eq!(value["summary"]["failures"], 1);
        let findings = value["findings"].as_array().unwrap();
        assert_eq!(findings[2]["outcome"], "failure");
        assert_eq!(findings[2]["remedy"]["command"], "systemctl start kubelet");
        assert_eq!(findings[4]["remedy"]["flag"], "--max-connections");
        assert_eq!(findings[4]["remedy"]["value"], "9");
        assert_eq!(findings[0].get("remedy"), None);
    }

    #[test]
    fn colours_are_only_for_terminals() {
        assert!(!text(&report(), Color::Plain, 80).contains('\u{1b}'));
        assert!(text(&report(), Color::Colour, 80).contains("\u{1b}[31m✗"));
    }
}
