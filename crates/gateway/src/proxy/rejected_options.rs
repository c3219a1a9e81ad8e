//! Options of a query that an older server may reject: a newer one is tried.

use http::{Request, StatusCode};
use skewbridge_k8s_api::request_info::{RequestInfo, Verb};

use crate::upstream::ReplayBody;

/// Whether a request for a collection has options that an older server may not know.
pub(super) fn has_options(info: &RequestInfo<'_>, request: &Request<ReplayBody>) -> bool {
    matches!(info.verb, Verb::List | Verb::Watch | Verb::DeleteCollection)
        && request.uri().query().is_some_and(|query| !query.is_empty())
}

/// Whether a status can mean that the server does not know an option of the query. A deletion that is
/// answered with 422 may have deleted some of the objects.
pub(super) fn is_rejected_option(verb: Verb, status: StatusCode) -> bool {
    status == StatusCode::BAD_REQUEST
        || (status == StatusCode::UNPROCESSABLE_ENTITY && verb != Verb::DeleteCollection)
}
