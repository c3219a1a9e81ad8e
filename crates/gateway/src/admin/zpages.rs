//! `/statusz` and `/flagz` in the shape of Kubernetes 1.36: text for administrators, and JSON of
//! `config.k8s.io` where `Accept` requests it.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, WARNING};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use serde::Serialize;
use skewbridge_k8s_api::content_negotiation::{Format, MediaRange, sorted_accept};
use skewbridge_k8s_api::status::Status;
use skewbridge_k8s_api::time::{Time, unix_date};

use crate::health;

const COMPONENT: &str = "skewbridge";
const GROUP: &str = "config.k8s.io";

/// The first folder of each path of the port, as Kubernetes lists them.
const PATHS: [&str; 8] = [
    "/debug", "/flagz", "/healthz", "/livez", "/metrics", "/readyz", "/status", "/statusz",
];

/// A page, with its `kind`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Page {
    Statusz,
    Flagz,
}

impl Page {
    fn kind(self) -> &'static str {
        match self {
            Self::Statusz => "Statusz",
            Self::Flagz => "Flagz",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Statusz => "statusz",
            Self::Flagz => "flagz",
        }
    }
}

/// The versions of the structured pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    /// Deprecated.
    V1Alpha1,
    V1Beta1,
}

impl Version {
    fn as_str(self) -> &'static str {
        match self {
            Self::V1Alpha1 => "v1alpha1",
            Self::V1Beta1 => "v1beta1",
        }
    }
}

/// How a page is encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Encoding {
    Text,
    Json(Version),
}

/// Negotiates like Kubernetes: JSON only with all of `g`, `v` and `as`. `None` is 406.
fn encoding(headers: &HeaderMap, page: Page) -> Option<Encoding> {
    let Some(ranges) = sorted_accept(headers) else {
        return Some(Encoding::Text);
    };
    ranges.iter().find_map(|range| offer(range, page))
}

fn offer(range: &MediaRange<'_>, page: Page) -> Option<Encoding> {
    if range.has_unsupported_parameters() {
        return None;
    }
    if !range.is_transformed() {
        let is_text = matches!(
            (&*range.kind, &*range.subtype),
            ("*" | "text", "*") | ("text", "plain")
        );
        return is_text.then_some(Encoding::Text);
    }
    let is_page = range.includes(Format::Json)
        && range.parameter("g") == Some(GROUP)
        && range.parameter("as") == Some(page.kind());
    let versions = [Version::V1Alpha1, Version::V1Beta1];
    let mut versions = versions.into_iter().filter(|_| is_page);
    let version = versions.find(|it| range.parameter("v") == Some(it.as_str()))?;
    Some(Encoding::Json(version))
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Document<'a, T> {
    kind: &'static str,
    api_version: String,
    metadata: Metadata,
    #[serde(flatten)]
    content: &'a T,
}

#[derive(Serialize)]
struct Metadata {
    name: &'static str,
}

/// The content of `/statusz`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Statusz {
    start_time: String,
    uptime_seconds: u64,
    /// The program is not written in Go; the field is required.
    go_version: &'static str,
    binary_version: &'static str,
    paths: [&'static str; PATHS.len()],
}

/// The content of `/flagz`.
#[derive(Debug, Serialize)]
struct Flagz<'a> {
    flags: &'a BTreeMap<String, String>,
}

/// `/statusz` of a process that started at this time, in seconds since 1970.
pub(super) fn statusz(
    headers: &HeaderMap,
    started: u64,
    now: u64,
) -> Result<Response<Bytes>, Status> {
    let statusz = Statusz {
        start_time: Time::from_unix(i64::try_from(started).unwrap_or(i64::MAX)).to_string(),
        uptime_seconds: now.saturating_sub(started),
        go_version: "",
        binary_version: env!("CARGO_PKG_VERSION"),
        paths: PATHS,
    };
    let up = statusz.uptime_seconds;
    let text = format!(
        "\nStarted: {}\nUp: {} hr {:02} min {:02} sec\nBinary version: {}\nPaths: {}\n",
        unix_date(started),
        up / 3600,
        up / 60 % 60,
        up % 60,
        statusz.binary_version,
        PATHS.join(" "),
    );
    respond(headers, Page::Statusz, &statusz, &text)
}

/// `/flagz` of these flags: names without dashes, and values.
pub(super) fn flagz(
    headers: &HeaderMap,
    flags: &BTreeMap<String, String>,
) -> Result<Response<Bytes>, Status> {
    let mut text = String::new();
    for (name, value) in flags {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{name}={value}");
    }
    respond(headers, Page::Flagz, &Flagz { flags }, &text)
}

