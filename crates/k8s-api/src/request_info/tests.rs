use super::*;

/// `verb group/version namespace|resource|name|subresource`, or `verb -` for non-resource
/// requests.
fn describe(method: &str, target: &str) -> String {
    let method = Method::from_bytes(method.as_bytes()).unwrap();
    let (path, query) = match target.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (target, None),
    };
    let path = match DecodedPath::new(path) {
        Ok(path) => path,
        Err(error) => return error.to_string(),
    };
    let info = RequestInfo::parse(&method, &path, query);
    let verb = info.verb.as_str();
    match info.kind {
        Kind::NonResource => format!("{verb} -"),
        Kind::Resource => format!(
            "{verb} {}/{} {}|{}|{}|{}",
            info.group, info.version, info.namespace, info.resource, info.name, info.subresource
        ),
    }
}

/// Method, target, and the expected request info.
#[rustfmt::skip]
const ROWS: &[(&str, &str, &str)] = &[
    // Non-resource requests: the method in lower case.
    ("GET", "/", "get -"),
    ("GET", "", "get -"),
    ("GET", "//", "get -"),
    ("GET", "/healthz", "get -"),
    ("GET", "/readyz/etcd", "get -"),
    ("GET", "/version", "get -"),
    ("GET", "/metrics", "get -"),
    ("GET", "/openapi/v3/apis/apps/v1", "get -"),
    ("GET", "/logs/kube-apiserver.log", "get -"),
    ("GET", "/debug/pprof/profile", "get -"),
    ("HEAD", "/healthz", "head -"),
    ("POST", "/healthz", "post -"),
    ("PUT", "/x", "put -"),
    ("PATCH", "/x", "patch -"),
    ("DELETE", "/x", "delete -"),
    ("OPTIONS", "/x", "options -"),
    ("TRACE", "/x", "other -"),
    ("BREW", "/x", "other -"),
    ("OPTIONS", "*", "options -"),
    // Discovery.
    ("GET", "/api", "get -"),
    ("GET", "/api/", "get -"),
    ("GET", "/api/v1", "get -"),
    ("GET", "/api/v1/", "get -"),
    ("GET", "/apis", "get -"),
    ("GET", "/apis/apps", "get -"),
    ("GET", "/apis/apps/v1", "get -"),
    ("GET", "/apis/apps/v1/", "get -"),
    // Paths that resemble the API prefixes.
    ("GET", "/API/v1/pods", "get -"),
    ("GET", "/apix/v1/pods", "get -"),
    ("GET", "/v1/api/pods", "get -"),
    // The core group.
    ("GET", "/api/v1/namespaces", "list /v1 |namespaces||"),
    ("GET", "/api/v1/namespaces/shop", "get /v1 shop|namespaces|shop|"),
    ("PUT", "/api/v1/namespaces/shop", "update /v1 shop|namespaces|shop|"),
    ("DELETE", "/api/v1/namespaces/shop", "delete /v1 shop|namespaces|shop|"),
    ("PUT", "/api/v1/namespaces/shop/finalize", "update /v1 shop|namespaces|shop|finalize"),
    ("GET", "/api/v1/namespaces/shop/status", "get /v1 shop|namespaces|shop|status"),
    ("PATCH", "/api/v1/namespaces/shop/status", "patch /v1 shop|namespaces|shop|status"),
    ("GET", "/api/v1/pods", "list /v1 |pods||"),
    ("GET", "/api/v1/namespaces/shop/pods", "list /v1 shop|pods||"),
    ("GET", "/api/v1/namespaces/shop/pods/", "list /v1 shop|pods||"),
    ("GET", "/api/v1/namespaces/shop/pods/web", "get /v1 shop|pods|web|"),
    ("HEAD", "/api/v1/namespaces/shop/pods/web", "get /v1 shop|pods|web|"),
    ("HEAD", "/api/v1/namespaces/shop/pods", "list /v1 shop|pods||"),
    ("POST", "/api/v1/namespaces/shop/pods", "create /v1 shop|pods||"),
    ("PUT", "/api/v1/namespaces/shop/pods/web", "update /v1 shop|pods|web|"),
    ("PATCH", "/api/v1/namespaces/shop/pods/web", "patch /v1 shop|pods|web|"),
    ("DELETE", "/api/v1/namespaces/shop/pods/web", "delete /v1 shop|pods|web|"),
    ("DELETE", "/api/v1/namespaces/shop/pods", "deletecollection /v1 shop|pods||"),
    ("DELETE", "/api/v1/namespaces", "deletecollection /v1 |namespaces||"),
    ("OPTIONS", "/api/v1/pods", "other /v1 |pods||"),
    ("GET", "/api/v1/nodes/n1", "get /v1 |nodes|n1|"),
    // Subresources.
    ("GET", "/api/v1/namespaces/shop/pods/web/log", "get /v1 shop|pods|web|log"),
    ("GET", "/api/v1/namespaces/shop/pods/web/exec?command=ls", "get /v1 shop|pods|web|exec"),
    ("POST", "/api/v1/namespaces/shop/pods/web/exec", "create /v1 shop|pods|web|exec"),
    ("POST", "/api/v1/namespaces/shop/pods/web/eviction", "create /v1 shop|pods|web|eviction"),
    ("PATCH", "/api/v1/namespaces/shop/pods/web/resize", "patch /v1 shop|pods|web|resize"),
    ("POST", "/api/v1/namespaces/a/serviceaccounts/b/token", "create /v1 a|serviceaccounts|b|token"),
    ("GET", "/api/v1/nodes/n1/proxy", "get /v1 |nodes|n1|proxy"),
    ("GET", "/api/v1/nodes/n1/proxy/stats/summary", "get /v1 |nodes|n1|proxy"),
    ("POST", "/api/v1/namespaces/a/services/https:b:443/proxy/x/y", "create /v1 a|services|https:b:443|proxy"),
    ("DELETE", "/api/v1/namespaces/a/pods/b/proxy/c", "delete /v1 a|pods|b|proxy"),
    // Namespaces named like a resource or verb.
    ("GET", "/api/v1/namespaces/namespaces", "get /v1 namespaces|namespaces|namespaces|"),
    ("GET", "/api/v1/namespaces/status/pods", "list /v1 status|pods||"),
    ("GET", "/api/v1/namespaces/shop/statuses", "list /v1 shop|statuses||"),
    ("GET", "/api/v1/namespaces/shop/status/x", "get /v1 shop|namespaces|shop|status"),
    // Other groups.
    ("GET", "/apis/apps/v1/deployments", "list apps/v1 |deployments||"),
    ("GET", "/apis/apps/v1/namespaces/shop/deployments/web/scale", "get apps/v1 shop|deployments|web|scale"),
    ("POST", "/apis/apps/v1/namespaces/shop/deployments", "create apps/v1 shop|deployments||"),
    ("GET", "/apis/apps/v1/namespaces/shop", "get apps/v1 shop|namespaces|shop|"),
    ("PUT", "/apis/example.com/v1alpha1/widgets/w/status", "update example.com/v1alpha1 |widgets|w|status"),
    ("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", "create authorization.k8s.io/v1 |selfsubjectaccessreviews||"),
    ("GET", "/apis/metrics.k8s.io/v1beta1/nodes", "list metrics.k8s.io/v1beta1 |nodes||"),
    // Watch by query parameter.
    ("GET", "/api/v1/pods?watch=true", "watch /v1 |pods||"),
    ("GET", "/api/v1/pods?watch=1", "watch /v1 |pods||"),
    ("GET", "/api/v1/pods?watch", "watch /v1 |pods||"),
    ("GET", "/api/v1/pods?watch=", "watch /v1 |pods||"),
    ("GET", "/api/v1/pods?watch=yes", "watch /v1 |pods||"),
    ("GET", "/api/v1/pods?watch=false", "list /v1 |pods||"),
    ("GET", "/api/v1/pods?watch=False", "list /v1 |pods||"),
    ("GET", "/api/v1/pods?watch=0", "list /v1 |pods||"),
    ("GET", "/api/v1/pods?w%61tch=true", "watch /v1 |pods||"),
    ("GET", "/api/v1/pods?watch=false&watch=true", "list /v1 |pods||"),
    ("GET", "/api/v1/pods?limit=5&watch=true", "watch /v1 |pods||"),
    ("GET", "/api/v1/namespaces/a/pods/b?watch=true", "get /v1 a|pods|b|"),
    ("POST", "/api/v1/pods?watch=true", "create /v1 |pods||"),
    ("DELETE", "/api/v1/pods?watch=true", "deletecollection /v1 |pods||"),
    // Watch and proxy by path.
    ("GET", "/api/v1/watch/pods", "watch /v1 |pods||"),
    ("GET", "/api/v1/watch/namespaces", "watch /v1 |namespaces||"),
    ("GET", "/api/v1/watch/namespaces/shop/pods", "watch /v1 shop|pods||"),
    ("GET", "/api/v1/watch/namespaces/shop/pods/web", "watch /v1 shop|pods|web|"),
    ("GET", "/apis/apps/v1/watch/deployments", "watch apps/v1 |deployments||"),
    ("POST", "/api/v1/watch/pods", "watch /v1 |pods||"),
    ("GET", "/api/v1/watch", "get /v1 |||"),
    ("GET", "/api/v1/proxy/nodes/n1/x/y", "proxy /v1 |nodes|n1|"),
    ("PUT", "/api/v1/proxy/namespaces/a/services/b", "proxy /v1 a|services|b|"),
    ("GET", "/api/v1/proxy", "get /v1 |||"),
    // One object by field selector.
    ("GET", "/api/v1/pods?fieldSelector=metadata.name%3Dweb", "list /v1 |pods|web|"),
    ("GET", "/api/v1/pods?fieldSelector=metadata.name==web&watch=1", "watch /v1 |pods|web|"),
    ("GET", "/api/v1/pods?fieldSelector=spec.nodeName=n,metadata.name=web", "list /v1 |pods|web|"),
    ("GET", "/api/v1/pods?fieldSelector=metadata.name!=web", "list /v1 |pods||"),
    ("GET", "/api/v1/pods?fieldSelector=metadata.name=..", "list /v1 |pods||"),
    ("GET", "/api/v1/pods?fieldSelector=metadata.name=a%252fb", "list /v1 |pods||"),
    ("GET", "/api/v1/pods?fieldSelector=metadata.name=a%2fb", "list /v1 |pods||"),
    ("GET", "/api/v1/pods?fieldSelector=nonsense,metadata.name=web", "list /v1 |pods||"),
    ("DELETE", "/api/v1/pods?fieldSelector=metadata.name=web", "deletecollection /v1 |pods||"),
    // Escapes: the decoded path counts, including its slashes.
    ("GET", "/api/v1/namespaces/%73hop/pods", "list /v1 shop|pods||"),
    ("GET", "/%61pi/v1/pods", "list /v1 |pods||"),
    ("GET", "/api%2Fv1%2fpods", "list /v1 |pods||"),
    ("GET", "/api/v1/namespaces/a%2Fpods/b", "get /v1 a|pods|b|"),
    ("GET", "/api/v1/namespaces/%C3%BC/pods", "list /v1 ü|pods||"),
    ("GET", "/api/v1/namespaces/%FF/pods", "list /v1 \u{fffd}|pods||"),
    ("GET", "/api/v1/pods%3Fwatch=true", "list /v1 |pods?watch=true||"),
    ("GET", "/api/v1/pods%00", "list /v1 |pods\0||"),
    ("GET", "/api/v1/%252e%252e/x", "get /v1 |%2e%2e|x|"),
    ("GET", "/api/v1/pods%", "the request path contains an invalid percent escape"),
    ("GET", "/api/v1/pods%2", "the request path contains an invalid percent escape"),
    ("GET", "/api/v1/pods%zz", "the request path contains an invalid percent escape"),
    // Hostile paths: nothing is normalised, and empty segments count.
    ("GET", "//api/v1/pods", "list /v1 |pods||"),
    ("GET", "/api//v1/pods", "get / |v1|pods|"),
    ("GET", "/api/v1//pods", "get /v1 ||pods|"),
    ("GET", "/api/v1/namespaces//pods", "list /v1 |pods||"),
    ("GET", "/api/v1/../../x", "get /v1 |..|..|x"),
    ("GET", "/api/v1/namespaces/../secrets", "list /v1 ..|secrets||"),
    ("GET", "/api/./v1/pods", "get /. |v1|pods|"),
    ("GET", "/api/v1/pods//", "list /v1 |pods||"),
    ("GET", "/apis//v1/x", "list /v1 |x||"),
    ("GET", "/api/v1/pods;x=y", "list /v1 |pods;x=y||"),
];

