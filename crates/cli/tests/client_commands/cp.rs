//! `cp`, with pipes and at a terminal.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use skewbridge_testkit::{Stopwatch, TEST_TIMEOUT, Terminal, UpgradeResponse, eventually};
use tokio::time::timeout;

use super::Cluster;

#[tokio::test]
async fn a_tree_is_copied_to_a_pod_and_back() {
    let cluster = Cluster::start().await;
    let dir = cluster.dir.path();
    fs::create_dir_all(dir.join("tree/below")).unwrap();
    fs::write(dir.join("tree/below/file"), "contents").unwrap();
    let local = |name: &str| dir.join(name).display().to_string();
    let remote = format!("web:{}", local("there"));
    let back = local("back");
    for words in [
        ["cp", &local("tree"), &remote],
        ["cp", &remote, &back],
        ["cp", &remote, &format!("default/web:{}", local("other"))],
    ] {
        let output = cluster.run(&words).await;
        let output = (output.code, &*output.stdout, &*output.stderr);
        assert_eq!(output, (Some(0), "", ""), "{words:?}");
    }
    for copy in ["there", "back", "other"] {
        let found = fs::read_to_string(dir.join(copy).join("below/file"));
        assert_eq!(found.unwrap(), "contents", "{copy}");
    }
}

#[tokio::test]
async fn websockets_can_be_disabled() {
    let cluster = Cluster::start().await;
    // A WebSocket request would get no response, and there would be no fallback.
    cluster.pods.websocket(UpgradeResponse::Close);
    let dir = cluster.dir.path();
    fs::write(dir.join("file"), "contents").unwrap();
    let local = |name: &str| dir.join(name).display().to_string();
    let remote = format!("web:{}", local("there"));
    for words in [
        ["cp", &local("file"), &remote],
        ["cp", &remote, &local("back")],
    ] {
        let mut command = cluster.command(&words);
        command.env("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", "false");
        let output = timeout(TEST_TIMEOUT, command.output())
            .await
            .unwrap()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
    }
    assert_eq!(fs::read_to_string(dir.join("back")).unwrap(), "contents");
}

#[tokio::test]
async fn errors_have_kubectls_messages() {
    let cluster = Cluster::start().await;
    let dir = cluster.dir.path();
    let here = dir.join("here").display().to_string();
    let there = format!("web:{}", dir.join("nowhere").display());
    let rows: [(&[&str], i32, &str); 7] = [
        (
            &["a", "b"],
            64,
            "error: one of src or dest must be a remote file specification",
        ),
        (&["a", "web:"], 64, "error: filepath can not be empty"),
        (
            &[":a", "b"],
            64,
            "error: filespec must match the canonical format: [[namespace/]pod:]file/path",
        ),
        (&["web:/x"], 64, "<DEST>"),
        (
            &["/no/such/file", "web:/x"],
            1,
            "error: /no/such/file doesn't exist in local filesystem",
        ),
        (&["wbe:/x", &here], 1, "not found"),
        (&[&there, &here], 1, "No such file or directory"),
    ];
    for (words, code, expected) in rows {
        let line = [&["cp"], words].concat();
        let output = cluster.run(&line).await;
        assert_eq!(output.code, Some(code), "{words:?}: {output:?}");
        assert!(output.stderr.contains(expected), "{words:?}: {output:?}");
    }
}

#[tokio::test]
async fn skipped_files_are_named_and_the_copy_fails() {
    let cluster = Cluster::start().await;
    let dir = cluster.dir.path();
    fs::create_dir(dir.join("tree")).unwrap();
    fs::write(dir.join("tree/file"), "contents").unwrap();
    symlink("/etc/passwd", dir.join("tree/link")).unwrap();
    let remote = format!("web:{}", dir.join("tree").display());
    let to = dir.join("to").display().to_string();
    let output = cluster.run(&["cp", &remote, &to]).await;
    assert_eq!(output.code, Some(1), "{output:?}");
    let expected = format!(
        "warning: skipping symlink: \"{to}/link\" -> \"/etc/passwd\" (it leads out of the \
         target)\nerror: one entry was not copied\n"
    );
    assert_eq!(output.stderr, expected);
    let output = cluster.run(&["cp", "-q", &remote, &to]).await;
    assert_eq!(output.stderr, "error: one entry was not copied\n");
}

#[tokio::test]
async fn the_stream_protocol_is_printed_once_if_requested() {
    let cluster = Cluster::start().await;
    cluster
        .pods
        .websocket(UpgradeResponse::Reject(400, "no".to_owned()));
    let file = cluster.dir.write("file", "contents").display().to_string();
    let remote = format!("web:{}/copy", cluster.dir.path().display());
    let output = cluster.run(&["cp", "-v=1", &file, &remote]).await;
    assert_eq!(output.code, Some(0), "{output:?}");
    let count = output.stderr.matches("skewbridge: using SPDY").count();
    assert_eq!(count, 1, "{output:?}");
}

