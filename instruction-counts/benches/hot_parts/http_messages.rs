//! Heads of HTTP/1.1 messages.

use std::hint::black_box;

use bytes::BytesMut;
use gungraun::prelude::*;
use http::Method;
use skewbridge_http_engine::http1::{
    RequestHead, ResponseHead, parse_request, parse_response, write_headers, write_request_line,
    write_status_line,
};

use crate::ROUNDS;

/// A list by kubectl, as a bridge receives it.
const REQUEST: &str = "GET /api/v1/namespaces/shop/pods?limit=500 HTTP/1.1\r\n\
    Host: 10.0.0.1:6443\r\n\
    User-Agent: kubectl/v1.36.4 (linux/amd64) kubernetes/0123456\r\n\
    Accept: application/json;as=Table;v=v1;g=meta.k8s.io,application/json\r\n\
    Authorization: Bearer eyJhbGciOiJSUzI1NiIsImtpZCI6IjEifQ.e30.c2lnbmF0dXJl\r\n\
    Kubectl-Command: kubectl get\r\n\
    Kubectl-Session: 9f0b2f4c-6d8e-4a1b-9c3d-5e7f8a9b0c1d\r\n\
    Accept-Encoding: gzip\r\n\r\n";

/// The response of kube-apiserver.
const RESPONSE: &str = "HTTP/1.1 200 OK\r\n\
    Audit-Id: 9f0b2f4c-6d8e-4a1b-9c3d-5e7f8a9b0c1d\r\n\
    Cache-Control: no-cache, private\r\n\
    Content-Encoding: gzip\r\n\
    Content-Type: application/json\r\n\
    Vary: Accept-Encoding\r\n\
    X-Kubernetes-Pf-Flowschema-Uid: 5e7f8a9b-0c1d-4a1b-9c3d-9f0b2f4c6d8e\r\n\
    X-Kubernetes-Pf-Prioritylevel-Uid: 6d8e9f0b-2f4c-4a1b-9c3d-5e7f8a9b0c1d\r\n\
    Date: Thu, 19 Nov 2026 12:00:00 GMT\r\n\
    Transfer-Encoding: chunked\r\n\r\n";

type Heads = (RequestHead, ResponseHead);

fn parse(request: &mut BytesMut, response: &mut BytesMut) -> Heads {
    let request = parse_request(request).ok().flatten();
    let response = parse_response(response, &Method::GET).ok().flatten();
    request.zip(response).expect("both heads are valid")
}

/// The received bytes of each exchange, and room for their heads.
struct Received {
    bytes: Vec<[BytesMut; 2]>,
    heads: Vec<Heads>,
}

fn received() -> Received {
    let exchange = || [REQUEST, RESPONSE].map(BytesMut::from);
    let [mut request, mut response] = exchange();
    black_box(parse(&mut request, &mut response));
    Received {
        bytes: (0..ROUNDS).map(|_| exchange()).collect(),
        heads: Vec::with_capacity(ROUNDS),
    }
}

#[library_benchmark]
#[bench::exchanges(received())]
fn http1_parse_heads(mut received: Received) -> Received {
    for [request, response] in black_box(&mut received.bytes) {
        received.heads.push(parse(request, response));
    }
    received
}

fn write((request, response): &Heads, out: &mut BytesMut) {
    let target = request.uri.path_and_query().map_or("/", |it| it.as_str());
    write_request_line(out, &request.method, target);
    write_headers(out, &request.headers);
    out.extend_from_slice(b"\r\n");
    write_status_line(out, response.version, response.status);
    write_headers(out, &response.headers);
    out.extend_from_slice(b"\r\n");
}

fn heads() -> (Heads, BytesMut) {
    let [mut request, mut response] = [REQUEST, RESPONSE].map(BytesMut::from);
    let heads = parse(&mut request, &mut response);
    let mut out = BytesMut::with_capacity(8 << 10);
    write(&heads, &mut out);
    (heads, out)
}

#[library_benchmark]
#[bench::exchanges(heads())]
fn http1_write_heads((heads, mut out): (Heads, BytesMut)) -> (Heads, BytesMut) {
    for _ in 0..ROUNDS {
        out.clear();
        write(black_box(&heads), &mut out);
    }
    (heads, out)
}

library_benchmark_group!(
    name = http_parts,
    benchmarks = [http1_parse_heads, http1_write_heads]
);
