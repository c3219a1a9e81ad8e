//! Plans as Markdown and JSON.

use std::fmt::Write as _;

use serde::Serialize;
use skewbridge_released_apis::Minor;
use skewbridge_upgrade_check::plan::{Phase, Step};
use skewbridge_upgrade_check::{Direction, Report, Verdict};

use crate::check::upgrade::escaped_markdown;
use crate::skew::plain;

/// The indentation of what belongs to an item of a list.
const INDENT: &str = "   ";

/// The way to one target.
pub(super) struct Plan {
    pub(super) report: Report,
    pub(super) steps: Vec<Step>,
}

/// A checklist for each target.
pub(super) fn markdown(plans: &[Plan]) -> String {
    let mut text = String::new();
    for (number, plan) in plans.iter().enumerate() {
        if number > 0 {
            text.push('\n');
        }
        let title = match plan.report.direction {
            Direction::Upgrade => "Upgrade to",
            Direction::Rollback => "Return to",
        };
        // Writing to a string does not fail.
        let _ = writeln!(text, "# {title} {}\n", plan.report.target);
        let verdict = escaped_markdown(&plan.report.to_string());
        let _ = writeln!(text, "`skewbridge check upgrade`: {verdict}");
        if plan.steps.is_empty() {
            text.push_str("\nAll kube-apiservers have this version: there is nothing to do.\n");
        }
        let mut phase = None;
        for (number, step) in plan.steps.iter().enumerate() {
            if phase != Some(step.phase) {
                let _ = writeln!(text, "\n## {}\n", heading(step.phase));
                phase = Some(step.phase);
            }
            item(&mut text, number + 1, step);
        }
    }
    text
}

fn heading(phase: Phase) -> String {
    match phase {
        Phase::Before => "Before".to_owned(),
        Phase::To(minor) => format!("To {minor}"),
        Phase::After => "After".to_owned(),
    }
}

fn item(text: &mut String, number: usize, step: &Step) {
    let _ = writeln!(text, "{number}. [ ] **{}**", escaped_markdown(&step.title));
    for note in &step.notes {
        let _ = writeln!(text, "{INDENT}- {}", escaped_markdown(note));
    }
    block(text, &step.commands);
    for check in &step.checks {
        let _ = writeln!(
            text,
            "{INDENT}- [ ] {}: {}",
            code(&check.command),
            with_code(&check.expected)
        );
    }
    if let Some(rollback) = &step.rollback {
        let _ = writeln!(
            text,
            "{INDENT}- Return if {}:",
            escaped_markdown(&rollback.when)
        );
        block(text, &rollback.commands);
    }
}

fn block(text: &mut String, commands: &[String]) {
    if commands.is_empty() {
        return;
    }
    let _ = writeln!(text, "\n{INDENT}```sh");
    for command in commands {
        // A name with a line of ``` would end the block.
        for line in plain(command).replace("```", "` ` `").lines() {
            let _ = writeln!(text, "{INDENT}{line}");
        }
    }
    let _ = writeln!(text, "{INDENT}```\n");
}

/// A command of one line. A grave accent would end it.
fn code(command: &str) -> String {
    format!("`{}`", plain(command).replace(['`', '\n'], "'"))
}

/// Text of this program, in which grave accents mark what is printed.
fn with_code(text: &str) -> String {
    let parts = text.split('`').enumerate();
    let parts = parts.map(|(number, part)| match number % 2 {
        0 => escaped_markdown(part),
        _ => code(part),
    });
    parts.collect()
}

/// The document for programs.
pub(super) fn json(plans: &[Plan]) -> String {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Document<'a> {
        api_version: &'static str,
        kind: &'static str,
        plans: Vec<Entry<'a>>,
    }
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Entry<'a> {
        direction: Direction,
        target: Minor,
        verdict: Verdict,
        steps: &'a [Step],
    }
    let plans = plans.iter().map(|plan| Entry {
        direction: plan.report.direction,
        target: plan.report.target,
        verdict: plan.report.verdict,
        steps: &plan.steps,
    });
    let document = Document {
        api_version: "skewbridge.io/v1alpha1",
        kind: "UpgradePlan",
        plans: plans.collect(),
    };
    // Maps with text keys only: serialization does not fail.
    serde_json::to_string_pretty(&document).unwrap_or_default() + "\n"
}

#[cfg(test)]
mod tests {
    use skewbridge_upgrade_check::Report;
    use skewbridge_upgrade_check::plan::{Check, RollbackPoint};

    use super::*;

    fn plan() -> Plan {
        let step = |phase, title: &str| Step {
            phase,
            title: title.to_owned(),
            notes: Vec::new(),
            commands: Vec::new(),
            checks: Vec::new(),
            rollback: None,
        };
        let check = Check {
            command: "kubectl get nodes".to_owned(),
            expected: "wait for `Ready` on <all>".to_owned(),
        };
        let rollback = RollbackPoint {
            when: "it fails".to_owned(),
            commands: vec!["cp a b".to_owned()],
        };
        let minor = "1.37".parse().unwrap();
        Plan {
            report: Report {
                direction: Direction::Upgrade,
                target: minor,
                verdict: Verdict::Go,
                findings: Vec::new(),
            },
            steps: vec![
                Step {
                    notes: vec!["a <b>".to_owned()],
                    commands: vec!["# x\n```".to_owned()],
                    ..step(Phase::Before, "Resolve a_b|\u{1b}[31m")
                },
                Step {
                    checks: vec![check],
                    rollback: Some(rollback),
                    ..step(Phase::To(minor), "Upgrade")
                },
            ],
        }
    }

    #[test]
    fn a_plan_is_a_checklist_in_which_names_are_text() {
        let expected = "# Upgrade to 1.37\n\
            \n\
            `skewbridge check upgrade`: upgrade to 1.37: go\n\
            \n\
            ## Before\n\
            \n\
            1. [ ] **Resolve a\\_b\\|\u{fffd}\\[31m**\n\
            \x20  - a \\<b\\>\n\
            \n\
            \x20  ```sh\n\
            \x20  # x\n\
            \x20  ` ` `\n\
            \x20  ```\n\
            \n\
            \n\
            ## To 1.37\n\
            \n\
            2. [ ] **Upgrade**\n\
            \x20  - [ ] `kubectl get nodes`: wait for `Ready` on \\<all\\>\n\
            \x20  - Return if it fails:\n\
            \n\
            \x20  ```sh\n\
            \x20  cp a b\n\
            \x20  ```\n\
            \n";
        assert_eq!(markdown(&[plan()]), expected);
    }

    #[test]
    fn json_has_the_steps_in_their_order() {
        let value: serde_json::Value = serde_json::from_str(&json(&[plan()])).unwrap();
        assert_eq!(value["kind"], "UpgradePlan");
        let plan = &value["plans"][0];
        assert_eq!(plan["direction"], "upgrade");
        assert_eq!(plan["verdict"], "go");
        assert_eq!(plan["steps"][0]["phase"], "before");
        assert_eq!(plan["steps"][1]["phase"], "1.37");
        assert_eq!(
            plan["steps"][1]["checks"][0]["command"],
            "kubectl get nodes"
        );
        assert_eq!(plan["steps"][1]["rollback"]["commands"][0], "cp a b");
    }
}
