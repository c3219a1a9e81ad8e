//! `skewbridge upgrade`: what to do on the day of an upgrade. Nothing is changed.

mod plan;
mod render;

use std::process::ExitCode;

use clap::{Args, Subcommand};

// The flags of `upgrade`. The description of the command is in `main.rs`.
#[derive(Debug, Clone, Args)]
#[command(disable_help_subcommand = true)]
pub(crate) struct Flags {
    #[command(subcommand)]
    subject: Subject,
}

// What to print. The comments are the help text.
#[derive(Debug, Clone, Subcommand)]
enum Subject {
    /// Print the steps of an upgrade or a rollback of this cluster
    Plan(plan::Flags),
}

/// From flags to text and exit code.
pub(crate) fn run(flags: &Flags) -> ExitCode {
    crate::private_memory::deny_dumps_and_core_files();
    match &flags.subject {
        Subject::Plan(flags) => plan::run(flags),
    }
}

#[cfg(test)]
mod tests {
    /// The commands of skewbridge on a page: the lines of blocks, and code within a line.
    fn commands(page: &str) -> Vec<Vec<String>> {
        let page = page.replace("\\\n", " ");
        let lines = page.lines().filter(|it| it.starts_with("skewbridge "));
        let spans = page.split('`').filter(|it| it.starts_with("skewbridge "));
        let commands = lines.chain(spans);
        commands
            .map(|command| {
                let command = command.split(" > ").next().unwrap_or_default();
                command.split_whitespace().map(str::to_owned).collect()
            })
            .collect()
    }

    #[test]
    fn every_command_of_the_pages_about_upgrades_exists() {
        let mut count = 0;
        for page in [
            include_str!("../../../../docs/upgrade-day.md"),
            include_str!("../../../../docs/upgrade-check.md"),
        ] {
            for command in commands(page) {
                let parsed = crate::definition().try_get_matches_from(&command);
                assert!(parsed.is_ok(), "{command:?}: {}", parsed.unwrap_err());
                count += 1;
            }
        }
        assert!(count > 20, "{count}");
    }
}
