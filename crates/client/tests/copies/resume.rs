//! Resuming copies: a lost connection must not keep wrong contents, or count wrongly.

use std::fs::File;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use skewbridge_client::copy::{CopyEvent, Error, ResumePoint, copy_between, copy_from, copy_to};
use skewbridge_testkit::{ScratchDir, TEST_TIMEOUT};

use crate::fake_container::{FakeContainer, Loss, is_busybox};
use crate::test_tree::{TreeShape, create_tree, listing, random_bytes};
use crate::{download, no_leftovers, options, progress, restarts, upload};

fn set_time(path: &Path, seconds: u64) {
    let file = File::options().write(true).open(path).unwrap();
    let then = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
    file.set_modified(then).unwrap();
}

#[tokio::test]
async fn a_stale_file_of_the_same_size_and_time_is_replaced() {
    let (container, scratch) = (FakeContainer::new(), ScratchDir::new());
    let from = scratch.path().join("from");
    let remote = container.root().join("there");
    for (root, contents) in [(&from, "right"), (&remote, "wrong")] {
        std::fs::create_dir(root).unwrap();
        std::fs::write(root.join("z"), contents).unwrap();
        set_time(&root.join("z"), 1_234_567_890);
    }
    // The connection is lost before the stale file.
    std::fs::write(from.join("a"), random_bytes(200_000)).unwrap();
    container.lose_connections(&[None, Some(Loss::Input(60_000))]);
    upload(&container, &from.join("."), "there", 1)
        .await
        .unwrap();
    assert_eq!(listing(&remote), listing(&from));
}

#[tokio::test]
async fn complete_files_are_not_sent_again() {
    let (container, scratch) = (FakeContainer::new(), ScratchDir::new());
    let from = scratch.path().join("from");
    std::fs::create_dir(&from).unwrap();
    for name in ["a", "b", "c"] {
        std::fs::write(from.join(name), random_bytes(100_000)).unwrap();
    }
    std::fs::create_dir(container.root().join("there")).unwrap();
    container.lose_connections(&[None, Some(Loss::Input(250_000))]);
    let (options, events) = options(1);
    let progress = progress();
    let contents = from.join(".");
    copy_to(&container, &contents, "there", &options, &progress)
        .await
        .unwrap();
    assert_eq!(listing(&container.root().join("there")), listing(&from));
    assert_eq!((progress.bytes(), progress.entries()), (300_000, 3));
    if is_busybox() {
        return;
    }
    let events = events.lock().unwrap();
    let from = ResumePoint::SkippingFiles(3);
    // Two files are complete, and the third is partial.
    assert!(
        matches!(&events[..], [CopyEvent::Retrying { from: resume, .. }] if *resume == from),
        "{events:?}"
    );
}

/// A container with this user ID whose tar leaves `b` once as a killed GNU tar does: with its
/// contents and its time, but without permissions.
fn with_interrupted_tar(user: u32, place: &str) -> FakeContainer {
    let container = FakeContainer::new();
    let (tar, root) = (container.tar(), container.root());
    let (tar, once) = (tar.display(), root.join("../once"));
    let once = once.display();
    let remove_permissions = format!("chmod 700 {place}/b; rm -f {place}/c; : >{once}");
    container.add_script(
        "tar",
        &format!("{tar} \"$@\" && exit\n[ -e {once} ] || {{ {remove_permissions}; }}\nexit 2"),
    );
    container.add_script("id", &format!("echo {user}"));
    container
}

fn create_files_with_permissions(from: &Path) {
    std::fs::create_dir(from).unwrap();
    for name in ["a", "b", "c"] {
        let path = from.join(name);
        std::fs::write(&path, random_bytes(100_000)).unwrap();
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o754)).unwrap();
    }
}

#[tokio::test]
async fn a_file_without_its_permissions_is_sent_again() {
    // Staged, or into an existing directory.
    for (to, place, whole) in [
        ("new", ".skewbridge-*/it", "new"),
        ("there", "there/./from", "there/from"),
    ] {
        let (container, scratch) = (with_interrupted_tar(0, place), ScratchDir::new());
        let from = scratch.path().join("from");
        create_files_with_permissions(&from);
        std::fs::create_dir_all(container.root().join("there/from")).unwrap();
        container.lose_connections(&[None, Some(Loss::Input(250_000))]);
        upload(&container, &from, to, 1).await.unwrap();
        assert_eq!(listing(&container.root().join(whole)), listing(&from));
    }
}

