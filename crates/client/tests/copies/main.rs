//! Copies to and from a container with a real tar, with connections lost at any byte.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod cancellation;
mod disk_space;
#[path = "../support/fake_container.rs"]
mod fake_container;
mod hostile;
mod protocols;
mod resume;
#[path = "../support/test_tree.rs"]
mod test_tree;
mod without_tar;

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::sync::{Arc, Mutex};

use fake_container::{FakeContainer, Loss, is_busybox};
use skewbridge_client::copy::{
    CopyEvent, Error, Options, Preserve, Progress, ResumePoint, Retries, copy_between, copy_from,
    copy_to,
};
use skewbridge_testkit::ScratchDir;
use test_tree::{TreeShape, create_tree, listing};

/// Options that record their events.
fn options(retries: u32) -> (Options, Arc<Mutex<Vec<CopyEvent>>>) {
    let events = Arc::new(Mutex::new(Vec::new()));
    let kept = events.clone();
    let options = Options {
        retries: Retries::AtMost(retries),
        on_event: Some(Arc::new(move |event| kept.lock().unwrap().push(event))),
        ..Options::default()
    };
    (options, events)
}

/// Where each retry continued.
fn restarts(events: &[CopyEvent]) -> Vec<ResumePoint> {
    let resume = events.iter().filter_map(|event| match event {
        CopyEvent::Retrying { from, .. } => Some(*from),
        _ => None,
    });
    resume.collect()
}

fn progress() -> Arc<Progress> {
    Arc::new(Progress::default())
}

async fn download(
    container: &FakeContainer,
    from: &str,
    to: &Path,
    retries: u32,
) -> Result<(), Error> {
    copy_from(container, from, to, &options(retries).0, &progress()).await
}

async fn upload(
    container: &FakeContainer,
    from: &Path,
    to: &str,
    retries: u32,
) -> Result<(), Error> {
    copy_to(container, from, to, &options(retries).0, &progress()).await
}

/// Asserts that no temporary file is left.
fn no_leftovers(container: &FakeContainer) {
    for (name, _) in listing(&container.root()) {
        assert!(!name.contains(".skewbridge-"), "{name} is left over");
    }
}

#[tokio::test]
async fn a_tree_is_downloaded_unchanged() {
    let (container, scratch) = (FakeContainer::new(), ScratchDir::new());
    create_tree(&container.root().join("tree"), TreeShape::Small);
    for from in [
        container.path("tree"),
        "tree".to_owned(),
        "./tree/".to_owned(),
    ] {
        let to = scratch.path().join("to");
        download(&container, &from, &to, 0).await.unwrap();
        assert_eq!(listing(&to), listing(&container.root().join("tree")));
        std::fs::remove_dir_all(to).unwrap();
    }
}

#[tokio::test]
async fn a_tree_is_uploaded_unchanged() {
    let (container, scratch) = (FakeContainer::new(), ScratchDir::new());
    let from = scratch.path().join("tree");
    create_tree(&from, TreeShape::Small);
    // To a new path, into a directory, and into a directory that already has it.
    upload(&container, &from, &container.path("new"), 0)
        .await
        .unwrap();
    assert_eq!(listing(&container.root().join("new")), listing(&from));
    std::fs::create_dir(container.root().join("dir")).unwrap();
    for _ in 0..2 {
        upload(&container, &from, "dir", 0).await.unwrap();
        assert_eq!(listing(&container.root().join("dir/tree")), listing(&from));
    }
    // Only its contents.
    std::fs::create_dir(container.root().join("flat")).unwrap();
    upload(&container, &from.join("."), "flat", 0)
        .await
        .unwrap();
    let found = listing(&container.root().join("flat"));
    assert_eq!(found, listing(&from));
    no_leftovers(&container);
}

