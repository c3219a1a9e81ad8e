//! What is compared of two answers, and how they differ.

use std::collections::BTreeSet;
use std::io;

use skewbridge_testkit::Response;

/// How much of a body is shown.
const START: usize = 400;

/// What is compared of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResponseSnapshot {
    /// 0 where there is none.
    pub status: u16,
    /// Sorted by name, several of one name in their order: over HTTP/2 Go sends
    /// different names in any order.
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl ResponseSnapshot {
    /// Without what is about something else than the answer.
    pub fn of(answer: io::Result<Response>) -> Self {
        let Ok(answer) = answer else {
            return Self {
                status: 0,
                headers: Vec::new(),
                body: Vec::new(),
            };
        };
        let mut headers: Vec<_> = answer
            .headers
            .into_iter()
            .map(|(name, value)| (name.to_ascii_lowercase(), value))
            .filter(|(name, _)| !varies(name))
            .collect();
        headers.sort_by(|a, b| a.0.cmp(&b.0));
        let mut body = answer.body.to_vec();
        // kube-apiserver shuffles the fields of CBOR maps on purpose: the same
        // bytes, each time in another order.
        if headers.iter().any(|(_, value)| value.contains("cbor")) {
            body.sort_unstable();
        }
        Self {
            status: answer.status,
            headers,
            body,
        }
    }

    /// In what the answer through the bridge is another than this straight one,
    /// to be read by people; `None` where it is the same.
    pub fn difference(&self, bridged: &Self) -> Option<String> {
        if self == bridged {
            return None;
        }
        let mut lines = Vec::new();
        if self.status != bridged.status {
            let (straight, bridged) = (self.status, bridged.status);
            lines.push(format!("status: {straight} straight, {bridged} bridged"));
        }
        for name in self.names().union(&bridged.names()) {
            let (straight, bridged) = (self.values(name), bridged.values(name));
            if straight != bridged {
                lines.push(format!(
                    "{name}: {straight:?} straight, {bridged:?} bridged"
                ));
            }
        }
        if self.body != bridged.body {
            let (straight, bridged) = (self.body_text(), bridged.body_text());
            lines.push(format!("body: {straight} straight, {bridged} bridged"));
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
        let start = &self.body[..self.body.len().min(START)];
        let start = String::from_utf8_lossy(start);
        format!("{} bytes {start:?}", self.body.len())
    }
}

/// Headers that are about something else than the answer: the time of asking,
/// and those that describe a connection, of which there are two (RFC 9110,
/// section 7.6.1). Content-Length is compared.
fn varies(name: &str) -> bool {
    ["date", "connection", "keep-alive", "transfer-encoding"].contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, headers: &[(&str, &str)], body: &'static str) -> ResponseSnapshot {
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

    fn usual() -> ResponseSnapshot {
        answer(200, &[("Audit-Id", "a"), ("Warning", "b")], "{}")
    }

    #[track_caller]
    fn differs(bridged: &ResponseSnapshot, report: &str) {
        assert_eq!(usual().difference(bridged).as_deref(), Some(report));
        assert_ne!(bridged.difference(&usual()), None);
    }

    #[test]
    fn the_same_answer_is_no_difference() {
        assert_eq!(usual().difference(&usual()), None);
    }

    #[test]
    fn another_status_is_a_difference() {
        let bridged = answer(404, &[("Audit-Id", "a"), ("Warning", "b")], "{}");
        differs(&bridged, "status: 200 straight, 404 bridged");
    }

    #[test]
    fn another_missing_added_or_repeated_header_is_a_difference() {
        for (headers, report) in [
            (
                &[("Audit-Id", "a"), ("Warning", "c")][..],
                r#"warning: ["b"] straight, ["c"] bridged"#,
            ),
            (
                &[("Audit-Id", "a")],
                r#"warning: ["b"] straight, [] bridged"#,
            ),
            (
                &[("Audit-Id", "a"), ("Warning", "b"), ("Via", "c")],
                r#"via: [] straight, ["c"] bridged"#,
            ),
            (
                &[("Audit-Id", "a"), ("Warning", "b"), ("Warning", "b")],
                r#"warning: ["b"] straight, ["b", "b"] bridged"#,
            ),
        ] {
            differs(&answer(200, headers, "{}"), report);
        }
    }

    #[test]
    fn the_order_of_equal_names_matters_and_of_others_does_not() {
        let pair = |first, second| answer(200, &[("Warning", first), ("Warning", second)], "");
        assert_ne!(pair("a", "b").difference(&pair("b", "a")), None);
        let turned = answer(200, &[("warning", "b"), ("audit-id", "a")], "{}");
        assert_eq!(usual().difference(&turned), None);
    }

    #[test]
    fn another_body_is_a_difference() {
        let bridged = answer(200, &[("Audit-Id", "a"), ("Warning", "b")], "[]");
        differs(
            &bridged,
            r#"body: 2 bytes "{}" straight, 2 bytes "[]" bridged"#,
        );
    }

    /// Also where it is too far behind to be shown.
    #[test]
    fn a_body_that_ends_otherwise_is_a_difference() {
        let text = |end| -> &'static str { format!("{}{end}", "x".repeat(START)).leak() };
        let (one, two) = (answer(200, &[], text("a")), answer(200, &[], text("b")));
        assert_ne!(one.difference(&two), None);
    }

    #[test]
    fn no_answer_is_a_difference() {
        let none = ResponseSnapshot::of(Err(io::ErrorKind::UnexpectedEof.into()));
        let report = usual().difference(&none).expect("a difference");
        assert!(report.starts_with("status: 200 straight, 0 bridged"));
    }

    #[test]
    fn the_time_of_asking_and_the_connection_are_not_compared() {
        let with = answer(
            200,
            &[
                ("Audit-Id", "a"),
                ("Warning", "b"),
                ("Date", "today"),
                ("Connection", "close"),
            ],
            "{}",
        );
        assert_eq!(usual().difference(&with), None);
    }
}
