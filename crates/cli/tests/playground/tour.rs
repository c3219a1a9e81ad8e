//! The tour.

use std::fs;
use std::io::Read as _;
use std::process::Stdio;

use rustix::process::{Signal, kill_process};
use serde_json::Value;

use crate::doc_examples;
use crate::playground_fixture::{Playground, run, wait};

/// Attempts at a change that may come too late.
const ATTEMPTS: u32 = 10;

#[test]
fn every_step_of_the_tour_passes() {
    let plain = run(&["--tour"]);
    let text = String::from_utf8(plain.stdout).unwrap();
    assert!(plain.status.success(), "{text}");
    assert!(text.contains("5 of 5 steps passed."), "{text}");
    assert!(!text.contains('\x1b') && !text.contains('✗'), "{text}");
    let tour_lines = doc_examples::tour_lines(&text);
    assert_eq!(tour_lines, doc_examples::guide_example());
    let begun = doc_examples::readme_tour();
    assert_eq!(tour_lines[..begun.len()], begun[..]);
}

#[test]
fn the_tour_has_json_output() {
    let tour_lines = run(&["--tour", "-o", "json"]);
    let report: Value = serde_json::from_slice(&tour_lines.stdout).unwrap();
    assert!(tour_lines.status.success(), "{report:#}");
    assert_eq!(report["passed"], true);
    let steps = report["steps"].as_array().unwrap();
    assert_eq!(steps.len(), 5);
    assert!(steps.iter().all(|step| step["passed"] == true));
    assert_eq!(steps[0]["sights"][0]["context"], "server-1.28");
}

/// Replaces the old server by a new one during the tour, which finds servers only by the
/// kubeconfig: then some expectations fail. `None` if the change came too late.
fn tour_without_an_old_server(words: &[&str]) -> Option<(Option<i32>, String)> {
    let mut tour = Playground::tour(words, Stdio::piped());
    // While it gets ready.
    let config = tour.file("kubeconfig", "    user: visitor\n    namespace: default\n");
    let context = |cluster| format!("- name: server-1.28\n  context:\n    cluster: {cluster}\n");
    let other = config.replace(&context("server-1.28"), &context("server-1.36"));
    assert_ne!(config, other);
    let beside = tour.directory.join("other");
    fs::write(&beside, other).unwrap();
    fs::rename(&beside, tour.directory.join("kubeconfig")).unwrap();
    let mut printed = String::new();
    let mut stdout = tour.child.stdout.take().unwrap();
    stdout.read_to_string(&mut printed).unwrap();
    let code = wait(&mut tour.child).code();
    assert!(!tour.directory.exists(), "its directory is left");
    (code != Some(0)).then_some((code, printed))
}

#[test]
fn a_tour_with_unexpected_observations_fails() {
    let tour_lines = (0..ATTEMPTS).find_map(|_| tour_without_an_old_server(&["-o", "json"]));
    let (code, printed) = tour_lines.unwrap();
    assert_eq!(code, Some(1), "{printed}");
    let report: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(report["passed"], false, "{report:#}");
    let steps = report["steps"].as_array().unwrap();
    let passed: Vec<_> = steps.iter().map(|it| it["passed"] == true).collect();
    assert_eq!(passed, [false, true, false, false, true], "{report:#}");
    // The unexpected observation is printed, and why a step could not continue.
    let [first, second] = [0, 1].map(|it| &steps[0]["sights"][it]);
    assert_eq!(first["saw"], "200: MutatingAdmissionPolicy hello");
    assert_eq!(first["as_promised"], false);
    assert_eq!(second["as_promised"], true);
    assert!(steps[3]["error"].is_string(), "{report:#}");
}

#[test]
fn a_failed_tour_has_exit_code_1() {
    let tour_lines = (0..ATTEMPTS).find_map(|_| tour_without_an_old_server(&[]));
    let (code, printed) = tour_lines.unwrap();
    assert_eq!(code, Some(1), "{printed}");
    assert!(
        printed.contains("✗ 200: MutatingAdmissionPolicy hello"),
        "{printed}"
    );
    assert!(printed.ends_with("2 of 5 steps passed.\n"), "{printed}");
}

#[test]
fn an_interrupted_tour_has_not_succeeded() {
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let mut tour = Playground::tour(&[], Stdio::null());
        // Everything runs, and the tour is not near its end.
        tour.file("kubeconfig", "");
        kill_process(tour.id(), signal).unwrap();
        assert_eq!(wait(&mut tour.child).code(), Some(code));
        assert!(!tour.directory.exists(), "its directory is left");
    }
}
