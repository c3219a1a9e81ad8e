//! `exec` and `attach` with pipes.

use skewbridge_testkit::{TEST_TIMEOUT, UpgradeResponse};
use tokio::time::timeout;

use super::Cluster;

#[tokio::test]
async fn the_exit_code_of_the_remote_command_is_returned() {
    let cluster = Cluster::start().await;
    let output = cluster
        .run(&[
            "exec",
            "web",
            "--",
            "sh",
            "-c",
            "echo out; echo err >&2; exit 7",
        ])
        .await;
    assert_eq!(output.code, Some(7), "{output:?}");
    assert_eq!(output.stdout, "out\n");
    assert_eq!(output.stderr, "err\ncommand terminated with exit code 7\n");
    let output = cluster.run(&["exec", "pod/web", "--", "true"]).await;
    assert_eq!(
        (output.code, &*output.stdout, &*output.stderr),
        (Some(0), "", "")
    );
}

#[tokio::test]
async fn input_is_echoed_completely() {
    let cluster = Cluster::start().await;
    let input = "0123456789\n".repeat(100_000);
    let output = cluster
        .run_with(&["exec", "-i", "web", "--", "cat"], input.as_bytes())
        .await;
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    assert!(
        output.stdout == input,
        "{} of {} bytes",
        output.stdout.len(),
        input.len()
    );
}

#[tokio::test]
async fn files_can_be_standard_streams() {
    let cluster = Cluster::start().await;
    let input = cluster.dir.write("input", "from a file\n");
    let output = cluster.dir.path().join("output");
    let status = cluster
        .command(&["exec", "-i", "web", "--", "cat"])
        .stdin(std::fs::File::open(input).unwrap())
        .stdout(std::fs::File::create(&output).unwrap())
        .status()
        .await
        .unwrap();
    assert!(status.success());
    assert_eq!(std::fs::read_to_string(output).unwrap(), "from a file\n");
}

#[tokio::test]
async fn a_read_error_is_not_the_end_of_input() {
    let cluster = Cluster::start().await;
    let mut command = cluster.command(&["exec", "-i", "web", "--", "cat"]);
    // A directory can be opened, but not read.
    command.stdin(std::fs::File::open(cluster.dir.path()).unwrap());
    let ended = timeout(TEST_TIMEOUT, command.output())
        .await
        .unwrap()
        .unwrap();
    let output = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{output}");
    assert!(output.contains("standard input cannot be read"), "{output}");
}

#[tokio::test]
async fn the_container_is_chosen_as_kubectl_chooses_it() {
    let cluster = Cluster::start().await;
    cluster.pods.pod("default", "two", &["app", "side"]);
    let notice = "Defaulted container \"app\" out of: app, side\n";
    let output = cluster.run(&["exec", "two", "--", "true"]).await;
    assert_eq!((output.code, &*output.stderr), (Some(0), notice));
    let output = cluster.run(&["exec", "-q", "two", "--", "true"]).await;
    assert_eq!((output.code, &*output.stderr), (Some(0), ""));
    let output = cluster
        .run(&["exec", "two", "-c", "side", "--", "true"])
        .await;
    assert_eq!((output.code, &*output.stderr), (Some(0), ""));
    let last = cluster.pods.requests().pop().unwrap();
    assert!(last.contains("&container=side&"), "{last}");
    let output = cluster.run(&["exec", "two", "-c", "x", "--", "true"]).await;
    assert_eq!(output.code, Some(1));
    assert_eq!(
        output.stderr,
        "error: container x is not valid for pod two out of: app, side\n"
    );
    let output = cluster.run(&["attach", "two", "-c", "x"]).await;
    assert_eq!(
        (output.code, &*output.stderr),
        (
            Some(1),
            "error: cannot attach to the container: container x is not valid for pod two out of: app, side\n"
        )
    );
    cluster.pods.object(
        "/api/v1/namespaces/default/pods/stale",
        r#"{"metadata":{"name":"stale","annotations":{"kubectl.kubernetes.io/default-container":"gone"}},
        "spec":{"containers":[{"name":"app"}]},"status":{"phase":"Running"}}"#,
    );
    // No command is run in another container.
    let output = cluster.run(&["exec", "stale", "--", "true"]).await;
    assert_eq!(
        (output.code, &*output.stderr),
        (
            Some(1),
            "error: container gone is not valid for pod stale out of: app\n"
        )
    );
    let output = cluster
        .run(&["exec", "stale", "-c", "app", "--", "true"])
        .await;
    assert_eq!((output.code, &*output.stderr), (Some(0), ""));
}

