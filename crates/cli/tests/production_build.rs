//! The production build has no playground in it; the build of `cargo run` has one.
//!
//! `cargo test` shows the latter, which proves that these tests can fail. `cargo xtask test` also
//! runs them with `--no-default-features`, which is the production build.

#![expect(clippy::unwrap_used, reason = "a test ends where it cannot go on")]

use std::process::{Command, Output};

/// Whether the binary under test is built with the playground.
const HAS_PLAYGROUND: bool = cfg!(feature = "playground");

/// `EX_USAGE` of sysexits: the command line is not valid.
const EXIT_USAGE: i32 = 64;

fn skewbridge(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_skewbridge"))
        .args(arguments)
        .output()
        .unwrap()
}

fn stdout(arguments: &[&str]) -> String {
    let output = skewbridge(arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_playground_is_a_subcommand_only_if_it_is_built_in() {
    let output = skewbridge(&["playground", "--help"]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    if HAS_PLAYGROUND {
        assert!(output.status.success(), "{stderr}");
    } else {
        assert_eq!(output.status.code(), Some(EXIT_USAGE), "{stderr}");
        assert!(
            stderr.contains("unrecognized subcommand 'playground'"),
            "{stderr}"
        );
    }
}

#[test]
fn processes_of_pods_are_run_only_if_the_playground_is_built_in() {
    let output = skewbridge(&["playground-process"]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success(), "{stderr}");
    assert_eq!(
        stderr.contains("unrecognized subcommand 'playground-process'"),
        !HAS_PLAYGROUND,
        "{stderr}"
    );
}

#[test]
fn help_manual_pages_and_completions_list_the_playground_only_if_it_is_built_in() {
    let commands = [
        &["--help"][..],
        &["man"],
        // What the completion scripts ask.
        &["__complete", ""],
        &["__complete_bash", " =:", "skewbridge "],
        &["__complete_line", "skewbridge "],
    ];
    for arguments in commands {
        let text = stdout(arguments);
        assert_eq!(text.contains("playground"), HAS_PLAYGROUND, "{arguments:?}");
        assert!(text.contains("forward"), "{arguments:?}");
    }
}

#[test]
fn the_binary_contains_code_of_the_playground_only_if_it_is_built_in() {
    let binary = std::fs::read(env!("CARGO_BIN_EXE_skewbridge")).unwrap();
    let text = String::from_utf8_lossy(&binary);
    for needle in ["skewbridge_fake_cluster", "playground-process"] {
        assert_eq!(text.contains(needle), HAS_PLAYGROUND, "{needle}");
    }
    assert!(text.contains("skewbridge_gateway"));
}

#[test]
fn the_production_build_does_not_depend_on_the_playground() {
    for (flags, expected) in [(&[][..], true), (&["--no-default-features"], false)] {
        let output = Command::new(env!("CARGO"))
            .args(["tree", "--locked", "--offline", "--package=skewbridge"])
            .args(["--edges=normal", "--prefix=none"])
            .args(flags)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let packages = String::from_utf8(output.stdout).unwrap();
        let depends_on = |name: &str| {
            let mut names = packages.lines().filter_map(|line| line.split(' ').next());
            names.any(|it| it == name)
        };
        assert_eq!(depends_on("skewbridge-fake-cluster"), expected, "{flags:?}");
        assert!(depends_on("skewbridge-gateway"), "{flags:?}");
    }
}