#[tokio::test]
async fn a_lost_connection_is_resumed_or_reported() {
    let cluster = Cluster::start().await;
    let contents: Vec<u8> = (0..3_000_000_u32).map(|it| (it % 251) as u8).collect();
    let file = cluster.dir.write("file", &contents).display().to_string();
    let to = cluster.dir.path().join("copy");
    let (remote, local) = (format!("web:{file}"), to.display().to_string());
    cluster.pods.cut_after(Some(2_000_000));
    let output = cluster.run(&["cp", &remote, &local]).await;
    assert_eq!(output.code, Some(1), "{output:?}");
    assert!(
        output.stderr.contains("error: the connection was lost"),
        "{output:?}"
    );
    assert!(output.stderr.contains("--retries=N"), "{output:?}");
    assert!(!to.exists());
    let output = cluster.run(&["cp", "--retries=5", &remote, &local]).await;
    assert_eq!(output.code, Some(0), "{output:?}");
    assert!(output.stderr.contains("resuming at byte"), "{output:?}");
    assert!(fs::read(to).unwrap() == contents);
}

#[tokio::test]
async fn a_terminal_shows_progress() {
    let cluster = Cluster::start().await;
    let file = cluster.dir.write("file", vec![7; 1 << 20]);
    let remote = format!("web:{}/copy", cluster.dir.path().display());
    let terminal = Terminal::open(80, 24);
    let mut child = terminal.run(cluster.command(&["cp", &file.display().to_string(), &remote]));
    terminal.shows("copied 1.0 MiB in 1 entry, ").await;
    let ended = timeout(TEST_TIMEOUT, child.wait()).await.unwrap().unwrap();
    assert!(ended.success());
}