#[tokio::test]
async fn targets_are_named_as_kubectl_names_them() {
    // The upload target, and the resulting path.
    let rows = [
        ("new", "new"),
        ("dir", "dir/file"),
        ("dir/", "dir/file"),
        (".", "file"),
        ("dir/other", "dir/other"),
    ];
    for (to, expected) in rows {
        let (container, scratch) = (FakeContainer::new(), ScratchDir::new());
        std::fs::create_dir(container.root().join("dir")).unwrap();
        let from = scratch.write("file", "contents");
        upload(&container, &from, to, 0).await.unwrap();
        let found = std::fs::read_to_string(container.root().join(expected));
        assert_eq!(found.unwrap(), "contents", "{to}");
        no_leftovers(&container);
        let back = scratch.path().join("back");
        download(&container, expected, &back, 0).await.unwrap();
        assert_eq!(std::fs::read_to_string(back).unwrap(), "contents");
    }
}

#[tokio::test]
async fn permissions_and_times_are_preserved_in_both_directions() {
    let (container, scratch) = (FakeContainer::new(), ScratchDir::new());
    let from = scratch.write("file", "contents");
    std::fs::set_permissions(&from, std::fs::Permissions::from_mode(0o751)).unwrap();
    let then = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_234_567_890);
    let file = std::fs::File::options().write(true).open(&from).unwrap();
    file.set_modified(then).unwrap();
    upload(&container, &from, "file", 0).await.unwrap();
    let back = scratch.path().join("back");
    download(&container, "file", &back, 0).await.unwrap();
    for path in [container.root().join("file"), back] {
        let status = path.metadata().unwrap();
        assert_eq!(status.mtime(), 1_234_567_890);
        // The umask may remove some.
        assert_eq!(status.mode() & 0o700, 0o700);
    }
    let plain = Options {
        preserve: Preserve::No,
        ..Options::default()
    };
    copy_to(&container, &from, "plain", &plain, &progress())
        .await
        .unwrap();
    let status = container.root().join("plain").metadata().unwrap();
    assert!(status.mtime() > 1_700_000_000);
}

#[tokio::test]
async fn a_connection_lost_at_any_byte_is_never_a_success() {
    let (container, scratch) = (FakeContainer::new(), ScratchDir::new());
    create_tree(&container.root().join("tree"), TreeShape::Tiny);
    let from = scratch.path().join("from");
    create_tree(&from, TreeShape::Tiny);
    // About the length of the shortest archive of it.
    for bytes in (0..5600).step_by(611) {
        let to = scratch.path().join("to");
        container.lose_connections(&[Some(Loss::Output(bytes))]);
        let error = download(&container, "tree", &to, 0).await.unwrap_err();
        assert!(
            matches!(error, Error::Disconnected { .. }),
            "{bytes}: {error}"
        );
        assert!(error.to_string().contains("--retries"), "{error}");
        // A file with its final name is complete.
        for (name, contents) in listing(&to) {
            assert!(!name.contains(".part"), "{bytes}: {name}");
            let whole = listing(&from);
            assert!(whole.contains(&(name, contents)), "{bytes}");
        }
        let _ = std::fs::remove_dir_all(to);
        // The first command is a probe.
        container.lose_connections(&[None, Some(Loss::Input(bytes))]);
        let error = upload(&container, &from, "new", 0).await.unwrap_err();
        assert!(
            matches!(error, Error::Disconnected { .. }),
            "{bytes}: {error}"
        );
        no_leftovers(&container);
        // Either the target does not exist, or all files arrived and only the exit status was lost.
        let new = container.root().join("new");
        if new.exists() {
            assert_eq!(listing(&new), listing(&from), "{bytes}");
            std::fs::remove_dir_all(&new).unwrap();
        }
        container.lose_connections(&[None, Some(Loss::Input(bytes))]);
        upload(&container, &from, "new", 1).await.unwrap();
        assert_eq!(listing(&new), listing(&from), "{bytes}");
        std::fs::remove_dir_all(&new).unwrap();
    }
}

