//! Containers with a malicious tar.

use std::path::Path;
use std::sync::Arc;

use skewbridge_client::copy::tar::{Entry, Kind, padding, write_end, write_entry};
use skewbridge_client::copy::{Error, Options, Progress, copy_between, copy_from};
use skewbridge_testkit::ScratchDir;

use crate::fake_container::FakeContainer;
use crate::test_tree::listing;

fn entry(archive: &mut Vec<u8>, name: &str, kind: Kind, link: &str) {
    let entry = Entry {
        link: link.into(),
        ..Entry::new(name, kind)
    };
    write_entry(&entry, archive);
}

fn file(archive: &mut Vec<u8>, name: &str, contents: &[u8]) {
    let size = contents.len() as u64;
    let entry = Entry {
        size,
        ..Entry::new(name, Kind::File)
    };
    write_entry(&entry, archive);
    archive.extend_from_slice(contents);
    archive.extend_from_slice(padding(size));
}

/// A container that sends this archive of `top`, and then the output of a script.
fn malicious_container(archive: &[u8], after: &str) -> FakeContainer {
    let container = FakeContainer::with(&["cat", "sh"]);
    std::fs::write(container.root().join("archive"), archive).unwrap();
    container.add_script("tar", &format!("cat archive\n{after}"));
    container
}

/// Attacks that try to write to `outside`.
fn archives(outside: &Path) -> Vec<(&'static str, Vec<u8>, &'static str)> {
    let absolute = outside.join("evil").display().to_string();
    let attack = |act: &dyn Fn(&mut Vec<u8>)| {
        let mut archive = Vec::new();
        entry(&mut archive, "./top/", Kind::Directory, "");
        act(&mut archive);
        write_end(&mut archive);
        archive
    };
    vec![
        (
            "a parent",
            attack(&|it| file(it, "./top/../../evil", b"x")),
            "leads out of the target",
        ),
        (
            "an absolute name",
            attack(&|it| file(it, &absolute, b"x")),
            "is absolute",
        ),
        (
            "a file through a symlink",
            attack(&|it| {
                entry(it, "top/link", Kind::Symlink, "deeper");
                file(it, "top/link/evil", b"x");
            }),
            "not followed",
        ),
        (
            "a symlink to the outside, and a hard link to it",
            attack(&|it| {
                entry(it, "top/link", Kind::Symlink, "/etc/passwd");
                entry(it, "top/hard", Kind::HardLink, "top/../../evil");
            }),
            "leads out of the target",
        ),
        (
            "devices",
            attack(&|it| {
                entry(it, "top/null", Kind::Character, "");
                entry(it, "top/disk", Kind::Block, "");
                entry(it, "top/pipe", Kind::Fifo, "");
                entry(it, "top/out", Kind::Symlink, "../../evil");
            }),
            "4 entries were not copied",
        ),
        (
            "rubbish",
            b"this is not an archive".repeat(100),
            "tar contents corrupted",
        ),
    ]
}

#[tokio::test]
async fn no_archive_can_write_outside_of_the_target() {
    let outside = ScratchDir::new();
    for (what, archive, expected) in archives(outside.path()) {
        let scratch = ScratchDir::new();
        let to = scratch.path().join("a/b/target");
        let container = malicious_container(&archive, "");
        let progress = Arc::new(Progress::default());
        let result = copy_from(&container, "top", &to, &Options::default(), &progress).await;
        let error = result.expect_err(what).to_string();
        assert!(error.contains(expected), "{what}: {error}");
        for (name, _) in listing(scratch.path()) {
            assert!(!name.contains("evil"), "{what}: {name}");
            assert!(!name.contains(".part"), "{what}: {name}");
        }
        assert!(listing(outside.path()).is_empty(), "{what}");
    }
}

#[tokio::test]
async fn a_pod_to_pod_copy_rejects_the_same_archives() {
    let outside = ScratchDir::new();
    for (what, archive, expected) in archives(outside.path()) {
        let other = FakeContainer::new();
        let container = malicious_container(&archive, "");
        let (options, progress) = (Options::default(), Arc::new(Progress::default()));
        let result = copy_between((&container, "top"), (&other, "new"), &options, &progress).await;
        let error = result.expect_err(what).to_string();
        assert!(error.contains(expected), "{what}: {error}");
        for (name, _) in listing(&other.root()) {
            assert!(!name.contains("evil"), "{what}: {name}");
        }
        assert!(listing(outside.path()).is_empty(), "{what}");
    }
}

#[tokio::test]
async fn file_contents_are_never_headers_for_the_tar_of_another_pod() {
    let mut inner = Vec::new();
    file(&mut inner, "../../evil", b"x");
    write_end(&mut inner);
    let mut archive = Vec::new();
    file(&mut archive, "top", &inner);
    write_end(&mut archive);
    let other = FakeContainer::new();
    // An existing target directory has no entry of its own.
    std::fs::create_dir_all(other.root().join("dir/top")).unwrap();
    let container = malicious_container(&archive, "");
    let (options, progress) = (Options::default(), Arc::new(Progress::default()));
    let result = copy_between((&container, "top"), (&other, "dir"), &options, &progress).await;
    let error = result.unwrap_err().to_string();
    assert!(error.contains("is a directory in the container"), "{error}");
    for (name, _) in listing(&other.root()) {
        assert!(!name.contains("evil"), "{name}");
    }
}

#[tokio::test]
async fn an_endless_file_is_rejected_before_the_disk_is_full() {
    let mut archive = Vec::new();
    let zeros = Entry {
        size: 10 << 20,
        ..Entry::new("top", Kind::File)
    };
    write_entry(&zeros, &mut archive);
    let scratch = ScratchDir::new();
    let container = malicious_container(&archive, "exec cat /dev/zero");
    let options = Options {
        max_bytes: Some(1 << 20),
        ..Options::default()
    };
    let progress = Arc::new(Progress::default());
    let to = scratch.path().join("zeros");
    let error = copy_from(&container, "top", &to, &options, &progress)
        .await
        .unwrap_err();
    assert!(matches!(error, Error::NoSpace { .. }), "{error}");
    assert_eq!(progress.bytes(), 0);
    assert!(listing(scratch.path()).is_empty());
}

#[tokio::test]
async fn an_archive_without_its_end_marker_is_not_a_success() {
    let mut archive = Vec::new();
    file(&mut archive, "top", b"contents");
    let container = malicious_container(&archive, "exit 0");
    let scratch = ScratchDir::new();
    let (options, progress) = (Options::default(), Arc::new(Progress::default()));
    let to = scratch.path().join("to");
    let error = copy_from(&container, "top", &to, &options, &progress)
        .await
        .unwrap_err();
    assert!(error.to_string().contains("has no end"), "{error}");
    // A failing tar is reported although the archive is complete.
    write_end(&mut archive);
    let container = malicious_container(
        &archive,
        "echo 'tar: top: file changed as we read it' >&2; exit 1",
    );
    let error = copy_from(&container, "top", &to, &options, &progress)
        .await
        .unwrap_err();
    let expected =
        "tar in the container ended with exit code 1: tar: top: file changed as we read it";
    assert_eq!(error.to_string(), expected);
}