/// The remaining time is shown only if there is a rate.
#[tokio::test]
async fn a_terminal_shows_the_rate_while_it_copies() {
    let cluster = Cluster::start().await;
    // A sparse file: it uses no disk space, and takes long enough.
    let path = cluster.dir.path().join("zeros");
    fs::File::create(&path).unwrap().set_len(1 << 30).unwrap();
    let remote = format!("web:{}", path.display());
    let to = cluster.dir.path().join("copy").display().to_string();
    let terminal = Terminal::open(80, 24);
    let mut child = terminal.run(cluster.command(&["cp", &remote, &to]));
    terminal.shows("iB/s, ").await;
    let shown = terminal.shown();
    let line = shown.split('\r').find(|line| line.contains("iB/s, "));
    let line = line.unwrap().split('\x1b').next().unwrap();
    assert!(line.starts_with('[') && line.contains('%'), "{line:?}");
    assert!(line.ends_with(" left  ./zeros"), "{line:?}");
    assert!(line.len() < 80, "{line:?}");
    let pid = Pid::from_raw(i32::try_from(child.id().unwrap()).unwrap()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    let ended = timeout(TEST_TIMEOUT, child.wait()).await.unwrap().unwrap();
    assert_eq!(ended.code(), Some(130));
}

/// No partial file stays, and the exit code is that of the signal.
#[tokio::test]
async fn an_interrupted_copy_removes_partial_files() {
    let cluster = Cluster::start().await;
    // A sparse file: it uses no disk space, and takes long enough.
    let path = cluster.dir.path().join("zeros");
    fs::File::create(&path).unwrap().set_len(1 << 30).unwrap();
    let here = path.display().to_string();
    let target = cluster.dir.path().join("target");
    let there = format!("{}/copy", target.display());
    let rows: [(&[&str], Signal, i32); 4] = [
        (&[&format!("web:{here}"), &there], Signal::INT, 130),
        (&[&format!("web:{here}"), &there], Signal::HUP, 129),
        (&[&here, &format!("web:{there}")], Signal::TERM, 143),
        // Without cleanup in the container, the file would stay.
        (
            &["--retries=9", &here, &format!("web:{there}")],
            Signal::HUP,
            129,
        ),
    ];
    for (words, signal, code) in rows {
        fs::create_dir(&target).unwrap();
        let line = [&["cp"], words].concat();
        let mut child = cluster
            .command(&line)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        eventually("a partial file", TEST_TIMEOUT, async || {
            fs::read_dir(&target).unwrap().count() == 1
        })
        .await;
        let pid = Pid::from_raw(i32::try_from(child.id().unwrap()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
        let ended = timeout(TEST_TIMEOUT, child.wait()).await.unwrap().unwrap();
        assert_eq!(ended.code(), Some(code), "{words:?}");
        // The pod may detect the end of the connection late.
        eventually("nothing there", TEST_TIMEOUT, async || {
            fs::read_dir(&target).unwrap().count() == 0
        })
        .await;
        fs::remove_dir(&target).unwrap();
    }
}

/// The smallest pipe: a page.
const PIPE_BYTES: usize = 4096;

/// The pipe is full and not read, so the thread that prints warnings blocks.
#[tokio::test]
async fn a_second_signal_ends_a_copy_at_once_although_the_disk_hangs() {
    let cluster = Cluster::start().await;
    let tree = cluster.dir.path().join("tree");
    fs::create_dir(&tree).unwrap();
    // More lines than fit into the pipe.
    for number in 0..100 {
        symlink("/etc/passwd", tree.join(format!("link{number}"))).unwrap();
    }
    let remote = format!("web:{}", tree.display());
    let to = cluster.dir.path().join("to").display().to_string();
    let mut child = cluster
        .command(&["cp", &remote, &to])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let unread = child.stderr.take().unwrap().into_owned_fd().unwrap();
    rustix::pipe::fcntl_setpipe_size(&unread, PIPE_BYTES).unwrap();
    eventually(
        "a pipe with room for a few lines",
        TEST_TIMEOUT,
        async || rustix::io::ioctl_fionread(&unread).unwrap() > PIPE_BYTES as u64 - 1024,
    )
    .await;
    let pid = Pid::from_raw(i32::try_from(child.id().unwrap()).unwrap()).unwrap();
    let watch = Stopwatch::start();
    kill_process(pid, Signal::INT).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    let mut ended = None;
    // After one signal it would wait for the disk, for 10 seconds.
    let limit = Duration::from_secs(5);
    let is_over = async || {
        ended = child.try_wait().unwrap();
        ended.is_some()
    };
    watch.within(limit, "the end of a copy", is_over).await;
    let code = ended.unwrap().code();
    assert!(matches!(code, Some(130 | 143)), "{code:?}");
}

#[tokio::test]
async fn an_ignored_signal_stays_ignored() {
    let cluster = Cluster::start().await;
    let path = cluster.dir.path().join("zeros");
    fs::File::create(&path).unwrap().set_len(64 << 20).unwrap();
    let target = cluster.dir.path().join("target");
    fs::create_dir(&target).unwrap();
    let remote = format!("web:{}", path.display());
    let line = ["cp", &remote, &target.display().to_string()];
    // As by nohup.
    let mut command = cluster.command_with("--ignore-signal=HUP", &line);
    let mut child = command.spawn().unwrap();
    eventually("a partial file", TEST_TIMEOUT, async || {
        fs::read_dir(&target).unwrap().count() == 1
    })
    .await;
    let pid = Pid::from_raw(i32::try_from(child.id().unwrap()).unwrap()).unwrap();
    kill_process(pid, Signal::HUP).unwrap();
    let ended = timeout(TEST_TIMEOUT, child.wait()).await.unwrap().unwrap();
    assert_eq!(ended.code(), Some(0));
    assert_eq!(fs::metadata(target.join("zeros")).unwrap().len(), 64 << 20);
}

#[tokio::test]
async fn a_refusal_names_its_pod() {
    let cluster = Cluster::start().await;
    cluster.pods.pod("other", "web", &["app"]);
    let forbidden = r#"{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","message":"no","code":403}"#;
    cluster
        .pods
        .websocket(UpgradeResponse::Reject(403, forbidden.to_owned()));
    cluster
        .pods
        .spdy(UpgradeResponse::Reject(403, forbidden.to_owned()));
    let here = cluster.dir.write("file", "contents").display().to_string();
    for words in [["other/web:/x", &here], [&here, "other/web:/x"]] {
        let output = cluster.run(&[&["cp"], &words[..]].concat()).await;
        assert_eq!(output.code, Some(1), "{output:?}");
        let expected = "the request needs the verb create on pods/exec in namespace \"other\"";
        assert!(output.stderr.contains(expected), "{output:?}");
    }
    // A container that does not run is not one without tar.
    let waiting = r#"{"metadata":{"name":"late","namespace":"default"},"spec":{"containers":[{"name":"app"}]},
        "status":{"phase":"Pending","containerStatuses":[{"name":"app","state":{"waiting":{"reason":"ImagePullBackOff"}}}]}}"#;
    let path = "/api/v1/namespaces/default/pods/late";
    cluster.pods.object(path, waiting);
    let missing = UpgradeResponse::Reject(500, "container not found (\"app\")\u{1b}[2J".to_owned());
    cluster.pods.websocket(missing.clone());
    cluster.pods.spdy(missing);
    for words in [["late:/x", &here], [&here, "late:/x"]] {
        let output = cluster.run(&[&["cp"], &words[..]].concat()).await;
        assert_eq!(output.code, Some(1), "{output:?}");
        assert!(output.stderr.contains("container not found"), "{output:?}");
        assert!(!output.stderr.contains("there is no tar"), "{output:?}");
        assert!(!output.stderr.contains('\u{1b}'), "{output:?}");
        let expected = "container \"app\" of pod \"late\" is waiting";
        assert!(output.stderr.contains(expected), "{output:?}");
    }
}