#[tokio::test]
async fn later_changes_do_not_hide_a_file_without_permissions() {
    if is_busybox() {
        return;
    }
    // A log file grows locally, and is completed remotely.
    let (container, scratch) = (
        with_interrupted_tar(0, ".skewbridge-*/it"),
        ScratchDir::new(),
    );
    let from = scratch.path().join("from");
    create_files_with_permissions(&from);
    let log = scratch.write("from/a.log", random_bytes(5 << 20));
    container.lose_connections(&[None, Some(Loss::Input((5 << 20) + 250_000))]);
    let (mut options, _) = options(1);
    let grows = log.clone();
    options.on_event = Some(Arc::new(move |_| {
        std::fs::write(&grows, random_bytes((5 << 20) + 10)).unwrap();
    }));
    copy_to(&container, &from, "new", &options, &progress())
        .await
        .unwrap();
    assert_eq!(listing(&container.root().join("new")), listing(&from));

    // A file changes locally, and the next attempt is interrupted at it.
    let (container, scratch) = (
        with_interrupted_tar(0, ".skewbridge-*/it"),
        ScratchDir::new(),
    );
    let from = scratch.path().join("from");
    create_files_with_permissions(&from);
    let attempts = Some(Loss::Input(60_000));
    container.lose_connections(&[None, Some(Loss::Input(250_000))]);
    container.lose_connections(&[None, None, None, None, attempts]);
    let (mut options, events) = crate::options(2);
    let (changes, kept) = (from.join("a"), events.clone());
    options.on_event = Some(Arc::new(move |event| {
        std::fs::write(&changes, random_bytes(100_001)).unwrap();
        kept.lock().unwrap().push(event);
    }));
    copy_to(&container, &from, "new", &options, &progress())
        .await
        .unwrap();
    assert_eq!(restarts(&events.lock().unwrap()).len(), 2);
    let listed = listing(&container.root().join("new"));
    assert_eq!(listed[1..], listing(&from)[1..]);
}

/// Existing files get the local permissions, however often the connection is lost.
#[tokio::test]
async fn existing_files_do_not_keep_other_permissions() {
    for losses in [&[][..], &[None, Some(Loss::Input(60_000))]] {
        let (container, scratch) = (FakeContainer::new(), ScratchDir::new());
        container.add_script("id", "echo 0");
        let from = scratch.path().join("from");
        let remote = container.root().join("there");
        for (root, mode) in [(&from, 0o755), (&remote, 0o600)] {
            std::fs::create_dir(root).unwrap();
            for name in ["w", "x", "y", "z"] {
                let path = root.join(name);
                std::fs::write(&path, "same").unwrap();
                set_time(&path, 1_234_567_890);
                std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
            }
        }
        std::fs::write(from.join("a"), random_bytes(200_000)).unwrap();
        container.lose_connections(losses);
        upload(&container, &from.join("."), "there", 1)
            .await
            .unwrap();
        assert_eq!(listing(&remote), listing(&from), "{losses:?}");
    }
}

#[tokio::test]
async fn a_volume_without_permissions_does_not_prevent_resuming() {
    if is_busybox() {
        return;
    }
    // A user that is not root, and a volume with one owner and one mode for all files.
    for user in [1000, 0] {
        let (container, scratch) = (FakeContainer::new(), ScratchDir::new());
        let from = scratch.path().join("from");
        std::fs::create_dir(&from).unwrap();
        for name in 0..20 {
            let path = from.join(format!("{name:02}"));
            std::fs::write(&path, random_bytes(100_000)).unwrap();
            std::fs::set_permissions(path, PermissionsExt::from_mode(0o754)).unwrap();
        }
        let tar = container.tar();
        let tar = tar.display();
        let other = "find .skewbridge-* -type f -exec chmod 600 {} +";
        container.add_script("tar", &format!("{tar} \"$@\"; c=$?; {other}; exit $c"));
        container.add_script("id", &format!("echo {user}"));
        let (options, events) = options(6);
        let mut losses = vec![None];
        for _ in 0..3 {
            losses.extend([Some(Loss::Input(510_000)), None, None, None, None]);
        }
        container.lose_connections(&losses);
        copy_to(&container, &from, "new", &options, &progress())
            .await
            .unwrap();
        // The last file of each attempt is partial.
        let further = restarts(&events.lock().unwrap());
        let expected = [6, 11, 16].map(ResumePoint::SkippingFiles);
        assert_eq!(further, expected, "{user}");
    }
}

#[tokio::test]
async fn a_file_completed_during_the_query_is_not_sent_again() {
    let (container, scratch) = (FakeContainer::new(), ScratchDir::new());
    let from = scratch.path().join("from");
    create_tree(&from, TreeShape::Small);
    let (tar, test) = (container.tar(), "/usr/bin/test");
    let tar = tar.display();
    container.add_script("tar", &format!("{tar} \"$@\"; c=$?; sleep 0.3; exit $c"));
    // A slow answer.
    container.add_script("test", &format!("{test} \"$@\"; c=$?; sleep 0.6; exit $c"));
    container.lose_connections(&[None, Some(Loss::Sent)]);
    upload(&container, &from, "new", 2).await.unwrap();
    assert_eq!(listing(&container.root().join("new")), listing(&from));
    no_leftovers(&container);
}