#[tokio::test]
async fn an_upload_is_complete_only_when_the_container_confirms_it() {
    for (loss, name) in [
        (Loss::Everything, "nothing"),
        (Loss::ExitStatus, "everything"),
    ] {
        let (container, scratch) = (FakeContainer::new(), ScratchDir::new());
        let tree = scratch.path().join("tree");
        create_tree(&tree, TreeShape::Tiny);
        let file = scratch.write("file", b"a few bytes");
        for from in [&tree, &file] {
            // The first command is a probe.
            container.lose_connections(&[None, Some(loss)]);
            let error = upload(&container, from, name, 0).await.unwrap_err();
            assert!(
                matches!(error, Error::Disconnected { .. }),
                "{loss:?}: {error}"
            );
            no_leftovers(&container);
            let to = container.root().join(name);
            let _ = std::fs::remove_dir_all(&to);
            let _ = std::fs::remove_file(&to);

            container.lose_connections(&[None, Some(loss)]);
            upload(&container, from, name, 1).await.unwrap();
            assert_eq!(listing(&to), listing(from), "{loss:?}");
            no_leftovers(&container);
            let _ = std::fs::remove_dir_all(&to);
            let _ = std::fs::remove_file(&to);
        }
    }
}

#[tokio::test]
async fn a_completed_copy_between_pods_is_not_repeated() {
    for loss in [Loss::Everything, Loss::ExitStatus] {
        let (source, target) = (FakeContainer::new(), FakeContainer::new());
        create_tree(&source.root().join("tree"), TreeShape::Tiny);
        target.lose_connections(&[None, Some(loss)]);
        let (options, _) = options(1);
        copy_between((&source, "tree"), (&target, "new"), &options, &progress())
            .await
            .unwrap();
        let (new, tree) = (target.root().join("new"), source.root().join("tree"));
        assert_eq!(listing(&new), listing(&tree), "{loss:?}");
        no_leftovers(&target);
    }
}

#[tokio::test]
async fn interrupted_downloads_are_resumed() {
    for bytes in [0, 100, 512, 700, 1024, 1500, 2048, 3000, 4096, 4608, 5400] {
        let (container, scratch) = (FakeContainer::new(), ScratchDir::new());
        create_tree(&container.root().join("tree"), TreeShape::Tiny);
        let to = scratch.path().join("to");
        container.lose_connections(&[Some(Loss::Output(bytes)), Some(Loss::Output(1200))]);
        let (options, events) = options(5);
        copy_from(&container, "tree", &to, &options, &progress())
            .await
            .unwrap();
        assert_eq!(
            listing(&to),
            listing(&container.root().join("tree")),
            "{bytes}"
        );
        let events = events.lock().unwrap();
        assert!(!events.is_empty(), "{bytes}");
        let first = &events[0];
        let keeps_running = matches!(
            first,
            CopyEvent::Retrying {
                from: ResumePoint::Byte(_),
                ..
            }
        );
        assert_eq!(keeps_running, bytes >= 512, "{first}");
        assert!(events.len() <= 2 || is_busybox(), "{events:?}");
    }
}

#[tokio::test]
async fn a_large_file_is_resumed_in_its_middle_in_both_directions() {
    let (container, scratch) = (FakeContainer::new(), ScratchDir::new());
    let contents = test_tree::random_bytes(12 << 20);
    let from = scratch.write("large", &contents);
    container.lose_connections(&[None, Some(Loss::Input(6 << 20))]);
    let (options, events) = options(1);
    copy_to(&container, &from, "large", &options, &progress())
        .await
        .unwrap();
    assert!(std::fs::read(container.root().join("large")).unwrap() == contents);
    assert_eq!(
        container.root().join("large").metadata().unwrap().mtime(),
        from.metadata().unwrap().mtime()
    );
    let appended = container
        .commands()
        .into_iter()
        .any(|it| it[2].contains("cat >>"));
    assert!(appended || is_busybox(), "{:?}", events.lock().unwrap());
    no_leftovers(&container);

    let to = scratch.path().join("back");
    container.lose_connections(&[Some(Loss::Output(6 << 20))]);
    events.lock().unwrap().clear();
    copy_from(&container, "large", &to, &options, &progress())
        .await
        .unwrap();
    assert!(std::fs::read(&to).unwrap() == contents);
    let events = events.lock().unwrap();
    let Some(CopyEvent::Retrying {
        from: ResumePoint::Byte(at),
        ..
    }) = events.first()
    else {
        panic!("{events:?}");
    };
    assert_eq!(*at, 6 << 20);
    // And it was resumed.
    assert!(events.len() == 1 || is_busybox(), "{events:?}");
}