#[tokio::test]
async fn a_missing_pod_is_reported_with_similar_names() {
    let cluster = Cluster::start().await;
    let list = r#"{"items":[{"metadata":{"name":"web"}},{"metadata":{"name":"db-0"}}]}"#;
    cluster.pods.object("/api/v1/namespaces/default/pods", list);
    let output = cluster.run(&["exec", "wb", "--", "true"]).await;
    assert_eq!(output.code, Some(1));
    assert_eq!(
        output.stderr,
        "Error from server (NotFound): pods \"wb\" not found\n\
         did you mean web? (namespace \"default\")\n"
    );
}

#[tokio::test]
async fn a_deployment_is_resolved_to_its_best_pod() {
    let cluster = Cluster::start().await;
    cluster.pods.object(
        "/apis/apps/v1/namespaces/default/deployments/shop",
        r#"{"spec":{"selector":{"matchLabels":{"app":"shop"}}}}"#,
    );
    cluster.pods.object(
        "/api/v1/namespaces/default/pods?labelSelector=app%3Dshop&limit=500",
        r#"{"items":[
            {"metadata":{"name":"shop-1"},"spec":{"nodeName":"n","containers":[{"name":"a"}]},"status":{"phase":"Pending"}},
            {"metadata":{"name":"shop-2"},"spec":{"nodeName":"n","containers":[{"name":"a"}]},"status":{"phase":"Running"}}]}"#,
    );
    let output = cluster
        .run(&["exec", "deploy/shop", "--", "echo", "hello"])
        .await;
    assert_eq!(
        (output.code, &*output.stdout),
        (Some(0), "hello\n"),
        "{}",
        output.stderr
    );
    let last = cluster.pods.requests().pop().unwrap();
    assert!(last.contains("/pods/shop-2/exec?"), "{last}");
}

#[tokio::test]
async fn a_container_that_does_not_run_is_reported_with_its_state() {
    let cluster = Cluster::start().await;
    cluster.pods.object(
        "/api/v1/namespaces/default/pods/sick",
        r#"{"metadata":{"name":"sick"},"spec":{"containers":[{"name":"app"}]},
        "status":{"phase":"Running","containerStatuses":[{"name":"app","restartCount":1,"state":{"waiting":{"reason":"CrashLoopBackOff"}}}]}}"#,
    );
    let words = [
        "exec",
        "sick",
        "--",
        "@fail",
        "unable to upgrade connection: container not found (\"app\")",
    ];
    let output = cluster.run(&words).await;
    assert_eq!(output.code, Some(1));
    assert_eq!(
        output.stderr,
        "error: Internal error occurred: unable to upgrade connection: container not found (\"app\")\n\
         container \"app\" of pod \"sick\" is waiting (CrashLoopBackOff); it was restarted once\n"
    );
}

#[tokio::test]
async fn a_forbidden_request_names_the_missing_permission() {
    let cluster = Cluster::start().await;
    let forbidden = r#"{"kind":"Status","reason":"Forbidden","message":"pods \"web\" is forbidden: User \"bob\" cannot create resource \"pods/exec\"","code":403}"#;
    cluster
        .pods
        .websocket(UpgradeResponse::Reject(403, forbidden.to_owned()));
    cluster
        .pods
        .spdy(UpgradeResponse::Reject(403, forbidden.to_owned()));
    let output = cluster.run(&["exec", "web", "--", "true"]).await;
    assert_eq!(output.code, Some(1));
    assert_eq!(
        output.stderr,
        "Error from server (Forbidden): pods \"web\" is forbidden: User \"bob\" cannot create resource \"pods/exec\"\n\
         the request needs the verb create on pods/exec in namespace \"default\"; see kubectl auth can-i create pods/exec -n default\n"
    );
    // The pods of a deployment are listed.
    cluster.pods.object(
        "/apis/apps/v1/namespaces/default/deployments/shop",
        r#"{"spec":{"selector":{"matchLabels":{"app":"shop"}}}}"#,
    );
    let forbidden =
        r#"{"kind":"Status","reason":"Forbidden","message":"pods is forbidden","code":403}"#;
    let pods = "/api/v1/namespaces/default/pods";
    cluster.pods.respond(pods, 403, forbidden);
    let output = cluster.run(&["exec", "deploy/shop", "--", "true"]).await;
    assert_eq!(
        output.stderr,
        "Error from server (Forbidden): pods is forbidden\n\
         the request needs the verb list on pods in namespace \"default\"; see kubectl auth can-i list pods -n default\n"
    );
}