#[tokio::test]
async fn a_slow_writer_is_waited_for() {
    let (container, scratch) = (FakeContainer::new(), ScratchDir::new());
    let from = scratch.path().join("from");
    create_tree(&from, TreeShape::Small);
    container.add_script("mv", "sleep 4; exec /bin/mv \"$@\"");
    container.lose_connections(&[None, Some(Loss::Sent)]);
    upload(&container, &from, "new", 20).await.unwrap();
    assert_eq!(listing(&container.root().join("new")), listing(&from));
    no_leftovers(&container);
}

#[tokio::test]
async fn copies_work_without_a_writer_announcement() {
    for to in ["new", "there"] {
        let (container, scratch) = (FakeContainer::new(), ScratchDir::new());
        let from = scratch.path().join("from");
        create_tree(&from, TreeShape::Small);
        std::fs::create_dir(container.root().join("there")).unwrap();
        // Scripts find no /proc.
        let without = "s=$(echo \"$2\" | /bin/sed 's,/proc/,/none/,g')";
        container.replace_with_script(
            "sh",
            &format!("{without}; shift 2; exec /bin/sh -c \"$s\" \"$@\""),
        );
        container.lose_connections(&[None, Some(Loss::Input(100_000))]);
        let copying = upload(&container, &from, to, 1);
        let copied = tokio::time::timeout(TEST_TIMEOUT, copying).await;
        copied.expect("it hangs").unwrap();
    }
}

#[tokio::test]
async fn an_appending_writer_is_stopped_too() {
    let (container, scratch) = (FakeContainer::new(), ScratchDir::new());
    let contents = random_bytes(6 << 20);
    let from = scratch.write("large", &contents);
    // Slow the first time.
    let once = container.root().join("../once");
    let once = once.display();
    container.replace_with_script(
        "cat",
        &format!("[ -e {once} ] || {{ : >{once}; sleep 2; }}\nexec /bin/cat \"$@\""),
    );
    // A probe, tar, its end, whether it is done, checksums, and the rest.
    container.lose_connections(&[None, Some(Loss::Input(5 << 20)), None, None, None]);
    container.lose_connections(&[Some(Loss::Unnoticed(30_000))]);
    upload(&container, &from, "large", 5).await.unwrap();
    let remote = container.root().join("large");
    assert!(std::fs::read(&remote).unwrap() == contents);
    assert_eq!(container.detached(), 0);
}

#[tokio::test]
async fn no_old_writer_is_left_when_a_new_one_starts() {
    for to in ["new", "there"] {
        let (container, scratch) = (FakeContainer::new(), ScratchDir::new());
        let from = scratch.path().join("from");
        create_tree(&from, TreeShape::Small);
        std::fs::create_dir(container.root().join("there")).unwrap();
        container.lose_connections(&[None, Some(Loss::Unnoticed(200_000))]);
        let mut seen = Vec::new();
        let copying = upload(&container, &from, to, 1);
        tokio::pin!(copying);
        let copied = loop {
            tokio::select! {
                copied = &mut copying => break copied,
                () = tokio::time::sleep(Duration::from_millis(1)) => seen.push(container.detached()),
            }
        };
        copied.unwrap();
        assert!(seen.contains(&1), "it was not lost");
        assert_eq!(container.detached(), 0, "{to}");
        no_leftovers(&container);
        // Between two pods the copy restarts.
        let source = FakeContainer::new();
        create_tree(&source.root().join("tree"), TreeShape::Small);
        container.lose_connections(&[None, Some(Loss::Unnoticed(200_000))]);
        let (options, events) = options(1);
        let places = ((&source as _, "tree"), (&container as _, "there"));
        copy_between(places.0, places.1, &options, &progress())
            .await
            .unwrap();
        assert_eq!(restarts(&events.lock().unwrap()), [ResumePoint::Start]);
        assert_eq!(container.detached(), 0, "{to}");
    }
}

