//! Read-your-writes for admission policies: the response to the write of a policy is held until
//! this bridge places requests by that policy.

use std::sync::Arc;

use http::StatusCode;
use skewbridge_k8s_api::request_info::{Kind, Verb};
use tokio::task::JoinSet;

use super::request_context::RequestContext;
use crate::admission_guard::{ADMISSION_GROUP, AdmissionGuard, is_policy_kind};
use crate::cluster_state::ClusterHandle;

/// The kind of policy that a request has written, by the status of its response.
pub(super) fn kind_of<'a>(context: &RequestContext<'a>, status: StatusCode) -> Option<&'a str> {
    let info = &context.info;
    let is_write = matches!(
        info.verb,
        Verb::Create | Verb::Update | Verb::Patch | Verb::Delete | Verb::DeleteCollection
    );
    let is_policy = is_write
        && info.kind == Kind::Resource
        && info.group == ADMISSION_GROUP
        && is_policy_kind(info.resource)
        && status.is_success()
        && context.placement.admission == AdmissionGuard::On;
    is_policy.then_some(info.resource)
}

/// Waits, for a bounded time, until the cluster snapshots of all backends contain the write: any of
/// them may get the next write.
pub(super) async fn wait_until_known(
    handles: impl Iterator<Item = Arc<ClusterHandle>>,
    kind: &str,
) {
    let mut waiting = JoinSet::new();
    for handle in handles {
        let kind = kind.to_owned();
        waiting.spawn(async move { handle.await_policy_write(&kind).await });
    }
    while waiting.join_next().await.is_some() {}
}