#[tokio::test]
async fn server_messages_have_no_control_characters() {
    let cluster = Cluster::start().await;
    let evil = "\u{1b}[2J\u{9b}2J\u{7}";
    cluster
        .pods
        .websocket(UpgradeResponse::Reject(400, evil.to_owned()));
    cluster.pods.object(
        "/api/v1/namespaces/default/pods/odd",
        r#"{"metadata":{"name":"odd"},"spec":{"containers":[{"name":"a\u001b[2J"},{"name":"b"}]},
        "status":{"phase":"Running"}}"#,
    );
    let output = cluster.run(&["exec", "-v=1", "odd", "--", "true"]).await;
    assert!(output.stderr.contains("[2J"), "{output:?}");
    let shown = |it: &str| !it.chars().any(|it| it.is_control() && it != '\n');
    assert!(shown(&output.stderr), "{output:?}");
    cluster
        .pods
        .spdy(UpgradeResponse::Reject(500, evil.to_owned()));
    let output = cluster.run(&["exec", "web", "--", "true"]).await;
    assert!(output.stderr.contains("[2J"), "{output:?}");
    assert!(shown(&output.stderr), "{output:?}");
}

#[tokio::test]
async fn the_reason_for_spdy_is_printed_if_requested() {
    let cluster = Cluster::start().await;
    cluster.pods.websocket(UpgradeResponse::Reject(
        400,
        "no WebSockets here".to_owned(),
    ));
    let output = cluster.run(&["exec", "web", "--", "true"]).await;
    assert_eq!((output.code, &*output.stderr), (Some(0), ""));
    let output = cluster.run(&["exec", "-v=1", "web", "--", "true"]).await;
    let expected =
        "skewbridge: using SPDY, because WebSocket was refused: no WebSockets here (400)\n";
    assert_eq!((output.code, &*output.stderr), (Some(0), expected));
    // WebSocket can be disabled.
    let mut command = cluster.command(&["exec", "-v=1", "web", "--", "true"]);
    command.env("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", "false");
    let output = timeout(TEST_TIMEOUT, command.output())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(output.stderr, b"skewbridge: using SPDY\n");
    // If the fallback is refused too, both reasons are printed.
    cluster
        .pods
        .spdy(UpgradeResponse::Reject(502, "nor SPDY".to_owned()));
    let output = cluster.run(&["exec", "web", "--", "true"]).await;
    let expected = "error: unable to upgrade connection: nor SPDY\n\
                    the request used SPDY, because WebSocket was refused: no WebSockets here (400)\n";
    assert_eq!((output.code, &*output.stderr), (Some(1), expected));
}

#[tokio::test]
async fn a_lost_stream_is_never_a_success() {
    let cluster = Cluster::start().await;
    for cut in [0, 1, 20, 40, 60] {
        cluster.pods.cut_after(Some(cut));
        let output = cluster
            .run(&[
                "exec",
                "web",
                "--",
                "echo",
                "0123456789012345678901234567890",
            ])
            .await;
        assert_eq!(output.code, Some(1), "cut after {cut}: {output:?}");
        assert!(
            output
                .stderr
                .starts_with("error: lost connection to the container: "),
            "{output:?}"
        );
        assert!(
            output.stderr.contains("bytes of its output were received"),
            "{output:?}"
        );
    }
}

#[tokio::test]
async fn invalid_arguments_have_kubectls_messages() {
    let cluster = Cluster::start().await;
    let rows: [(&[&str], &str); 4] = [
        (
            &["exec", "web"],
            "error: you must specify at least one command for the container\n",
        ),
        (
            &["exec", "web", "ls"],
            "error: exec [POD] [COMMAND] is not supported anymore. Use exec [POD] -- [COMMAND] instead\n",
        ),
        (
            &["exec", "thing/web", "--", "ls"],
            "error: the server doesn't have a resource type \"thing\"\n",
        ),
        (
            &["exec", "-it", "web", "--", "true"],
            "Unable to use a TTY - input is not a terminal or the right kind of file\n",
        ),
    ];
    for (words, expected) in rows {
        let output = cluster.run(words).await;
        assert!(output.stderr.starts_with(expected), "{words:?}: {output:?}");
    }
}

#[tokio::test]
async fn a_running_process_is_attached() {
    let cluster = Cluster::start().await;
    let output = cluster.run_with(&["attach", "-i", "web"], b"hello\n").await;
    assert_eq!(
        (output.code, &*output.stdout),
        (Some(0), "hello\n"),
        "{}",
        output.stderr
    );
    let last = cluster.pods.requests().pop().unwrap();
    assert!(
        last.contains("/pods/web/attach?container=app&stdin=true&stdout=true&stderr=true"),
        "{last}"
    );
}

#[tokio::test]
async fn a_closed_stdout_ends_the_command() {
    let cluster = Cluster::start().await;
    let script = format!(
        "{} exec web -- yes | head -n 1; echo ${{PIPESTATUS[0]}}",
        env!("CARGO_BIN_EXE_skewbridge")
    );
    let mut command = tokio::process::Command::new("bash");
    command.args(["-c", &script]);
    command.env("KUBECONFIG", cluster.dir.path().join("config"));
    let output = tokio::time::timeout(skewbridge_testkit::TEST_TIMEOUT, command.output());
    let output = output.await.expect("it ends").unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "y\n141\n");
}
