//! Copies in and out of a container that has a real tar, with cuts at any byte.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod again;
mod hostile;
mod machine;
mod pods;
mod room;
mod tree;

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::sync::{Arc, Mutex};

use machine::{Loss, Machine, is_busybox};
use skewbridge_client::copy::{
    CopyEvent, Error, Options, Preserve, Progress, ResumePoint, Retries, copy_between, copy_from,
    copy_to,
};
use skewbridge_testkit::ScratchDir;
use tree::{Shape, listing, plant};

/// Options that keep what they are told.
fn options(retries: u32) -> (Options, Arc<Mutex<Vec<CopyEvent>>>) {
    let on_event = Arc::new(Mutex::new(Vec::new()));
    let kept = on_event.clone();
    let options = Options {
        retries: Retries::AtMost(retries),
        on_event: Some(Arc::new(move |notice| kept.lock().unwrap().push(notice))),
        ..Options::default()
    };
    (options, on_event)
}

fn progress() -> Arc<Progress> {
    Arc::new(Progress::default())
}

async fn download(machine: &Machine, from: &str, to: &Path, retries: u32) -> Result<(), Error> {
    copy_from(machine, from, to, &options(retries).0, &progress()).await
}

async fn upload(machine: &Machine, from: &Path, to: &str, retries: u32) -> Result<(), Error> {
    copy_to(machine, from, to, &options(retries).0, &progress()).await
}

/// What people see of a container: no names of ours.
fn no_leftovers(machine: &Machine) {
    for (name, _) in listing(&machine.root()) {
        assert!(!name.contains(".skewbridge-"), "{name} is left over");
    }
}

#[tokio::test]
async fn a_tree_comes_out_as_it_is() {
    let (machine, scratch) = (Machine::new(), ScratchDir::new());
    plant(&machine.root().join("tree"), Shape::Small);
    for from in [
        machine.path("tree"),
        "tree".to_owned(),
        "./tree/".to_owned(),
    ] {
        let to = scratch.path().join("to");
        download(&machine, &from, &to, 0).await.unwrap();
        assert_eq!(listing(&to), listing(&machine.root().join("tree")));
        std::fs::remove_dir_all(to).unwrap();
    }
}

#[tokio::test]
async fn a_tree_goes_in_as_it_is() {
    let (machine, scratch) = (Machine::new(), ScratchDir::new());
    let from = scratch.path().join("tree");
    plant(&from, Shape::Small);
    // New, into a directory, and into one where it is already.
    upload(&machine, &from, &machine.path("new"), 0)
        .await
        .unwrap();
    assert_eq!(listing(&machine.root().join("new")), listing(&from));
    std::fs::create_dir(machine.root().join("dir")).unwrap();
    for _ in 0..2 {
        upload(&machine, &from, "dir", 0).await.unwrap();
        assert_eq!(listing(&machine.root().join("dir/tree")), listing(&from));
    }
    // What is in it alone.
    std::fs::create_dir(machine.root().join("flat")).unwrap();
    upload(&machine, &from.join("."), "flat", 0).await.unwrap();
    let found = listing(&machine.root().join("flat"));
    assert_eq!(found, listing(&from));
    no_leftovers(&machine);
}

#[tokio::test]
async fn files_are_called_as_kubectl_calls_them() {
    // To the pod: target, where it is then.
    let rows = [
        ("new", "new"),
        ("dir", "dir/file"),
        ("dir/", "dir/file"),
        (".", "file"),
        ("dir/other", "dir/other"),
    ];
    for (to, expected) in rows {
        let (machine, scratch) = (Machine::new(), ScratchDir::new());
        std::fs::create_dir(machine.root().join("dir")).unwrap();
        let from = scratch.write("file", "contents");
        upload(&machine, &from, to, 0).await.unwrap();
        let found = std::fs::read_to_string(machine.root().join(expected));
        assert_eq!(found.unwrap(), "contents", "{to}");
        no_leftovers(&machine);
        let back = scratch.path().join("back");
        download(&machine, expected, &back, 0).await.unwrap();
        assert_eq!(std::fs::read_to_string(back).unwrap(), "contents");
    }
}

