//! Containers without tar.

use std::sync::Arc;

use skewbridge_client::copy::{CopyEvent, Error, ResumePoint, copy_from, copy_to};
use skewbridge_testkit::ScratchDir;

use crate::fake_container::{FakeContainer, Loss, is_busybox};
use crate::test_tree::{listing, random_bytes};
use crate::{download, no_leftovers, options, progress, restarts};

/// Programs of a container without tar.
const WITHOUT_TAR: [&str; 6] = ["cat", "wc", "sh", "mv", "chmod", "rm"];

#[tokio::test]
async fn a_download_resumes() {
    if is_busybox() {
        return;
    }
    let scratch = ScratchDir::new();
    let programs = [&WITHOUT_TAR[..], &["tail", "cksum"]].concat();
    let container = FakeContainer::with(&programs);
    let contents = random_bytes(300_000);
    std::fs::write(container.root().join("file"), &contents).unwrap();
    // tar, wc, cat; then twice cksum and tail. The last one loses only its exit status.
    let parts = [100_000, 50_000, 150_000].map(|bytes| Some(Loss::Output(bytes)));
    container.lose_connections(&[None, None, parts[0], None, parts[1], None, parts[2]]);
    let (options, events) = options(3);
    let (to, progress) = (scratch.path().join("to"), progress());
    copy_from(&container, "file", &to, &options, &progress)
        .await
        .unwrap();
    assert!(std::fs::read(to).unwrap() == contents);
    assert_eq!((progress.bytes(), progress.retries()), (300_000, 3));
    let events = events.lock().unwrap();
    let expected = [100_000, 150_000, 300_000].map(ResumePoint::Byte);
    assert_eq!(restarts(&events), expected);
}

#[tokio::test]
async fn no_file_is_assembled_from_two_versions() {
    if is_busybox() {
        return;
    }
    // With the programs for resuming, and without.
    for more in [&["tail", "cksum"][..], &["cksum"], &["tail"], &[]] {
        let scratch = ScratchDir::new();
        let container = FakeContainer::with(&[&WITHOUT_TAR[..], more].concat());
        let path = container.root().join("file");
        let old = random_bytes(300_000);
        let new: Vec<u8> = old.iter().map(|byte| !byte).collect();
        std::fs::write(&path, &old).unwrap();
        container.lose_connections(&[None, None, Some(Loss::Output(100_000))]);
        let (mut options, _) = options(1);
        let contents = new.clone();
        options.on_event = Some(Arc::new(move |event| {
            if matches!(event, CopyEvent::Retrying { .. }) {
                std::fs::write(&path, &contents).unwrap();
            }
        }));
        let to = scratch.path().join("to");
        copy_from(&container, "file", &to, &options, &progress())
            .await
            .unwrap();
        assert!(std::fs::read(to).unwrap() == new, "{more:?}");
        assert_eq!(listing(scratch.path()).len(), 1, "{more:?}");
    }
}

#[tokio::test]
async fn an_upload_restarts_and_completes() {
    let scratch = ScratchDir::new();
    let container = FakeContainer::with(&WITHOUT_TAR);
    let contents = random_bytes(300_000);
    let from = scratch.write("file", &contents);
    let loss = Some(Loss::Input(100_000));
    container.lose_connections(&[None, loss, loss]);
    let (options, events) = options(2);
    let progress = progress();
    copy_to(&container, &from, "file", &options, &progress)
        .await
        .unwrap();
    assert!(std::fs::read(container.root().join("file")).unwrap() == contents);
    assert_eq!((progress.bytes(), progress.retries()), (300_000, 2));
    assert_eq!(events.lock().unwrap().len(), 3);
    no_leftovers(&container);
    // Without retries a lost connection is an error.
    container.lose_connections(&[None, None, Some(Loss::Output(100_000))]);
    let to = scratch.path().join("to");
    let error = download(&container, "file", &to, 0).await.unwrap_err();
    assert!(matches!(error, Error::Disconnected { .. }), "{error}");
    assert!(!to.exists());
}
