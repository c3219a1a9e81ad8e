use skewbridge_k8s_api::request_info::DecodedPath;

use super::dry_run::with_dry_run;
use super::*;

#[allow(clippy::too_many_lines)] // a table
#[test]
fn writes_are_checked_by_verb_and_server() {
    use Check::{Incomplete, IncompleteCreate, Patch, Unknown, Update};
    let pod = "/api/v1/namespaces/n/pods/p";
    let rows = [
        ("GET", "/api/v1/namespaces/n/pods/p", "", None, None),
        ("GET", "/api/v1/namespaces/n/pods", "", None, None),
        (
            "POST",
            "/api/v1/namespaces/n/pods",
            "",
            None,
            Some(IncompleteCreate),
        ),
        ("PUT", pod, "", Some(Update), Some(Incomplete)),
        (
            "PUT",
            "/api/v1/namespaces/n/pods/p/status",
            "",
            Some(Update),
            Some(Incomplete),
        ),
        (
            "PUT",
            "/apis/apps/v1/namespaces/n/deployments/d/scale",
            "",
            None,
            Some(Incomplete),
        ),
        (
            "PATCH",
            pod,
            "application/strategic-merge-patch+json",
            Some(Patch(PatchKind::Strategic)),
            Some(Incomplete),
        ),
        (
            "PATCH",
            "/api/v1/namespaces/n/pods/p/ephemeralcontainers",
            "application/json-patch+json",
            Some(Patch(PatchKind::Json)),
            Some(Incomplete),
        ),
        (
            "PATCH",
            "/apis/apps/v1/namespaces/n/deployments/d/scale",
            "application/json-patch+json",
            None,
            Some(Incomplete),
        ),
        (
            "PUT",
            "/api/v1/namespaces/n/finalize",
            "",
            Some(Update),
            Some(Incomplete),
        ),
        (
            "PUT",
            "/apis/certificates.k8s.io/v1/certificatesigningrequests/c/approval",
            "",
            Some(Update),
            Some(Incomplete),
        ),
        (
            "PATCH",
            pod,
            "application/apply-patch+yaml",
            None,
            Some(Incomplete),
        ),
        (
            "PATCH",
            pod,
            "application/merge-patch+json",
            Some(Patch(PatchKind::Merge)),
            Some(Incomplete),
        ),
        ("DELETE", pod, "", None, Some(Incomplete)),
        (
            "DELETE",
            "/api/v1/namespaces/n/pods",
            "",
            None,
            Some(Unknown),
        ),
        (
            "POST",
            "/api/v1/namespaces/n/pods/p/binding",
            "",
            None,
            Some(Incomplete),
        ),
        (
            "POST",
            "/api/v1/namespaces/n/pods/p/eviction",
            "",
            None,
            Some(Incomplete),
        ),
        (
            "POST",
            "/api/v1/namespaces/n/bindings",
            "",
            None,
            Some(Unknown),
        ),
        ("POST", "/api/v1/namespaces/n/pods/p/exec", "", None, None),
        (
            "POST",
            "/api/v1/namespaces/n/serviceaccounts/a/token",
            "",
            None,
            None,
        ),
    ];
    for (method, path, content_type, complete, incomplete) in rows {
        let decoded = DecodedPath::new(path).unwrap();
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let info = RequestInfo::parse(&method, &decoded, None);
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, content_type.parse().unwrap());
        assert_eq!(check(&info, &headers, false), complete, "{method} {path}");
        assert_eq!(check(&info, &headers, true), incomplete, "{method} {path}");
    }
}

#[test]
fn the_path_of_an_object_has_no_subresource() {
    for (path, expected) in [
        ("/api/v1/nodes/n", "/api/v1/nodes/n"),
        ("/api/v1/nodes/n/status", "/api/v1/nodes/n"),
        ("/api/v1/namespaces/a", "/api/v1/namespaces/a"),
        ("/api/v1/namespaces/a/finalize", "/api/v1/namespaces/a"),
        (
            "/api/v1/namespaces/a/pods/p/%73tatus",
            "/api/v1/namespaces/a/pods/p",
        ),
        (
            "/apis/apps/v1/namespaces/a/deployments/d/scale",
            "/apis/apps/v1/namespaces/a/deployments/d",
        ),
        (
            "/apis/rbac.authorization.k8s.io/v1/clusterroles/system:a",
            "/apis/rbac.authorization.k8s.io/v1/clusterroles/system:a",
        ),
    ] {
        let decoded = DecodedPath::new(path).unwrap();
        let info = RequestInfo::parse(&Method::PUT, &decoded, None);
        let found = object_path(&info);
        let found = DecodedPath::new(&found).unwrap();
        assert_eq!(found.as_str(), expected, "{path}");
    }
}

#[test]
fn a_dry_run_keeps_the_query_and_a_target_that_is_too_long_is_rejected() {
    let uri: Uri = "/api/v1/nodes/n?fieldManager=m".parse().unwrap();
    assert_eq!(
        with_dry_run(&uri).unwrap(),
        "/api/v1/nodes/n?fieldManager=m&dryRun=All"
    );
    let long: Uri = format!("/api/v1/nodes/n?{}", "a".repeat(65_515))
        .parse()
        .unwrap();
    assert!(with_dry_run(&long).is_err());
    assert!(has_dry_run("a=b&dryRun=All"));
    for query in ["dryRun=", "dryRun=All;", "dryRun", "a=dryRun=All"] {
        assert!(!has_dry_run(query), "{query}");
    }
}
