//! The plugin credential that a connection was opened with.

use std::sync::Arc;

use http::header::AUTHORIZATION;
use http::{HeaderMap, Method};
use skewbridge_k8s_api::request_info::{DecodedPath, RequestInfo};

use super::IssuedCredential;

/// The credential from a plugin that a connection was opened with. An open connection outlives
/// the credential's expiry; further requests should use a new connection.
#[derive(Debug, Clone)]
pub struct ConnectionCredential {
    issued: Arc<IssuedCredential>,
    /// Path prefix of the server's URL.
    prefix: Arc<str>,
}

impl ConnectionCredential {
    pub(crate) fn new(issued: Arc<IssuedCredential>, prefix: &str) -> Self {
        Self {
            issued,
            prefix: prefix.into(),
        }
    }

    /// Whether further requests may use this credential: it has not expired, and the cluster
    /// has not answered 401 to it.
    pub fn is_valid(&self) -> bool {
        self.issued.is_valid()
    }

    /// Whether a workload or a node answers requests to this path (which includes the server's
    /// path prefix). A 401 on such a path comes from the API server only if its body is a
    /// `metav1.Status`; the login page of a workload is no reason to run the plugin again.
    pub fn reaches_workload(&self, path: &str) -> bool {
        reaches_workload(path.strip_prefix(&*self.prefix).unwrap_or(path))
    }

    /// Records that the cluster answered 401 to a request with these headers. As in client-go,
    /// the plugin is run again for the next request, unless this request carried another
    /// credential.
    pub fn mark_unauthorized(&self, request: &HeaderMap) {
        if request.get(AUTHORIZATION) == self.issued.authorization().as_ref() {
            self.issued.mark_unauthorized();
        }
    }
}

fn reaches_workload(path: &str) -> bool {
    // kube-apiserver itself answers paths that it cannot decode.
    DecodedPath::new(path)
        .is_ok_and(|path| RequestInfo::parse(&Method::GET, &path, None).reaches_workload())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_paths_below_proxy_reach_workloads() {
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
