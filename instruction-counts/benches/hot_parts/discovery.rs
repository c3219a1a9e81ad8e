//! Discovery: whether a server serves a request, and the merged document.

use std::hint::black_box;

use gungraun::prelude::*;
use http::Method;
use skewbridge_discovery::{Document, Index, merge};
use skewbridge_k8s_api::request_info::{DecodedPath, RequestInfo};

use crate::ROUNDS;

/// What real servers serve with all APIs turned on.
macro_rules! served {
    ($name:literal) => {
        include_bytes!(concat!("../../../crates/discovery/tests/data/", $name)).as_slice()
    };
}

fn document(bytes: &[u8]) -> Document {
    Document::parse(bytes).expect("a document of a real server")
}

/// Served and not served, in the core group and in others.
const REQUESTS: [(Method, &str); 8] = [
    (Method::GET, "/api/v1/namespaces/shop/pods/web"),
    (Method::POST, "/api/v1/namespaces/shop/pods/web/exec"),
    (Method::GET, "/apis/apps/v1/namespaces/shop/deployments"),
    (
        Method::PUT,
        "/apis/coordination.k8s.io/v1/namespaces/shop/leases/web",
    ),
    (
        Method::PATCH,
        "/apis/apps/v1/namespaces/shop/deployments/web/scale",
    ),
    (
        Method::GET,
        "/apis/storage.k8s.io/v1alpha1/volumeattributesclasses",
    ),
    (Method::GET, "/apis/example.com/v1/widgets"),
    (
        Method::DELETE,
        "/apis/authentication.k8s.io/v1/tokenreviews/web",
    ),
];

struct Lookups {
    index: Index,
    requests: Vec<(Method, DecodedPath<'static>)>,
}

impl Lookups {
    fn new() -> Self {
        let documents = [
            served!("1.36.4-all-api.json"),
            served!("1.36.4-all-apis.json"),
        ];
        let [core, groups] = documents.map(document);
        let requests = REQUESTS.map(|(method, path)| {
            let path = DecodedPath::new(path).expect("a path without escapes");
            (method, path)
        });
        let lookups = Self {
            index: Index::new(&[&core, &groups]),
            requests: requests.to_vec(),
        };
        lookups.look_up(&lookups.infos());
        lookups
    }

    fn infos(&self) -> Vec<RequestInfo<'_>> {
        let infos = self.requests.iter();
        infos
            .map(|(method, path)| RequestInfo::parse(method, path, None))
            .collect()
    }

    fn look_up(&self, requests: &[RequestInfo<'_>]) {
        for request in black_box(requests) {
            black_box(self.index.serves(request));
        }
    }
}

// Parses each request once; what counts is the repeated lookup.
#[library_benchmark]
#[bench::requests(Lookups::new())]
fn discovery_index_lookup(lookups: Lookups) -> Lookups {
    let requests = lookups.infos();
    for _ in 0..ROUNDS {
        lookups.look_up(&requests);
    }
    drop(requests);
    lookups
}

fn documents() -> [Document; 3] {
    let documents = [
        served!("1.34.4-all-apis.json"),
        served!("1.36.4-all-apis.json"),
        served!("1.36.4-default-apis.json"),
    ]
    .map(document);
    black_box(merged(&documents));
    documents
}

fn merged(documents: &[Document; 3]) -> Document {
    merge(&black_box(documents).each_ref())
}

// Three servers of two minor versions.
#[library_benchmark]
#[bench::servers(documents())]
fn discovery_merge(documents: [Document; 3]) -> ([Document; 3], Document) {
    let merged = merged(&documents);
    (documents, merged)
}

library_benchmark_group!(
    name = discovery_parts,
    benchmarks = [discovery_index_lookup, discovery_merge]
);
