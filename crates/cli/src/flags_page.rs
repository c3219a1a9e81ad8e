//! `docs/flags.md`, made from the definitions of all commands. A test compares; with
//! `SKEWBRIDGE_WRITE_DOCS=1` it writes the page.

use std::fmt::Write as _;

use clap::{Arg, ArgAction, Command};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/flags.md");

const HEAD: &str = "\
# Flags

All flags of all commands, as `--help` of each command prints them.
[serve.md](serve.md) describes the flags of `serve` by task.

This page is made from the code: `SKEWBRIDGE_WRITE_DOCS=1 cargo test -p skewbridge flags_page` writes
it, and the test command compares it.

A file for `serve --config` has the same names in camel case: `--tls-cert-file` is `tlsCertFile`.
LIST is comma-separated. DURATION is written like `30s`, `1m30s` or `100ms`.
";

fn page() -> String {
    let mut command = crate::definition();
    command.build();
    let mut page = HEAD.to_owned();
    for command in command.get_subcommands() {
        section(&mut page, command, "skewbridge");
    }
    page
}

fn section(page: &mut String, command: &Command, parent: &str) {
    if command.is_hide_set() || command.get_name() == "help" {
        return;
    }
    let name = format!("{parent} {}", command.get_name());
    let about = command.get_about().map(ToString::to_string);
    let _ = write!(page, "\n## {name}\n\n{}\n", about.unwrap_or_default());
    let arguments: Vec<_> = command.get_arguments().filter(|it| is_shown(it)).collect();
    let mut group = None;
    for argument in &arguments {
        let heading = argument.get_help_heading();
        if group != Some(heading) {
            group = Some(heading);
            if let Some(heading) = heading {
                let _ = write!(page, "\n### {heading}\n");
            }
            page.push_str("\n| flag | value | default | meaning |\n|---|---|---|---|\n");
        }
        row(page, argument);
    }
    for command in command.get_subcommands() {
        section(page, command, &name);
    }
}

fn is_shown(argument: &Arg) -> bool {
    let is_help = matches!(argument.get_action(), ArgAction::Help | ArgAction::Version);
    !argument.is_hide_set() && !is_help
}

fn row(page: &mut String, argument: &Arg) {
    let names = argument.get_value_names().unwrap_or_default();
    let names: Vec<_> = names.iter().map(ToString::to_string).collect();
    let value = if argument.get_action().takes_values() {
        names.join(" ")
    } else {
        String::new()
    };
    let flag = match (argument.get_short(), argument.get_long()) {
        (Some(short), Some(long)) if long.len() == 1 => format!("`-{short}`, `--{long}`"),
        (Some(short), Some(long)) => format!("`--{long}`, `-{short}`"),
        (None, Some(long)) => format!("`--{long}`"),
        (Some(short), None) => format!("`-{short}`"),
        (None, None) => format!("`{value}`"),
    };
    let defaults = argument.get_default_values().iter();
    let defaults: Vec<_> = defaults
        .filter(|_| argument.get_action().takes_values())
        .map(|it| format!("`{}`", it.to_string_lossy()))
        .collect();
    let help = argument.get_help().map(ToString::to_string);
    let help = help.unwrap_or_default();
    let help: Vec<_> = help.split_whitespace().collect();
    let columns = [
        flag,
        if argument.is_positional() {
            String::new()
        } else {
            value
        },
        defaults.join(" "),
        help.join(" "),
    ];
    let columns = columns.map(|it| it.replace('|', "\\|"));
    let _ = writeln!(page, "| {} |", columns.join(" | "));
}

#[test]
fn the_page_of_flags_is_that_of_the_code() {
    let expected = page();
    if std::env::var_os("SKEWBRIDGE_WRITE_DOCS").is_some() {
        std::fs::write(PAGE, &expected).unwrap();
    }
    let found = std::fs::read_to_string(PAGE).unwrap_or_default();
    assert_eq!(
        found, expected,
        "docs/flags.md is not that of the code; see CONTRIBUTING.md"
    );
}

#[test]
fn the_page_has_every_flag_of_serve() {
    let page = page();
    let (_, serve) = page.split_once("\n## skewbridge serve\n").unwrap();
    let (serve, _) = serve.split_once("\n## ").unwrap();
    for flag in [
        "`--upstream`",
        "`--config`",
        "`--admin-secure-address`",
        "`-v`, `--v`",
    ] {
        assert!(serve.contains(flag), "{flag}");
    }
}
