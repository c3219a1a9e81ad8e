//! The target of a command: by files, by arguments, by kubeconfigs.

use skewbridge_testkit::{Pods, TEST_TIMEOUT};
use tokio::time::timeout;

use super::{Cluster, CommandOutput};

/// kubectl's message before it attaches.
const NOTICES: &str = "All commands and output from this session will be recorded in container \
    logs, including credentials and sensitive information passed through the command prompt.\n\
    If you don't see a command prompt, try pressing enter.\n";

const DEPLOYMENT: &str = "/apis/apps/v1/namespaces/default/deployments";

/// A deployment `shop` with one pod.
fn shop(cluster: &Cluster) {
    cluster.pods.object(
        &format!("{DEPLOYMENT}/shop"),
        r#"{"spec":{"selector":{"matchLabels":{"app":"shop"}}}}"#,
    );
    cluster.pods.object(
        "/api/v1/namespaces/default/pods?labelSelector=app%3Dshop&limit=500",
        r#"{"items":[{"metadata":{"name":"shop-1"},"spec":{"nodeName":"n","containers":[{"name":"a"}]},"status":{"phase":"Running"}}]}"#,
    );
}

#[tokio::test]
async fn a_file_can_name_the_target_of_a_command() {
    let cluster = Cluster::start().await;
    shop(&cluster);
    let file = cluster.dir.write(
        "shop.yaml",
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: shop}\n",
    );
    let file = file.to_str().unwrap();
    let output = cluster.run(&["exec", "-f", file, "--", "echo", "a"]).await;
    assert_eq!(
        (output.code, &*output.stdout),
        (Some(0), "a\n"),
        "{}",
        output.stderr
    );
    let last = cluster.pods.requests().pop().unwrap();
    assert!(last.contains("/pods/shop-1/exec?"), "{last}");
    // Its namespace counts, unless the flag is given.
    cluster.pods.pod("zoo", "ape", &["app"]);
    let object = r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"ape","namespace":"zoo"}}"#;
    let words = ["exec", "--filename=-", "--", "echo", "b"];
    let output = cluster.run_with(&words, object.as_bytes()).await;
    assert_eq!(
        (output.code, &*output.stdout),
        (Some(0), "b\n"),
        "{}",
        output.stderr
    );
    let last = cluster.pods.requests().pop().unwrap();
    assert!(last.contains("/namespaces/zoo/pods/ape/exec?"), "{last}");
    let words = ["exec", "-n", "default", "-f", "-", "--", "true"];
    let output = cluster.run_with(&words, object.as_bytes()).await;
    assert_eq!(
        (output.code, &*output.stderr),
        (
            Some(1),
            "error: the namespace from the provided object \"zoo\" does not match the namespace \
             \"default\". You must pass '--namespace=zoo' to perform this operation.\n"
        )
    );
    let rows: [(&[&str], &str); 5] = [
        (
            &["exec", "-f", "/nonexistent/x.yaml", "--", "true"],
            "error: the path \"/nonexistent/x.yaml\" does not exist\n",
        ),
        (
            &["exec", "-f", "a,b", "--", "true"],
            "error: cannot exec into multiple objects at a time\n",
        ),
        (
            &["exec", "-f", file, "web", "--", "true"],
            "error: resource/name arguments cannot be provided when a path is specified\n",
        ),
        (
            &["exec", "-f", file, "date"],
            "error: exec [POD] [COMMAND] is not supported anymore. Use exec [POD] -- [COMMAND] instead\n\
             See 'skewbridge exec -h' for help and examples\n",
        ),
        (
            &["exec", "--", "true"],
            "error: pod, type/name or --filename must be specified\n",
        ),
    ];
    for (words, expected) in rows {
        let output = cluster.run(words).await;
        assert_eq!(
            (output.code, &*output.stderr),
            (Some(1), expected),
            "{words:?}"
        );
    }
}

#[tokio::test]
async fn a_type_and_a_name_may_be_two_words_of_attach() {
    let cluster = Cluster::start().await;
    shop(&cluster);
    let output = cluster
        .run_with(&["attach", "-i", "deployment", "shop"], b"hello\n")
        .await;
    assert_eq!(
        (output.code, &*output.stdout),
        (Some(0), "hello\n"),
        "{}",
        output.stderr
    );
    let last = cluster.pods.requests().pop().unwrap();
    assert!(last.contains("/pods/shop-1/attach?"), "{last}");
    let output = cluster.run(&["attach", "a", "b", "c"]).await;
    assert_eq!(
        (output.code, &*output.stderr),
        (
            Some(1),
            "error: expected POD, TYPE/NAME, or TYPE NAME, (at most 2 arguments) saw 3: [a b c]\n"
        )
    );
}