fn respond(
    headers: &HeaderMap,
    page: Page,
    content: &impl Serialize,
    text: &str,
) -> Result<Response<Bytes>, Status> {
    let version = match encoding(headers, page) {
        Some(Encoding::Text) => {
            let name = page.name();
            let page = format!(
                "\n{COMPONENT} {name}\nWarning: This endpoint is not meant to be machine parseable, \
                 has no formatting compatibility guarantees and is for debugging purposes only.\n\
                 {text}"
            );
            return Ok(health::text(StatusCode::OK, page));
        }
        Some(Encoding::Json(version)) => version,
        None => return Err(not_acceptable(page)),
    };
    let document = Document {
        kind: page.kind(),
        api_version: format!("{GROUP}/{}", version.as_str()),
        metadata: Metadata { name: COMPONENT },
        content,
    };
    // Serialising a plain structure with string keys cannot fail.
    let json = serde_json::to_string(&document).unwrap_or_default();
    let mut response = health::text(StatusCode::OK, json);
    let headers = response.headers_mut();
    insert(headers, CONTENT_TYPE, &media_type(page, version));
    if version == Version::V1Alpha1 {
        let name = page.name();
        let warning = format!(
            "299 - \"This version of the {name} endpoint is deprecated. Please use a newer version.\""
        );
        insert(headers, WARNING, &warning);
    }
    Ok(response)
}

fn media_type(page: Page, version: Version) -> String {
    let (version, kind) = (version.as_str(), page.kind());
    format!("application/json;g={GROUP};v={version};as={kind}")
}

fn insert(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    // The values are ASCII.
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}

fn not_acceptable(page: Page) -> Status {
    let json = media_type(page, Version::V1Beta1);
    let message = format!("only the following media types are accepted: {json}, text/plain");
    Status::new(406, "NotAcceptable", message)
}

#[cfg(test)]
mod tests {
    use http::header::ACCEPT;
    use serde_json::{Value, json};

    use super::*;

    fn accept(value: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        if !value.is_empty() {
            headers.insert(ACCEPT, value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn the_accept_header_selects_text_or_a_version() {
        let (alpha, beta) = (
            Encoding::Json(Version::V1Alpha1),
            Encoding::Json(Version::V1Beta1),
        );
        let rows = [
            ("", Some(Encoding::Text)),
            ("*/*", Some(Encoding::Text)),
            ("text/plain", Some(Encoding::Text)),
            ("text/*", Some(Encoding::Text)),
            ("text/html, */*;q=0.1", Some(Encoding::Text)),
            (
                "application/json;g=config.k8s.io;v=v1beta1;as=Statusz",
                Some(beta),
            ),
            (
                "application/json;v=v1alpha1;g=config.k8s.io;as=Statusz",
                Some(alpha),
            ),
            (
                "application/json;v=v1;g=config.k8s.io;as=Statusz, text/plain",
                Some(Encoding::Text),
            ),
            ("application/json", None),
            ("application/json;v=v1beta1;g=config.k8s.io", None),
            ("application/json;v=v1beta1;g=config.k8s.io;as=Flagz", None),
            ("text/plain;as=Statusz", None),
            ("text/html", None),
        ];
        for (value, expected) in rows {
            assert_eq!(encoding(&accept(value), Page::Statusz), expected, "{value}");
        }
    }

    #[test]
    fn statusz_has_the_fields_of_kubernetes() {
        let headers = accept("application/json;g=config.k8s.io;v=v1beta1;as=Statusz");
        let response = statusz(&headers, 1_700_000_000, 1_700_003_725).unwrap();
        let found: Value = serde_json::from_slice(response.body()).unwrap();
        let expected = json!({
            "kind": "Statusz",
            "apiVersion": "config.k8s.io/v1beta1",
            "metadata": {"name": "skewbridge"},
            "startTime": "2023-11-14T22:13:20Z",
            "uptimeSeconds": 3725,
            "goVersion": "",
            "binaryVersion": env!("CARGO_PKG_VERSION"),
            "paths": PATHS,
        });
        assert_eq!(found, expected);
        assert_eq!(response.headers().get(WARNING), None);
        let text = statusz(&accept(""), 1_700_000_000, 1_700_003_725).unwrap();
        let text = String::from_utf8(text.body().to_vec()).unwrap();
        assert!(
            text.starts_with("\nskewbridge statusz\nWarning: This endpoint"),
            "{text}"
        );
        let times = "\n\nStarted: Tue Nov 14 22:13:20 UTC 2023\nUp: 1 hr 02 min 05 sec\n";
        assert!(text.contains(times), "{text}");
    }

    #[test]
    fn flagz_has_every_flag_and_value() {
        let flags = [("tls-cert-file", "/a.crt"), ("v", "0")];
        let flags = flags.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let flags = flags.into_iter().collect();
        let headers = accept("application/json;g=config.k8s.io;v=v1alpha1;as=Flagz");
        let response = flagz(&headers, &flags).unwrap();
        let found: Value = serde_json::from_slice(response.body()).unwrap();
        assert_eq!(found["flags"], json!({"tls-cert-file": "/a.crt", "v": "0"}));
        assert_eq!(found["apiVersion"], "config.k8s.io/v1alpha1");
        assert!(response.headers().contains_key(WARNING));
        let text = flagz(&accept("*/*"), &flags).unwrap();
        assert!(text.body().ends_with(b"only.\ntls-cert-file=/a.crt\nv=0\n"));
    }

    #[test]
    fn other_formats_get_406() {
        let status = flagz(&accept("application/json"), &BTreeMap::new()).unwrap_err();
        assert_eq!(status.code, 406);
        let start = "only the following media types are accepted: application/json;g=config";
        assert!(status.message.starts_with(start), "{}", status.message);
    }
}
