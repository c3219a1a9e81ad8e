//! Dry runs of a write, which show what its server makes of it.

use bytes::Bytes;
use http::header::{ACCEPT, ACCEPT_ENCODING};
use http::request::Parts;
use http::{HeaderValue, Response, Uri};
use skewbridge_http_engine::body::ResponseBody;

use super::{full, response_of, with_target};
use crate::access_log::AccessLogEntry;
use crate::proxy::error::ProxyError;
use crate::proxy::outbound::OutboundRequest;

/// The dry run of a request, and its body.
pub(super) type DryRun = (Parts, Bytes);

/// The dry run of a request. Its response is JSON.
pub(super) fn dry_run(head: &Parts, body: &Bytes) -> Result<DryRun, ProxyError> {
    let mut request = head.clone();
    request.uri = with_dry_run(&head.uri)?;
    request.headers.remove(ACCEPT_ENCODING);
    let json = HeaderValue::from_static("application/json");
    request.headers.insert(ACCEPT, json);
    Ok((request, body.clone()))
}

pub(super) async fn send_dry_run(
    (head, body): DryRun,
    outbound: &OutboundRequest<'_>,
    record: &mut AccessLogEntry,
) -> Result<Response<ResponseBody>, ProxyError> {
    let sent = outbound.send_subrequest(head, full(body), record);
    response_of(sent.await.map_err(ProxyError::before_write)?)
}

/// The target of the dry run of a request.
pub(super) fn with_dry_run(uri: &Uri) -> Result<Uri, ProxyError> {
    let path = uri.path();
    let target = match uri.query() {
        None | Some("") => format!("{path}?dryRun=All"),
        Some(query) => format!("{path}?{query}&dryRun=All"),
    };
    with_target(uri, &target)
}