#[tokio::test]
async fn a_source_changed_between_two_attempts_is_copied_from_the_start() {
    let (container, scratch) = (FakeContainer::new(), ScratchDir::new());
    let large = container.root().join("large");
    let contents = test_tree::random_bytes(1 << 20);
    std::fs::write(&large, &contents).unwrap();
    let to = scratch.path().join("to");
    container.lose_connections(&[Some(Loss::Output(600_000))]);
    let (mut options, _) = options(1);
    let changed = contents.iter().map(|byte| !byte).collect::<Vec<_>>();
    let (path, bytes) = (large.clone(), changed.clone());
    let events = Arc::new(Mutex::new(Vec::new()));
    let kept = events.clone();
    options.on_event = Some(Arc::new(move |event| {
        // The same size, but another time.
        std::fs::write(&path, &bytes).unwrap();
        let later = std::time::SystemTime::now() + std::time::Duration::from_mins(1);
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        file.set_modified(later).unwrap();
        kept.lock().unwrap().push(event);
    }));
    copy_from(&container, "large", &to, &options, &progress())
        .await
        .unwrap();
    assert!(std::fs::read(to).unwrap() == changed);
    let last = events.lock().unwrap().last().unwrap().to_string();
    assert!(last.ends_with("restarting"), "{last}");
}

#[tokio::test]
async fn ten_thousand_files_survive_a_lost_connection_in_both_directions() {
    let (container, scratch) = (FakeContainer::new(), ScratchDir::new());
    let from = scratch.path().join("many");
    create_tree(&from, TreeShape::Many);
    let whole = listing(&from);
    assert!(whole.len() > 10_000);
    let half = 8 << 20;
    container.lose_connections(&[None, Some(Loss::Input(half))]);
    let (options, events) = options(1);
    copy_to(&container, &from, "many", &options, &progress())
        .await
        .unwrap();
    assert!(listing(&container.root().join("many")) == whole);
    {
        let events = events.lock().unwrap();
        let Some(CopyEvent::Retrying {
            from: ResumePoint::SkippingFiles(complete),
            ..
        }) = events.first()
        else {
            panic!("{events:?}");
        };
        assert!(*complete > 1000, "{complete}");
    }
    no_leftovers(&container);
    let to = scratch.path().join("back");
    container.lose_connections(&[Some(Loss::Output(half))]);
    copy_from(&container, "many", &to, &options, &progress())
        .await
        .unwrap();
    assert!(listing(&to) == whole);
}

#[tokio::test]
async fn a_tree_is_copied_between_pods() {
    let (one, other) = (FakeContainer::new(), FakeContainer::new());
    create_tree(&one.root().join("tree"), TreeShape::Small);
    std::fs::create_dir(other.root().join("dir")).unwrap();
    let (options, _) = options(1);
    for (to, found) in [("new", "new"), ("dir", "dir/tree"), ("dir", "dir/tree")] {
        other.lose_connections(&[None, Some(Loss::Input(2000))]);
        copy_between((&one, "tree"), (&other, to), &options, &progress())
            .await
            .unwrap();
        assert_eq!(
            listing(&other.root().join(found)),
            listing(&one.root().join("tree"))
        );
    }
    no_leftovers(&other);
}