#[test]
fn requests_are_parsed_like_kube_apiserver() {
    assert!(ROWS.len() >= 80);
    for (method, target, expected) in ROWS {
        assert_eq!(describe(method, target), *expected, "{method} {target}");
    }
}

#[test]
fn long_running_requests_are_detected() {
    let long = |method: &str, target: &str| {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let path = DecodedPath::new(path).unwrap();
        RequestInfo::parse(&method, &path, Some(query)).is_long_running()
    };
    for target in [
        "/api/v1/pods?watch=1",
        "/api/v1/watch/pods",
        "/api/v1/proxy/nodes/n",
        "/api/v1/namespaces/a/pods/b/log",
        "/api/v1/namespaces/a/pods/b/exec",
        "/api/v1/namespaces/a/pods/b/attach",
        "/api/v1/namespaces/a/pods/b/portforward",
        "/api/v1/namespaces/a/pods/b/proxy/x",
        "/debug/pprof/profile",
    ] {
        assert!(long("GET", target), "{target}");
    }
    for target in [
        "/api/v1/pods",
        "/api/v1/namespaces/a/pods/b",
        "/apis",
        "/healthz",
    ] {
        assert!(!long("GET", target), "{target}");
    }
    assert!(!long("POST", "/api/v1/namespaces/a/pods?watch=1"));
}

