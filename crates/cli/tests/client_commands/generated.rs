//! Output that is generated from the definitions of the commands.

use std::os::unix::fs::symlink;

use tokio::process::Command;

use super::Cluster;

#[tokio::test]
async fn shells_can_complete_every_command() {
    let cluster = Cluster::start().await;
    for (shell, call) in [
        ("bash", "__complete_bash"),
        ("zsh", "__complete"),
        ("fish", "__complete"),
        ("powershell", "__complete_line"),
    ] {
        let output = cluster.run(&["completion", shell]).await;
        assert_eq!(output.code, Some(0));
        assert!(output.stdout.contains(&format!(" {call} ")), "{shell}");
    }
    // The scripts have no list of their own: these are the answers to their calls.
    let calls: [&[&str]; 6] = [
        &["__complete", ""],
        &["__complete_line", "skewbridge "],
        &["__complete_bash", " =:", "skewbridge "],
        &["__complete", "attach", "--"],
        &["__complete_line", "skewbridge attach --"],
        &["__complete_bash", " =:", "skewbridge attach --"],
    ];
    for (index, call) in calls.into_iter().enumerate() {
        let output = cluster.run(call).await;
        let words: &[&str] = match index {
            0..3 => &["port-forward", "attach", "skew"],
            _ => &["--pod-running-timeout"],
        };
        for word in words {
            assert!(output.stdout.contains(word), "{call:?}: {word}");
        }
    }
    let output = cluster.run(&["completion", "tcsh"]).await;
    assert_eq!(output.code, Some(64));
}

#[tokio::test]
async fn there_is_a_page_for_every_command() {
    let cluster = Cluster::start().await;
    let output = cluster.run(&["man"]).await;
    assert!(
        output.stdout.contains(".TH skewbridge 1"),
        "{}",
        output.stdout
    );
    let directory = cluster.dir.path().join("man1");
    let output = cluster
        .run(&["man", "--directory", directory.to_str().unwrap()])
        .await;
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    let page = std::fs::read_to_string(directory.join("skewbridge-exec.1")).unwrap();
    assert!(page.contains("Run a command in a container"), "{page}");
    for name in [
        "skewbridge",
        "skewbridge-serve",
        "skewbridge-port-forward",
        "skewbridge-attach",
    ] {
        assert!(directory.join(format!("{name}.1")).exists(), "{name}");
    }
}

#[tokio::test]
async fn the_program_name_kubectl_skewbridge_makes_it_a_kubectl_plugin() {
    let cluster = Cluster::start().await;
    let plugin = cluster.dir.path().join("kubectl-skewbridge");
    symlink(env!("CARGO_BIN_EXE_skewbridge"), &plugin).unwrap();
    let output = Command::new(&plugin)
        .args(["exec", "web", "--", "echo", "hello"])
        .env("KUBECONFIG", cluster.dir.path().join("config"))
        .output()
        .await
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "hello\n");
    let output = Command::new(&plugin)
        .args(["exec", "--help"])
        .output()
        .await
        .unwrap();
    let help = String::from_utf8_lossy(&output.stdout);
    assert!(help.contains("Usage: kubectl skewbridge exec"), "{help}");
}

#[tokio::test]
async fn kubectl_gets_completions_of_a_word() {
    let cluster = Cluster::start().await;
    let program = cluster.dir.path().join("kubectl_complete-skewbridge");
    symlink(env!("CARGO_BIN_EXE_skewbridge"), &program).unwrap();
    let rows: [(&[&str], &str); 5] = [
        (&["ex"], "exec\tRun a command in a container\n:4\n"),
        (&["zz"], ":4\n"),
        (&["exec", "--kubeconfig", ""], ":0\n"),
        // kubectl's scripts put the flag before its values.
        (&["exec", "--tty=t"], "true\n:4\n"),
        (&["completion", "po"], "powershell\n:4\n"),
    ];
    for (words, expected) in rows {
        let output = Command::new(&program).args(words).output().await.unwrap();
        assert!(output.status.success());
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            expected,
            "{words:?}"
        );
    }
}
