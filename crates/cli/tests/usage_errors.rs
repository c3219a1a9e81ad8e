//! Wrong command lines: exit code 64, and what to write instead.
#![allow(clippy::unwrap_used, clippy::expect_used)] // test helpers panic on failure

use std::process::Command;

fn stderr(words: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_skewbridge"))
        .args(words)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(64), "{words:?}");
    assert!(output.stdout.is_empty(), "{words:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn a_command_of_run_without_dashes_gets_the_line_to_write() {
    let shown = stderr(&[
        "run",
        "--context",
        "a b",
        "kubectl",
        "get",
        "pods",
        "-o",
        "wide",
    ]);
    let expected = "error: two dashes must precede the command of `skewbridge run`\n\n  \
                    tip: write\n    skewbridge run --context 'a b' -- kubectl get pods -o wide\n";
    assert_eq!(shown, expected);
}

#[test]
fn unknown_flags_and_commands_get_advice() {
    let rows: [(&[&str], &str); 6] = [
        (
            &["serve", "--tls-cert=x"],
            "tip: a similar argument exists: '--tls-cert-file'",
        ),
        (
            &["serve", "--etcd-server", "x"],
            "tip: a similar argument exists: '--etcd-servers'",
        ),
        (
            &["serve", "--authorization-mode=RBAC"],
            "tip: this flag of kube-apiserver stays there",
        ),
        (
            &["exec", "--secure-port=1"],
            "is a flag of 'check', 'serve'",
        ),
        (&["get", "pods"], "skewbridge run -- kubectl get"),
        (&["exce"], "tip: a similar subcommand exists: 'exec'"),
    ];
    for (words, expected) in rows {
        let shown = stderr(words);
        assert!(shown.contains(expected), "{words:?}: {shown}");
    }
}

#[test]
fn a_pin_is_never_repeated() {
    let uri = "pkcs11:token=t?pin-value=secret-pin";
    for words in [
        &["run", "sh", uri][..],
        &["serve", uri],
        &["agent", "--sgner", uri],
    ] {
        let shown = stderr(words);
        assert!(!shown.contains("secret-pin"), "{words:?}: {shown}");
    }
}