#[tokio::test]
async fn without_tar_single_files_are_copied_with_cat() {
    let scratch = ScratchDir::new();
    let container = FakeContainer::with(&["cat", "wc", "sh", "mv", "chmod", "rm"]);
    let from = scratch.write("file", "contents");
    upload(&container, &from, "file", 0).await.unwrap();
    let to = scratch.path().join("to");
    download(&container, "file", &to, 0).await.unwrap();
    assert_eq!(std::fs::read_to_string(to).unwrap(), "contents");
    no_leftovers(&container);
    // A truncated file is not a success.
    container.lose_connections(&[None, Some(Loss::Input(3))]);
    let error = upload(&container, &from, "cut", 0).await.unwrap_err();
    assert!(matches!(error, Error::Disconnected { .. }), "{error}");
    assert!(!container.root().join("cut").exists());
    no_leftovers(&container);
    if is_busybox() {
        return;
    }
    // Trees need tar.
    std::fs::create_dir(container.root().join("dir")).unwrap();
    let tree = scratch.path().join("tree");
    create_tree(&tree, TreeShape::Tiny);
    let errors = [
        download(&container, "dir/", &scratch.path().join("x"), 0).await,
        upload(&container, &tree, "y", 0).await,
    ];
    for error in errors {
        let error = error.unwrap_err().to_string();
        assert!(error.contains("no tar in the container"), "{error}");
    }
}

#[tokio::test]
async fn with_tar_alone_everything_can_be_copied() {
    let scratch = ScratchDir::new();
    let container = FakeContainer::with(&["tar"]);
    let from = scratch.path().join("tree");
    create_tree(&from, TreeShape::Small);
    upload(&container, &from, "new", 0).await.unwrap();
    assert_eq!(listing(&container.root().join("new")), listing(&from));
    // Interrupted copies restart.
    let to = scratch.path().join("to");
    container.lose_connections(&[Some(Loss::Output(3000))]);
    download(&container, "new", &to, 3).await.unwrap();
    assert_eq!(listing(&to), listing(&from));
    let nothing = FakeContainer::with(&[]);
    for error in [
        download(&nothing, "new", &scratch.path().join("x"), 0).await,
        upload(&nothing, &from, "new", 0).await,
    ] {
        let error = error.unwrap_err().to_string();
        assert!(
            error.contains("there is no tar in the container"),
            "{error}"
        );
    }
}

#[tokio::test]
async fn errors_describe_what_went_wrong() {
    let (container, scratch) = (FakeContainer::new(), ScratchDir::new());
    let file = scratch.write("file", "contents");
    let message = |result: Result<(), Error>| result.unwrap_err().to_string();
    let missing = message(download(&container, "nowhere", &scratch.path().join("x"), 0).await);
    assert!(missing.contains("No such file"), "{missing}");
    let missing = message(upload(&container, &scratch.path().join("nowhere"), "x", 0).await);
    assert!(
        missing.ends_with("nowhere doesn't exist in local filesystem"),
        "{missing}"
    );
    let missing = message(upload(&container, &file, "no/such/dir", 0).await);
    assert!(
        missing.contains("tar in the container ended with"),
        "{missing}"
    );
    // A local directory is in the way.
    std::fs::create_dir(container.root().join("dir")).unwrap();
    let local = message(download(&container, "dir", &file, 0).await);
    assert!(local.contains("cannot make the directory"), "{local}");
    let remote = FakeContainer::new();
    std::fs::create_dir_all(remote.root().join("dir/file")).unwrap();
    let taken = message(upload(&remote, &file, "dir", 0).await);
    assert!(taken.contains("is a directory in the container"), "{taken}");
    // An error of the container's tar.
    let written = message(upload(&container, &file, "/proc/nowhere", 0).await);
    assert!(written.contains("in the container"), "{written}");
}