#[tokio::test]
async fn a_large_file_advances_with_each_connection() {
    let (container, scratch) = (FakeContainer::new(), ScratchDir::new());
    let contents = random_bytes(14 << 20);
    let from = scratch.write("large", &contents);
    // A probe; tar. Then each time: stopping the last writer, whether it is done, checksums,
    // and the rest.
    let mut losses = vec![None, Some(Loss::Input(5 << 20))];
    for _ in 0..2 {
        losses.extend([None, None, None, Some(Loss::Input(4 << 20))]);
    }
    container.lose_connections(&losses);
    upload(&container, &from, "large", 5).await.unwrap();
    assert!(std::fs::read(container.root().join("large")).unwrap() == contents);
    let commands = container.commands();
    let appended = commands
        .iter()
        .filter(|it| it.get(2).is_some_and(|script| script.contains("cat >>")))
        .count();
    assert!(appended == 3 || is_busybox(), "{appended} of {commands:?}");
    no_leftovers(&container);
}

#[tokio::test]
async fn skipped_entries_are_counted_once() {
    let scratch = ScratchDir::new();
    // It cannot resume, and restarts.
    let container = FakeContainer::with(&["tar"]);
    let tree = container.root().join("tree");
    std::fs::create_dir(&tree).unwrap();
    std::fs::write(tree.join("file"), "contents").unwrap();
    symlink("/etc/passwd", tree.join("link")).unwrap();
    // All four headers and contents, without the end marker.
    container.lose_connections(&[Some(Loss::Output(4 * 512))]);
    let (options, events) = options(3);
    let progress = progress();
    let to = scratch.path().join("to");
    let copied = copy_from(&container, "tree", &to, &options, &progress).await;
    let error = copied.unwrap_err();
    assert_eq!(error.to_string(), "one entry was not copied");
    assert_eq!((progress.bytes(), progress.entries()), (8, 3));
    let events = events.lock().unwrap();
    assert_eq!(restarts(&events).pop(), Some(ResumePoint::Start));
}

/// A container in which a file is rewritten before the given run of tar, with the same time.
fn with_rewritten_file(before: u32, file: &str) -> FakeContainer {
    let container = FakeContainer::with(&["cat", "cksum", "cp", "dd", "sh", "tail", "touch"]);
    let script = format!(
        "read -r n <runs
n=$((n + 1))
echo $n >runs
if [ $n = {before} ]; then cp new {file}; touch -d @1000000000 {file}; fi
exec {} \"$@\"",
        container.tar().display()
    );
    std::fs::write(container.root().join("runs"), "0\n").unwrap();
    container.add_script("tar", &script);
    container
}

#[tokio::test]
async fn no_file_is_assembled_from_two_versions() {
    let old = random_bytes(300_000);
    let inverted: Vec<u8> = old.iter().map(|byte| !byte).collect();
    let longer = random_bytes(300_512);
    // As large as before, or a block larger.
    let versions = [&inverted, &longer];
    for (new, before) in versions.into_iter().flat_map(|new| [(new, 2), (new, 3)]) {
        let scratch = ScratchDir::new();
        let container = with_rewritten_file(before, "tree/file");
        std::fs::write(container.root().join("new"), new).unwrap();
        let tree = container.root().join("tree");
        std::fs::create_dir(&tree).unwrap();
        std::fs::write(tree.join("file"), &old).unwrap();
        set_time(&tree.join("file"), 1_000_000_000);
        container.lose_connections(&[Some(Loss::Output(100_000))]);
        let (mut options, _) = options(1);
        let to = scratch.path().join("to");
        let file = to.join("file");
        // A file with its final name is one of the two versions.
        let is_one = {
            let (file, old, new) = (file.clone(), old.clone(), new.clone());
            move || std::fs::read(&file).is_ok_and(|found| found == old || found == new)
        };
        let looked = is_one.clone();
        options.on_event = Some(Arc::new(move |_| {
            assert!(looked() || !file.exists());
        }));
        copy_from(&container, "tree", &to, &options, &progress())
            .await
            .unwrap();
        assert!(is_one(), "{} bytes before run {before}", new.len());
        assert_eq!(listing(&to).len(), 1);
    }
}

#[tokio::test]
async fn a_server_error_is_not_a_missing_program() {
    let (container, scratch) = (FakeContainer::new(), ScratchDir::new());
    let from = scratch.write("file", "contents");
    container.refuse("unable to upgrade connection: container not found (\"app\")");
    for error in [
        download(&container, "file", &scratch.path().join("to"), 1).await,
        upload(&container, &from, "file", 1).await,
    ] {
        let error = error.unwrap_err();
        assert!(matches!(error, Error::NotRun { .. }), "{error}");
        let message = error.to_string();
        assert!(
            message.ends_with("container not found (\"app\")"),
            "{message}"
        );
    }
    // Nothing else was tried.
    let tried: Vec<_> = container
        .commands()
        .iter()
        .map(|it| it[0].clone())
        .collect();
    assert_eq!(tried, ["tar", "sh"]);
}