#[tokio::test]
async fn attach_prints_kubectls_messages() {
    let cluster = Cluster::start().await;
    cluster.pods.object(
        "/api/v1/namespaces/default/pods/shell",
        r#"{"metadata":{"name":"shell"},"spec":{"containers":[{"name":"app","tty":true}]},"status":{"phase":"Running"}}"#,
    );
    let no_terminal = "Unable to use a TTY - input is not a terminal or the right kind of file\n";
    let none_there = "error: Unable to use a TTY - container app did not allocate one\n";
    let rows: [(&[&str], String); 5] = [
        (&["attach", "-i", "web"], NOTICES.to_owned()),
        (&["attach", "-i", "-q", "web"], String::new()),
        (&["attach", "-it", "web"], format!("{none_there}{NOTICES}")),
        (
            &["attach", "-i", "shell"],
            format!("{no_terminal}{NOTICES}"),
        ),
        (&["attach", "-i", "-q", "shell"], String::new()),
    ];
    for (words, expected) in rows {
        let output = cluster.run(words).await;
        assert_eq!(output.stderr, expected, "{words:?}");
        assert_eq!((output.code, &*output.stdout), (Some(0), ""), "{words:?}");
    }
    // Also without stdin, and before the attach succeeds.
    let refusal = r#"{"kind":"Status","reason":"Forbidden","message":"no","code":403}"#;
    let grant = || skewbridge_testkit::UpgradeResponse::Reject(403, refusal.to_owned());
    cluster.pods.websocket(grant());
    cluster.pods.spdy(grant());
    let output = cluster.run(&["attach", "web"]).await;
    assert_eq!(output.code, Some(1));
    assert_eq!(
        output.stderr,
        format!(
            "{NOTICES}Error from server (Forbidden): no\n\
             the request needs the verb create on pods/attach in namespace \"default\"; see kubectl auth can-i create pods/attach -n default\n"
        )
    );
    let output = cluster.run(&["port-forward", "web", ":80"]).await;
    assert_eq!(output.code, Some(1));
    assert_eq!(
        output.stderr,
        "Error from server (Forbidden): no\n\
         the request needs the verb create on pods/portforward in namespace \"default\"; see kubectl auth can-i create pods/portforward -n default\n"
    );
}

#[tokio::test]
async fn a_zero_timeout_is_refused() {
    let cluster = Cluster::start().await;
    let commands: [&[&str]; 3] = [
        &["exec", "web", "--pod-running-timeout=0s", "--", "true"],
        &["attach", "web", "--pod-running-timeout=0s"],
        &["port-forward", "web", ":80", "--pod-running-timeout=-1s"],
    ];
    for words in commands {
        let output = cluster.run(words).await;
        assert_eq!(
            (output.code, &*output.stderr),
            (
                Some(1),
                "error: --pod-running-timeout must be higher than zero\n"
            ),
            "{words:?}"
        );
    }
}

#[tokio::test]
async fn a_missing_owner_is_reported_with_similar_names() {
    let cluster = Cluster::start().await;
    cluster.pods.object(
        DEPLOYMENT,
        r#"{"items":[{"metadata":{"name":"shop"}},{"metadata":{"name":"cart"}}]}"#,
    );
    let services = "/api/v1/namespaces/default/services";
    cluster.pods.object(services, r#"{"items":[]}"#);
    let rows = [
        (
            "deploy/shp",
            "Error from server (NotFound): deployments \"shp\" not found\n\
             did you mean shop? (namespace \"default\")\n",
        ),
        (
            "svc/shop",
            "Error from server (NotFound): services \"shop\" not found\n\
             namespace \"default\" has no services; see kubectl get services -A\n",
        ),
    ];
    for (target, expected) in rows {
        let output = cluster.run(&["exec", target, "--", "true"]).await;
        assert_eq!((output.code, &*output.stderr), (Some(1), expected));
    }
}

#[tokio::test]
async fn several_kubeconfigs_are_merged_and_flags_choose_from_them() {
    let cluster = Cluster::start().await;
    let other = Pods::start().await;
    other.pod("shop", "web", &["app"]);
    other.pod("default", "web", &["app"]);
    let first = cluster.dir.write(
        "first",
        format!(
            "current-context: here\n\
             contexts: [{{name: here, context: {{cluster: one, user: me}}}}]\n\
             clusters: [{{name: one, cluster: {{server: 'http://{}'}}}}]\n",
            cluster.pods.addr()
        ),
    );
    // If both have an entry, that of the first counts.
    let second = cluster.dir.write(
        "second",
        format!(
            "current-context: there\n\
             contexts: [{{name: there, context: {{cluster: two, user: me, namespace: shop}}}}]\n\
             clusters: [{{name: one, cluster: {{server: 'http://127.0.0.1:1'}}}}, {{name: two, cluster: {{server: 'http://{}'}}}}]\n\
             users: [{{name: me, user: {{token: t}}}}, {{name: old, user: {{auth-provider: {{name: gcp}}}}}}]\n",
            other.addr()
        ),
    );
    let absent = cluster.dir.path().join("absent");
    let list = std::env::join_paths([&absent, &first, &second]).unwrap();
    let exec = async |flags: &[&str]| -> CommandOutput {
        let words = [&["exec", "web"], flags, &["--", "echo", "hello"]].concat();
        let mut command = cluster.command(&words);
        command.env("KUBECONFIG", &list);
        let output = timeout(TEST_TIMEOUT, command.output())
            .await
            .unwrap()
            .unwrap();
        CommandOutput {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    };
    let rows: [(&[&str], &Pods, &str); 4] = [
        (&[], &cluster.pods, "default"),
        (&["--context=there"], &other, "shop"),
        (&["--cluster=two"], &other, "default"),
        (&["--context=there", "-n", "default"], &other, "default"),
    ];
    for (flags, pods, namespace) in rows {
        let before = pods.requests().len();
        let output = exec(flags).await;
        assert_eq!(
            (output.code, &*output.stdout),
            (Some(0), "hello\n"),
            "{flags:?}: {}",
            output.stderr
        );
        let asked = pods.requests().split_off(before);
        let path = format!("/api/v1/namespaces/{namespace}/pods/web");
        assert!(asked[0].contains(&path), "{flags:?}: {asked:?}");
    }
    let output = exec(&["--user=old"]).await;
    assert_eq!(output.code, Some(1));
    assert!(output.stderr.contains("user \"old\""), "{output:?}");
    let output = exec(&["--context=gone"]).await;
    assert!(
        output.stderr.contains("available: here, there"),
        "{}",
        output.stderr
    );
}