#[test]
fn only_reads_of_the_api_itself_are_idempotent_reads() {
    let harmless = |method: Method, path: &str| {
        let path = DecodedPath::new(path).unwrap();
        RequestInfo::parse(&method, &path, None).is_idempotent_read(&method)
    };
    let pod = "/api/v1/namespaces/a/pods/b";
    assert!(harmless(Method::GET, pod));
    assert!(harmless(Method::HEAD, "/healthz"));
    assert!(harmless(Method::GET, &format!("{pod}/log")));
    for subresource in [
        "exec",
        "attach",
        "portforward",
        "proxy",
        "proxy/x",
        "e%78ec",
    ] {
        assert!(!harmless(Method::GET, &format!("{pod}/{subresource}")));
    }
    assert!(!harmless(Method::GET, "/api/v1/proxy/nodes/n/run"));
    for method in [Method::POST, Method::PUT, Method::PATCH, Method::DELETE] {
        assert!(!harmless(method, pod));
    }
}

#[test]
fn a_path_without_escapes_is_borrowed() {
    assert!(matches!(
        DecodedPath::new("/api/v1/pods").unwrap().0,
        Cow::Borrowed(_)
    ));
}

proptest::proptest! {
    #[test]
    fn no_path_makes_the_parser_panic(path in "\\PC*", query in "\\PC*") {
        if let Ok(path) = DecodedPath::new(&path) {
            RequestInfo::parse(&Method::GET, &path, Some(&query));
        }
    }
}