#[tokio::test]
async fn permissions_and_times_go_both_ways() {
    let (machine, scratch) = (Machine::new(), ScratchDir::new());
    let from = scratch.write("file", "contents");
    std::fs::set_permissions(&from, std::fs::Permissions::from_mode(0o751)).unwrap();
    let then = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_234_567_890);
    let file = std::fs::File::options().write(true).open(&from).unwrap();
    file.set_modified(then).unwrap();
    upload(&machine, &from, "file", 0).await.unwrap();
    let back = scratch.path().join("back");
    download(&machine, "file", &back, 0).await.unwrap();
    for path in [machine.root().join("file"), back] {
        let status = path.metadata().unwrap();
        assert_eq!(status.mtime(), 1_234_567_890);
        // A umask may take some away.
        assert_eq!(status.mode() & 0o700, 0o700);
    }
    let plain = Options {
        preserve: Preserve::No,
        ..Options::default()
    };
    copy_to(&machine, &from, "plain", &plain, &progress())
        .await
        .unwrap();
    let status = machine.root().join("plain").metadata().unwrap();
    assert!(status.mtime() > 1_700_000_000);
}

#[tokio::test]
async fn a_cut_at_any_byte_is_never_a_success() {
    let (machine, scratch) = (Machine::new(), ScratchDir::new());
    plant(&machine.root().join("tree"), Shape::Tiny);
    let from = scratch.path().join("from");
    plant(&from, Shape::Tiny);
    // About as long as the shortest archive of it.
    for bytes in (0..5600).step_by(611) {
        let to = scratch.path().join("to");
        machine.lose(&[Some(Loss::Output(bytes))]);
        let error = download(&machine, "tree", &to, 0).await.unwrap_err();
        assert!(
            matches!(error, Error::Disconnected { .. }),
            "{bytes}: {error}"
        );
        assert!(error.to_string().contains("--retries"), "{error}");
        // What has its name is whole.
        for (name, contents) in listing(&to) {
            assert!(!name.contains(".part"), "{bytes}: {name}");
            let whole = listing(&from);
            assert!(whole.contains(&(name, contents)), "{bytes}");
        }
        let _ = std::fs::remove_dir_all(to);
        // The first command is a probe.
        machine.lose(&[None, Some(Loss::Input(bytes))]);
        let error = upload(&machine, &from, "new", 0).await.unwrap_err();
        assert!(
            matches!(error, Error::Disconnected { .. }),
            "{bytes}: {error}"
        );
        no_leftovers(&machine);
        // Either nothing has its name, or everything came and only the answer did not.
        let new = machine.root().join("new");
        if new.exists() {
            assert_eq!(listing(&new), listing(&from), "{bytes}");
            std::fs::remove_dir_all(&new).unwrap();
        }
        machine.lose(&[None, Some(Loss::Input(bytes))]);
        upload(&machine, &from, "new", 1).await.unwrap();
        assert_eq!(listing(&new), listing(&from), "{bytes}");
        std::fs::remove_dir_all(&new).unwrap();
    }
}

#[tokio::test]
async fn what_was_sent_is_not_there_until_the_container_says_so() {
    for (loss, name) in [(Loss::Everything, "nothing"), (Loss::Answer, "everything")] {
        let (machine, scratch) = (Machine::new(), ScratchDir::new());
        let tree = scratch.path().join("tree");
        plant(&tree, Shape::Tiny);
        let file = scratch.write("file", b"a few bytes");
        for from in [&tree, &file] {
            // The first command is a probe.
            machine.lose(&[None, Some(loss)]);
            let error = upload(&machine, from, name, 0).await.unwrap_err();
            assert!(
                matches!(error, Error::Disconnected { .. }),
                "{loss:?}: {error}"
            );
            no_leftovers(&machine);
            let to = machine.root().join(name);
            let _ = std::fs::remove_dir_all(&to);
            let _ = std::fs::remove_file(&to);

            machine.lose(&[None, Some(loss)]);
            upload(&machine, from, name, 1).await.unwrap();
            assert_eq!(listing(&to), listing(from), "{loss:?}");
            no_leftovers(&machine);
            let _ = std::fs::remove_dir_all(&to);
            let _ = std::fs::remove_file(&to);
        }
    }
}

