//! Cancelled copies.

use std::sync::Arc;

use skewbridge_client::copy::{Error, Options, copy_between, copy_to};
use skewbridge_testkit::{ScratchDir, TEST_TIMEOUT, eventually};

use crate::fake_container::{FakeContainer, Loss};
use crate::test_tree::{TreeShape, create_tree, listing};
use crate::{options, progress};

#[tokio::test]
async fn a_cancelled_copy_leaves_nothing_in_the_container() {
    for retries in [0, 3] {
        let (container, scratch) = (Arc::new(FakeContainer::new()), ScratchDir::new());
        let from = scratch.path().join("tree");
        create_tree(&from, TreeShape::Small);
        container.lose_connections(&[None, Some(Loss::Stall(1 << 20))]);
        let (options, _) = options(retries);
        let (stop, progress) = (options.cancel.clone(), progress());
        let copying = tokio::spawn({
            let (container, options) = (container.clone(), Options::clone(&options));
            let (from, progress) = (from.clone(), progress.clone());
            async move { copy_to(&*container, &from, "new", &options, &progress).await }
        });
        let is_begun = || {
            let names = listing(&container.root());
            names.iter().any(|(name, _)| name.ends_with("/it/large"))
        };
        eventually("something in a stage", TEST_TIMEOUT, async || is_begun()).await;
        stop.cancel();
        let error = copying.await.unwrap().unwrap_err();
        assert!(matches!(error, Error::Cancelled), "{error}");
        // The disconnected tar may take a moment to end.
        eventually("nothing there", TEST_TIMEOUT, async || {
            listing(&container.root()).is_empty()
        })
        .await;
    }
}

#[tokio::test]
async fn a_cancelled_copy_between_pods_leaves_nothing_in_the_target() {
    let (source, target) = (FakeContainer::new(), Arc::new(FakeContainer::new()));
    create_tree(&source.root().join("tree"), TreeShape::Small);
    target.lose_connections(&[None, Some(Loss::Stall(1 << 20))]);
    let (options, _) = options(3);
    let stop = options.cancel.clone();
    let copying = tokio::spawn({
        let target = target.clone();
        async move {
            let places = ((&source as _, "tree"), (&*target as _, "new"));
            copy_between(places.0, places.1, &options, &progress()).await
        }
    });
    eventually("something in a stage", TEST_TIMEOUT, async || {
        let names = listing(&target.root());
        names.iter().any(|(name, _)| name.ends_with("/it"))
    })
    .await;
    stop.cancel();
    let error = copying.await.unwrap().unwrap_err();
    assert!(matches!(error, Error::Cancelled), "{error}");
    eventually("nothing there", TEST_TIMEOUT, async || {
        listing(&target.root()).is_empty()
    })
    .await;
}
