//! Copies to and from pods over both protocols, with lost connections.

use std::sync::Arc;

use skewbridge_client::copy::{Error, Pod, Progress, copy_from, copy_to};
use skewbridge_client::remote_command::{
    Executor, FallbackExecutor, SpdyExecutor, WebSocketExecutor,
};
use skewbridge_client::{Endpoint, Kubeconfig};
use skewbridge_testkit::{Pods, ScratchDir};

use crate::test_tree::{TreeShape, create_tree, listing};
use crate::{options, progress};

/// The example of the documentation.
#[path = "../../examples/copy_a_file.rs"]
#[allow(dead_code, unreachable_pub, clippy::print_stdout, clippy::print_stderr)]
mod copy_a_file;

fn config(pods: &Pods) -> Kubeconfig {
    Kubeconfig::parse(&pods.kubeconfig(), "/nonexistent/config".as_ref()).unwrap()
}

async fn executors(pods: &Pods) -> Vec<Arc<dyn Executor>> {
    let target = config(pods).target(None).unwrap();
    let endpoint = Endpoint::prepare(&target, None).await.unwrap();
    vec![
        Arc::new(WebSocketExecutor::new(endpoint.clone())),
        Arc::new(SpdyExecutor::new(endpoint.clone())),
        Arc::new(FallbackExecutor::new(endpoint)),
    ]
}

fn pod(executor: Arc<dyn Executor>) -> Pod {
    Pod {
        executor,
        namespace: "default".to_owned(),
        pod: "web".to_owned(),
        container: None,
    }
}

#[tokio::test]
async fn trees_are_copied_over_both_protocols() {
    let pods = Pods::start().await;
    for executor in executors(&pods).await {
        let (pod, scratch) = (pod(executor), ScratchDir::new());
        let from = scratch.path().join("from");
        create_tree(&from, TreeShape::Small);
        let remote = scratch.path().join("there");
        let (options, _) = options(0);
        let place = remote.display().to_string();
        copy_to(&pod, &from, &place, &options, &progress())
            .await
            .unwrap();
        assert_eq!(listing(&remote), listing(&from));
        let back = scratch.path().join("back");
        copy_from(&pod, &place, &back, &options, &progress())
            .await
            .unwrap();
        assert_eq!(listing(&back), listing(&from));
    }
}

#[tokio::test]
async fn a_download_survives_repeatedly_lost_connections() {
    let pods = Pods::start().await;
    let scratch = ScratchDir::new();
    let from = scratch.path().join("from");
    create_tree(&from, TreeShape::Small);
    let place = from.display().to_string();
    for executor in executors(&pods).await {
        let pod = pod(executor);
        let to = scratch.path().join("to");
        // Each connection carries less than a third of it.
        pods.cut_after(Some(1 << 20));
        let (patient, events) = options(20);
        let progress = Arc::new(Progress::default());
        copy_from(&pod, &place, &to, &patient, &progress)
            .await
            .unwrap();
        assert_eq!(listing(&to), listing(&from));
        assert!(events.lock().unwrap().len() >= 3);
        assert!(progress.retries() >= 3);
        std::fs::remove_dir_all(&to).unwrap();
        // Without retries it is not a success.
        let (impatient, _) = options(0);
        let error = copy_from(&pod, &place, &to, &impatient, &progress).await;
        assert!(
            matches!(error, Err(Error::Disconnected { .. })),
            "{error:?}"
        );
        std::fs::remove_dir_all(&to).unwrap();
        pods.cut_after(None);
    }
}

#[tokio::test]
async fn the_example_copies_a_file() {
    let pods = Pods::start().await;
    let scratch = ScratchDir::new();
    let from = scratch.write("file", "contents");
    let to = scratch.path().join("copy");
    let from = from.display().to_string();
    let bytes = copy_a_file::copy(&config(&pods), "web", &from, &to).await;
    assert_eq!(bytes.unwrap(), 8);
    assert_eq!(std::fs::read_to_string(to).unwrap(), "contents");
}
