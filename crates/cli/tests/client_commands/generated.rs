//! Output that is generated from the definitions of the commands.

use std::os::unix::fs::symlink;

use tokio::process::Command;

use super::Cluster;

#[tokio::test]
async fn shells_can_complete_every_command() {
    let cluster = Cluster::start().await;
    for shell in ["bash", "zsh", "fish", "powershell"] {
        let output = cluster.run(&["completion", shell]).await;
        assert_eq!(output.code, Some(0));
        for word in ["port-forward", "attach", "pod-running-timeout", "skew"] {
            assert!(output.stdout.contains(word), "{shell}: {word}");
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
async fn the_name_makes_it_a_kubectl_plugin() {
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
    let rows: [(&[&str], &str); 3] = [
        (&["ex"], "exec\tRun a command in a container\n:4\n"),
        (&["zz"], ":4\n"),
        (&["exec", "--kubeconfig", ""], ":0\n"),
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
