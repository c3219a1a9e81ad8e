//! What a connection was opened with, as far as it can run out.

use std::sync::Arc;

use http::header::AUTHORIZATION;
use http::{HeaderMap, Method};
use skewbridge_api::request_info::{DecodedPath, RequestInfo};

use super::IssuedCredential;

/// What a credential plugin gave, and a connection was opened with. The connection stays
/// what it is when that has expired; further requests had better go over another one.
#[derive(Debug, Clone)]
pub struct ConnectionCredential {
    issued: Arc<IssuedCredential>,
    /// Before every path.
    prefix: Arc<str>,
}

impl ConnectionCredential {
    pub(crate) fn new(issued: Arc<IssuedCredential>, prefix: &str) -> Self {
        Self {
            issued,
            prefix: prefix.into(),
        }
    }

    /// Whether further requests may be sent with it: it has not expired, and the cluster
    /// has not refused it.
    pub fn is_valid(&self) -> bool {
        self.issued.is_valid()
    }

    /// Whether a request to this path, with what stands before every path, is answered by a
    /// workload or a node. A 401 is then the cluster's own only if it is a
    /// `metav1.Status`: somebody's login page is no reason to run the plugin.
    pub fn reaches_workload(&self, path: &str) -> bool {
        reaches_workload(path.strip_prefix(&*self.prefix).unwrap_or(path))
    }

    /// The cluster has answered 401 to a request with these headers. The plugin is run
    /// again for the next request, as client-go does; but not if the request came with a
    /// credential of its own.
    pub fn mark_unauthorized(&self, request: &HeaderMap) {
        if request.get(AUTHORIZATION) == self.issued.authorization().as_ref() {
            self.issued.mark_unauthorized();
        }
    }
}

fn reaches_workload(path: &str) -> bool {
    // What kube-apiserver cannot read it answers itself.
    DecodedPath::new(path)
        .is_ok_and(|path| RequestInfo::parse(&Method::GET, &path, None).reaches_workload())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workloads_answer_what_is_below_proxy_and_nothing_else() {
        let rows = [
            ("/api/v1/namespaces/x/services/web/proxy/login", true),
            ("/api/v1/namespaces/x/services/https:web:443/proxy", true),
            ("/api/v1/namespaces/x/pods/web/proxy/", true),
            ("/api/v1/nodes/n/proxy/metrics", true),
            ("/api/v1/nodes/n/%70roxy/metrics", true),
            ("/api/v1/namespaces/proxy/pods", false),
            ("/api/v1/namespaces/x/pods/proxy", false),
            ("/api/v1/namespaces/x/pods/web/log", false),
            ("/apis/apps/v1/namespaces/x/deployments/proxy", false),
            ("/proxy", false),
            ("/", false),
        ];
        for (path, expected) in rows {
            assert_eq!(reaches_workload(path), expected, "{path}");
        }
    }
}
