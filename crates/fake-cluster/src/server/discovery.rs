//! Discovery: aggregated documents and lists.

use std::net::SocketAddr;

use http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, IF_NONE_MATCH, VARY};
use http::{HeaderMap, HeaderValue, StatusCode};
use skewbridge_discovery::accept::RequestedDiscovery;
use skewbridge_discovery::{Layout, Object};
use skewbridge_k8s_api::content_negotiation::{Format, negotiate};
use skewbridge_k8s_api::status::Status;

use super::responses::{self, ApiResponse};
use crate::catalogue::{Catalogue, Root};
use crate::status::{not_acceptable, unknown_resource};

/// Formats of lists, in order of preference.
const OFFERS: [Format; 3] = [Format::Json, Format::Yaml, Format::Protobuf];

/// `/api`, `/apis` and the paths below; `None` for others.
pub(super) fn answer(
    catalogue: &Catalogue,
    address: SocketAddr,
    path: &str,
    headers: &HeaderMap,
) -> Option<Result<ApiResponse, Status>> {
    let parts: Vec<_> = path.trim_matches('/').split('/').collect();
    Some(match parts[..] {
        ["api"] => {
            document(catalogue, Root::Api, headers).map_or_else(|| versions(address, headers), Ok)
        }
        ["apis"] => document(catalogue, Root::Apis, headers)
            .map_or_else(|| list(&catalogue.groups(), headers), Ok),
        ["api", version] => match catalogue.resources("", version) {
            Some(resources) => list(&resources, headers),
            None => Err(unknown_resource()),
        },
        ["apis", group] => list(&catalogue.group(group)?, headers),
        ["apis", group, version] => list(&catalogue.resources(group, version)?, headers),
        _ => return None,
    })
}

/// An aggregated document, if the client accepts one.
fn document(catalogue: &Catalogue, root: Root, headers: &HeaderMap) -> Option<ApiResponse> {
    let wanted = RequestedDiscovery::from_headers(headers, |schema| {
        catalogue.release().serves_discovery_schema(schema)
    });
    let (RequestedDiscovery::Merged(wish) | RequestedDiscovery::Local(wish)) = wanted else {
        return None;
    };
    let etag = catalogue.etag(root);
    let known = headers.get(IF_NONE_MATCH);
    let mut reply = if known.is_some_and(|it| it.as_bytes() == etag.as_bytes()) {
        let mut reply = responses::full(StatusCode::NOT_MODIFIED, "", "");
        reply.headers_mut().remove(CONTENT_TYPE);
        reply
    } else {
        let document = catalogue.document(root, wish.schema)?;
        let bytes = document.write(wish.format, wish.layout);
        responses::full(StatusCode::OK, wish.content_type(), bytes)
    };
    let fields = reply.headers_mut();
    if let Ok(etag) = HeaderValue::from_str(&etag) {
        fields.insert(ETAG, etag);
    }
    fields.insert(VARY, HeaderValue::from_static("Accept"));
    fields.insert(CACHE_CONTROL, HeaderValue::from_static("public"));
    Some(reply)
}

/// A list, in a format that the client accepts.
fn list<T: Object>(list: &T, headers: &HeaderMap) -> Result<ApiResponse, Status> {
    let format = format(headers)?;
    let media = match format {
        Format::Json | Format::Cbor => "application/json",
        Format::Yaml => "application/yaml",
        Format::Protobuf => "application/vnd.kubernetes.protobuf",
    };
    let mut reply = responses::full(StatusCode::OK, media, list.write(format, Layout::Compact));
    let fields = reply.headers_mut();
    fields.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    Ok(reply)
}

fn format(headers: &HeaderMap) -> Result<Format, Status> {
    let refusal = || {
        not_acceptable(&[
            "application/json",
            "application/yaml",
            "application/vnd.kubernetes.protobuf",
        ])
    };
    negotiate(headers, &OFFERS).ok_or_else(refusal)
}

/// `/api` for clients without aggregated discovery.
fn versions(address: SocketAddr, headers: &HeaderMap) -> Result<ApiResponse, Status> {
    format(headers)?;
    // With the field order of Go.
    let text = format!(
        "{{\"kind\":\"APIVersions\",\"versions\":[\"v1\"],\"serverAddressByClientCIDRs\":\
         [{{\"clientCIDR\":\"0.0.0.0/0\",\"serverAddress\":\"{address}\"}}]}}\n"
    );
    let mut reply = responses::full(StatusCode::OK, "application/json", text);
    let fields = reply.headers_mut();
    fields.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    Ok(reply)
}
