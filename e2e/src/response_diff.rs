//! Compares two responses.

use std::collections::BTreeSet;
use std::io;

use skewbridge_testkit::Response;

/// The maximum number of body bytes in a report.
const MAX_REPORTED_BYTES: usize = 400;

/// The parts of a response that are compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResponseSnapshot {
    /// The status; 0 without a response.
    pub status: u16,
    /// Sorted by name, with the order of values of one name kept: over HTTP/2 Go sends
    /// different names in any order.
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl ResponseSnapshot {
    /// Takes a response without the headers that vary.
    pub fn of(response: io::Result<Response>) -> Self {
        let Ok(response) = response else {
            return Self {
                status: 0,
                headers: Vec::new(),
                body: Vec::new(),
            };
        };
        let mut headers: Vec<_> = response
            .headers
            .into_iter()
            .map(|(name, value)| (name.to_ascii_lowercase(), value))
            .filter(|(name, _)| !varies(name))
            .collect();
        headers.sort_by(|a, b| a.0.cmp(&b.0));
        let mut body = response.body.to_vec();
        // kube-apiserver shuffles the fields of CBOR maps on purpose: the same bytes in
        // another order each time.
        if headers.iter().any(|(_, value)| value.contains("cbor")) {
            body.sort_unstable();
        }
        Self {
            status: response.status,
            headers,
            body,
        }
    }

    /// How the response through the bridge differs from this direct one, as text; `None` if
    /// it is the same.
    pub fn difference(&self, bridged: &Self) -> Option<String> {
        if self == bridged {
            return None;
        }
        let mut lines = Vec::new();
        if self.status != bridged.status {
            let (direct, bridged) = (self.status, bridged.status);
            lines.push(format!("status: {direct} direct, {bridged} bridged"));
        }
        for name in self.names().union(&bridged.names()) {
            let (direct, bridged) = (self.values(name), bridged.values(name));
            if direct != bridged {
                lines.push(format!("{name}: {direct:?} direct, {bridged:?} bridged"));
            }
        }
        if self.body != bridged.body {
            let (direct, bridged) = (self.body_text(), bridged.body_text());
            lines.push(format!("body: {direct} direct, {bridged} bridged"));
        }
        Some(lines.join("\n"))
    }

    fn names(&self) -> BTreeSet<&str> {
        self.headers.iter().map(|(name, _)| name.as_str()).collect()
    }

    fn values(&self, name: &str) -> Vec<&str> {
        let own = self.headers.iter().filter(|(its, _)| its == name);
        own.map(|(_, value)| value.as_str()).collect()
    }

    fn body_text(&self) -> String {
        let start = &self.body[..self.body.len().min(MAX_REPORTED_BYTES)];
        let start = String::from_utf8_lossy(start);
        format!("{} bytes {start:?}", self.body.len())
    }
}

/// Headers that may differ: the date, and those that describe one of the two connections
/// (RFC 9110, section 7.6.1). Content-Length is compared.
fn varies(name: &str) -> bool {
    ["date", "connection", "keep-alive", "transfer-encoding"].contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(status: u16, headers: &[(&str, &str)], body: &'static str) -> ResponseSnapshot {
        let headers = headers.iter();
        ResponseSnapshot::of(Ok(Response {
            version: http::Version::HTTP_11,
            status,
            headers: headers
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
            body: body.into(),
            trailers: Vec::new(),
        }))
    }

    fn sample() -> ResponseSnapshot {
        response(200, &[("Audit-Id", "a"), ("Warning", "b")], "{}")
    }

    #[track_caller]
    fn differs(bridged: &ResponseSnapshot, report: &str) {
        assert_eq!(sample().difference(bridged).as_deref(), Some(report));
        assert_ne!(bridged.difference(&sample()), None);
    }

    #[test]
    fn the_same_response_is_no_difference() {
        assert_eq!(sample().difference(&sample()), None);
    }

    #[test]
    fn another_status_is_a_difference() {
        let bridged = response(404, &[("Audit-Id", "a"), ("Warning", "b")], "{}");
        differs(&bridged, "status: 200 direct, 404 bridged");
    }

    #[test]
    fn a_changed_missing_added_or_repeated_header_is_a_difference() {
        for (headers, report) in [
            (
                &[("Audit-Id", "a"), ("Warning", "c")][..],
                r#"warning: ["b"] direct, ["c"] bridged"#,
            ),
            (&[("Audit-Id", "a")], r#"warning: ["b"] direct, [] bridged"#),
            (
                &[("Audit-Id", "a"), ("Warning", "b"), ("Via", "c")],
                r#"via: [] direct, ["c"] bridged"#,
            ),
            (
                &[("Audit-Id", "a"), ("Warning", "b"), ("Warning", "b")],
                r#"warning: ["b"] direct, ["b", "b"] bridged"#,
            ),
        ] {
            differs(&response(200, headers, "{}"), report);
        }
    }

    #[test]
    fn only_the_order_of_equal_names_matters() {
        let pair = |first, second| response(200, &[("Warning", first), ("Warning", second)], "");
        assert_ne!(pair("a", "b").difference(&pair("b", "a")), None);
        let turned = response(200, &[("warning", "b"), ("audit-id", "a")], "{}");
        assert_eq!(sample().difference(&turned), None);
    }

    #[test]
    fn another_body_is_a_difference() {
        let bridged = response(200, &[("Audit-Id", "a"), ("Warning", "b")], "[]");
        differs(
            &bridged,
            r#"body: 2 bytes "{}" direct, 2 bytes "[]" bridged"#,
        );
    }

    /// Also if the difference is beyond the printed part.
    #[test]
    fn a_body_with_another_end_is_a_difference() {
        let text =
            |end| -> &'static str { format!("{}{end}", "x".repeat(MAX_REPORTED_BYTES)).leak() };
        let (one, two) = (response(200, &[], text("a")), response(200, &[], text("b")));
        assert_ne!(one.difference(&two), None);
    }

    #[test]
    fn no_response_is_a_difference() {
        let none = ResponseSnapshot::of(Err(io::ErrorKind::UnexpectedEof.into()));
        let report = sample().difference(&none).expect("a difference");
        assert!(report.starts_with("status: 200 direct, 0 bridged"));
    }

    #[test]
    fn the_date_and_connection_headers_are_not_compared() {
        let with = response(
            200,
            &[
                ("Audit-Id", "a"),
                ("Warning", "b"),
                ("Date", "today"),
                ("Connection", "close"),
            ],
            "{}",
        );
        assert_eq!(sample().difference(&with), None);
    }
}
