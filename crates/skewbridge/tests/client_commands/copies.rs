//! `cp`, with pipes and at a terminal.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use skewbridge_testkit::{Grant, PATIENCE, Terminal, eventually};
use tokio::time::timeout;

use super::Cluster;

#[tokio::test]
async fn a_tree_goes_to_a_pod_and_comes_back() {
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
        let said = cluster.run(&words).await;
        let said = (said.code, &*said.stdout, &*said.stderr);
        assert_eq!(said, (Some(0), "", ""), "{words:?}");
    }
    for copy in ["there", "back", "other"] {
        let found = fs::read_to_string(dir.join(copy).join("below/file"));
        assert_eq!(found.unwrap(), "contents", "{copy}");
    }
}

#[tokio::test]
async fn what_is_wrong_is_told_in_the_words_of_kubectl() {
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
        let said = cluster.run(&line).await;
        assert_eq!(said.code, Some(code), "{words:?}: {said:?}");
        assert!(said.stderr.contains(expected), "{words:?}: {said:?}");
    }
}

#[tokio::test]
async fn what_is_left_out_is_named_and_no_success() {
    let cluster = Cluster::start().await;
    let dir = cluster.dir.path();
    fs::create_dir(dir.join("tree")).unwrap();
    fs::write(dir.join("tree/file"), "contents").unwrap();
    symlink("/etc/passwd", dir.join("tree/link")).unwrap();
    let remote = format!("web:{}", dir.join("tree").display());
    let to = dir.join("to").display().to_string();
    let said = cluster.run(&["cp", &remote, &to]).await;
    assert_eq!(said.code, Some(1), "{said:?}");
    let expected = format!(
        "warning: skipping symlink: \"{to}/link\" -> \"/etc/passwd\" (it leads out of the \
         target)\nerror: one entry was not copied\n"
    );
    assert_eq!(said.stderr, expected);
    let said = cluster.run(&["cp", "-q", &remote, &to]).await;
    assert_eq!(said.stderr, "error: one entry was not copied\n");
}

#[tokio::test]
async fn how_it_is_carried_is_told_once_if_asked_for() {
    let cluster = Cluster::start().await;
    cluster.pods.websocket(Grant::No(400, "no".to_owned()));
    let file = cluster.dir.write("file", "contents").display().to_string();
    let remote = format!("web:{}/copy", cluster.dir.path().display());
    let said = cluster.run(&["cp", "-v=1", &file, &remote]).await;
    assert_eq!(said.code, Some(0), "{said:?}");
    let told = said.stderr.matches("skewbridge: by SPDY").count();
    assert_eq!(told, 1, "{said:?}");
}

#[tokio::test]
async fn a_cut_is_gone_on_with_or_told() {
    let cluster = Cluster::start().await;
    let contents: Vec<u8> = (0..3_000_000_u32).map(|it| (it % 251) as u8).collect();
    let file = cluster.dir.write("file", &contents).display().to_string();
    let to = cluster.dir.path().join("copy");
    let (remote, local) = (format!("web:{file}"), to.display().to_string());
    cluster.pods.cut_after(Some(2_000_000));
    let said = cluster.run(&["cp", &remote, &local]).await;
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(
        said.stderr.contains("error: the connection was lost"),
        "{said:?}"
    );
    assert!(said.stderr.contains("--retries=N"), "{said:?}");
    assert!(!to.exists());
    let said = cluster.run(&["cp", "--retries=5", &remote, &local]).await;
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(said.stderr.contains("going on at byte"), "{said:?}");
    assert!(fs::read(to).unwrap() == contents);
}

#[tokio::test]
async fn a_terminal_shows_how_far_it_is() {
    let cluster = Cluster::start().await;
    let file = cluster.dir.write("file", vec![7; 1 << 20]);
    let remote = format!("web:{}/copy", cluster.dir.path().display());
    let terminal = Terminal::open(80, 24);
    let mut child = terminal.run(cluster.command(&["cp", &file.display().to_string(), &remote]));
    terminal.shows("copied 1.0 MiB in 1 entry, ").await;
    let ended = timeout(PATIENCE, child.wait()).await.unwrap().unwrap();
    assert!(ended.success());
}

/// Nothing that is not whole stays, and the exit code is that of the signal.
#[tokio::test]
async fn interrupted_it_removes_what_is_not_whole() {
    let cluster = Cluster::start().await;
    // It takes no room, and long enough.
    let path = cluster.dir.path().join("zeros");
    fs::File::create(&path).unwrap().set_len(1 << 30).unwrap();
    let target = cluster.dir.path().join("target");
    fs::create_dir(&target).unwrap();
    let words = [
        "cp",
        &format!("web:{}", path.display()),
        &target.display().to_string(),
    ];
    let mut command = cluster.command(&words);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    eventually("something that is not whole", PATIENCE, async || {
        fs::read_dir(&target).unwrap().count() == 1
    })
    .await;
    let pid = Pid::from_raw(i32::try_from(child.id().unwrap()).unwrap()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    let ended = timeout(PATIENCE, child.wait()).await.unwrap().unwrap();
    assert_eq!(ended.code(), Some(130));
    assert_eq!(fs::read_dir(&target).unwrap().count(), 0);
}
