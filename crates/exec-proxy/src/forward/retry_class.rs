//! Which requests may be sent again.

use http::Method;
use http::request::Parts;
use skewbridge_http_engine::client::RetryClass;
use skewbridge_k8s_api::request_info::DecodedPath;

/// Reads of the API are retried even if the server may have processed them. Writes are not, nor is
/// an exec over WebSocket, which is a GET.
pub(super) fn retry_class(head: &Parts, upgrade: bool) -> RetryClass {
    let reads = matches!(head.method, Method::GET | Method::HEAD | Method::OPTIONS);
    // A GET to a workload may have side effects.
    if reads && !upgrade && !may_reach_workload(head.uri.path()) {
        RetryClass::Idempotent
    } else {
        RetryClass::OnlyIfUnsent
    }
}

/// Whether a workload may respond to this path. The path may have a prefix: the server may be
/// published below one.
pub(super) fn may_reach_workload(path: &str) -> bool {
    let names = |part: &str| matches!(part, "proxy" | "exec" | "attach" | "portforward");
    DecodedPath::new(path).map_or(true, |path| path.as_str().split('/').any(names))
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    #[test]
    fn only_reads_of_the_api_itself_are_retried_when_in_doubt() {
        let rows = [
            (
                "GET",
                "/api/v1/namespaces/x/pods",
                false,
                RetryClass::Idempotent,
            ),
            (
                "HEAD",
                "/api/v1/namespaces/x/pods/web/log",
                false,
                RetryClass::Idempotent,
            ),
            (
                "POST",
                "/api/v1/namespaces/x/pods",
                false,
                RetryClass::OnlyIfUnsent,
            ),
            (
                "GET",
                "/api/v1/namespaces/x/pods/web/exec",
                true,
                RetryClass::OnlyIfUnsent,
            ),
            (
                "GET",
                "/api/v1/namespaces/x/services/web/proxy/x",
                false,
                RetryClass::OnlyIfUnsent,
            ),
            (
                "GET",
                "/api/v1/namespaces/x/services/web/%70roxy/x",
                false,
                RetryClass::OnlyIfUnsent,
            ),
            (
                "GET",
                "/k8s/clusters/c/api/v1/nodes/n%2Fproxy/x",
                false,
                RetryClass::OnlyIfUnsent,
            ),
            ("GET", "/api/v1/nodes/%zz", false, RetryClass::OnlyIfUnsent),
        ];
        for (method, path, upgrade, expected) in rows {
            let (head, ()) = Request::builder()
                .method(method)
                .uri(path)
                .body(())
                .unwrap()
                .into_parts();
            assert_eq!(retry_class(&head, upgrade), expected, "{method} {path}");
        }
    }
}