#[tokio::test]
async fn what_another_pod_was_sent_is_in_its_place_once() {
    for loss in [Loss::Everything, Loss::Answer] {
        let (source, target) = (Machine::new(), Machine::new());
        plant(&source.root().join("tree"), Shape::Tiny);
        target.lose(&[None, Some(loss)]);
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
async fn downloads_go_on_where_they_were_cut() {
    for bytes in [0, 100, 512, 700, 1024, 1500, 2048, 3000, 4096, 4608, 5400] {
        let (machine, scratch) = (Machine::new(), ScratchDir::new());
        plant(&machine.root().join("tree"), Shape::Tiny);
        let to = scratch.path().join("to");
        machine.lose(&[Some(Loss::Output(bytes)), Some(Loss::Output(1200))]);
        let (options, on_event) = options(5);
        copy_from(&machine, "tree", &to, &options, &progress())
            .await
            .unwrap();
        assert_eq!(
            listing(&to),
            listing(&machine.root().join("tree")),
            "{bytes}"
        );
        let on_event = on_event.lock().unwrap();
        assert!(!on_event.is_empty(), "{bytes}");
        let first = &on_event[0];
        let goes_on = matches!(
            first,
            CopyEvent::Retrying {
                from: ResumePoint::Byte(_),
                ..
            }
        );
        assert_eq!(goes_on, bytes >= 512, "{first}");
        assert!(on_event.len() <= 2 || is_busybox(), "{on_event:?}");
    }
}

#[tokio::test]
async fn a_large_file_goes_on_in_its_middle_both_ways() {
    let (machine, scratch) = (Machine::new(), ScratchDir::new());
    let contents = tree::noise(12 << 20);
    let from = scratch.write("large", &contents);
    machine.lose(&[None, Some(Loss::Input(6 << 20))]);
    let (options, on_event) = options(1);
    copy_to(&machine, &from, "large", &options, &progress())
        .await
        .unwrap();
    assert!(std::fs::read(machine.root().join("large")).unwrap() == contents);
    assert_eq!(
        machine.root().join("large").metadata().unwrap().mtime(),
        from.metadata().unwrap().mtime()
    );
    let appended = machine
        .commands()
        .into_iter()
        .any(|it| it[2].contains("cat >>"));
    assert!(appended || is_busybox(), "{:?}", on_event.lock().unwrap());
    no_leftovers(&machine);

    let to = scratch.path().join("back");
    machine.lose(&[Some(Loss::Output(6 << 20))]);
    on_event.lock().unwrap().clear();
    copy_from(&machine, "large", &to, &options, &progress())
        .await
        .unwrap();
    assert!(std::fs::read(&to).unwrap() == contents);
    let on_event = on_event.lock().unwrap();
    let Some(CopyEvent::Retrying {
        from: ResumePoint::Byte(at),
        ..
    }) = on_event.first()
    else {
        panic!("{on_event:?}");
    };
    assert_eq!(*at, 6 << 20);
    // And it did go on.
    assert!(on_event.len() == 1 || is_busybox(), "{on_event:?}");
}

#[tokio::test]
async fn a_source_that_changed_between_two_tries_is_copied_from_its_beginning() {
    let (machine, scratch) = (Machine::new(), ScratchDir::new());
    let large = machine.root().join("large");
    let contents = tree::noise(1 << 20);
    std::fs::write(&large, &contents).unwrap();
    let to = scratch.path().join("to");
    machine.lose(&[Some(Loss::Output(600_000))]);
    let (mut options, _) = options(1);
    let changed = contents.iter().map(|byte| !byte).collect::<Vec<_>>();
    let (path, bytes) = (large.clone(), changed.clone());
    let on_event = Arc::new(Mutex::new(Vec::new()));
    let kept = on_event.clone();
    options.on_event = Some(Arc::new(move |notice| {
        // It is the same size, and has another time.
        std::fs::write(&path, &bytes).unwrap();
        let later = std::time::SystemTime::now() + std::time::Duration::from_mins(1);
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        file.set_modified(later).unwrap();
        kept.lock().unwrap().push(notice);
    }));
    copy_from(&machine, "large", &to, &options, &progress())
        .await
        .unwrap();
    assert!(std::fs::read(to).unwrap() == changed);
    let last = on_event.lock().unwrap().last().unwrap().to_string();
    assert!(last.ends_with("beginning again"), "{last}");
}

#[tokio::test]
async fn ten_thousand_files_cut_half_way_come_and_go() {
    let (machine, scratch) = (Machine::new(), ScratchDir::new());
    let from = scratch.path().join("many");
    plant(&from, Shape::Many);
    let whole = listing(&from);
    assert!(whole.len() > 10_000);
    let half = 8 << 20;
    machine.lose(&[None, Some(Loss::Input(half))]);
    let (options, on_event) = options(1);
    copy_to(&machine, &from, "many", &options, &progress())
        .await
        .unwrap();
    assert!(listing(&machine.root().join("many")) == whole);
    {
        let on_event = on_event.lock().unwrap();
        let Some(CopyEvent::Retrying {
            from: ResumePoint::SkippingFiles(there),
            ..
        }) = on_event.first()
        else {
            panic!("{on_event:?}");
        };
        assert!(*there > 1000, "{there}");
    }
    no_leftovers(&machine);
    let to = scratch.path().join("back");
    machine.lose(&[Some(Loss::Output(half))]);
    copy_from(&machine, "many", &to, &options, &progress())
        .await
        .unwrap();
    assert!(listing(&to) == whole);
}

#[tokio::test]
async fn pods_are_copied_between() {
    let (one, other) = (Machine::new(), Machine::new());
    plant(&one.root().join("tree"), Shape::Small);
    std::fs::create_dir(other.root().join("dir")).unwrap();
    let (options, _) = options(1);
    for (to, found) in [("new", "new"), ("dir", "dir/tree"), ("dir", "dir/tree")] {
        other.lose(&[None, Some(Loss::Input(2000))]);
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
async fn without_tar_single_files_are_copied_by_cat() {
    let scratch = ScratchDir::new();
    let machine = Machine::with(&["cat", "wc", "sh", "mv", "chmod", "rm"]);
    let from = scratch.write("file", "contents");
    upload(&machine, &from, "file", 0).await.unwrap();
    let to = scratch.path().join("to");
    download(&machine, "file", &to, 0).await.unwrap();
    assert_eq!(std::fs::read_to_string(to).unwrap(), "contents");
    no_leftovers(&machine);
    // A cut is no end of a file.
    machine.lose(&[None, Some(Loss::Input(3))]);
    let error = upload(&machine, &from, "cut", 0).await.unwrap_err();
    assert!(matches!(error, Error::Disconnected { .. }), "{error}");
    assert!(!machine.root().join("cut").exists());
    no_leftovers(&machine);
    if is_busybox() {
        return;
    }
    // Trees need it.
    std::fs::create_dir(machine.root().join("dir")).unwrap();
    let tree = scratch.path().join("tree");
    plant(&tree, Shape::Tiny);
    let errors = [
        download(&machine, "dir/", &scratch.path().join("x"), 0).await,
        upload(&machine, &tree, "y", 0).await,
    ];
    for error in errors {
        let error = error.unwrap_err().to_string();
        assert!(error.contains("no tar in the container"), "{error}");
    }
}

#[tokio::test]
async fn with_tar_alone_everything_is_copied() {
    let scratch = ScratchDir::new();
    let machine = Machine::with(&["tar"]);
    let from = scratch.path().join("tree");
    plant(&from, Shape::Small);
    upload(&machine, &from, "new", 0).await.unwrap();
    assert_eq!(listing(&machine.root().join("new")), listing(&from));
    // Broken copies begin again.
    let to = scratch.path().join("to");
    machine.lose(&[Some(Loss::Output(3000))]);
    download(&machine, "new", &to, 3).await.unwrap();
    assert_eq!(listing(&to), listing(&from));
    let nothing = Machine::with(&[]);
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
async fn what_goes_wrong_is_told() {
    let (machine, scratch) = (Machine::new(), ScratchDir::new());
    let file = scratch.write("file", "contents");
    let told = |result: Result<(), Error>| result.unwrap_err().to_string();
    let missing = told(download(&machine, "nowhere", &scratch.path().join("x"), 0).await);
    assert!(missing.contains("No such file"), "{missing}");
    let missing = told(upload(&machine, &scratch.path().join("nowhere"), "x", 0).await);
    assert!(
        missing.ends_with("nowhere doesn't exist in local filesystem"),
        "{missing}"
    );
    let missing = told(upload(&machine, &file, "no/such/dir", 0).await);
    assert!(
        missing.contains("tar in the container ended with"),
        "{missing}"
    );
    // Here something is in the way.
    std::fs::create_dir(machine.root().join("dir")).unwrap();
    let here = told(download(&machine, "dir", &file, 0).await);
    assert!(here.contains("cannot make the directory"), "{here}");
    let there = Machine::new();
    std::fs::create_dir_all(there.root().join("dir/file")).unwrap();
    let taken = told(upload(&there, &file, "dir", 0).await);
    assert!(taken.contains("is a directory in the container"), "{taken}");
    // The disk of the container is full, as its tar has it.
    let written = told(upload(&machine, &file, "/proc/nowhere", 0).await);
    assert!(written.contains("in the container"), "{written}");
}
