//! The status page: rendered here as a whole, so that it works without JavaScript. With JavaScript,
//! changed sections replace those of the page.

mod html;
mod picture;
mod sections;

use std::sync::LazyLock;

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use self::html::Escaped;
pub(crate) use self::html::shortened;
pub(crate) use self::sections::{Section, sections};
use super::StatusDocument;

/// Style, script and frame of the page.
const PAGE: &str = include_str!("page.html");

/// The part of [`PAGE`] between two marks; empty if they are missing, which a test excludes.
fn page_part(start: &str, end: &str) -> &'static str {
    let rest = PAGE.split_once(start).map_or("", |(_, rest)| rest);
    rest.split_once(end).map_or("", |(part, _)| part)
}

/// Permits the style and the script of the page, and requests to the bridge. Nothing else is loaded,
/// and the page cannot be framed.
pub(crate) static CONTENT_SECURITY_POLICY: LazyLock<String> = LazyLock::new(|| {
    let hash = |text: &str| STANDARD.encode(digest(&SHA256, text.as_bytes()));
    format!(
        "default-src 'none'; style-src 'sha256-{}'; script-src 'sha256-{}'; connect-src 'self'; \
         img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        hash(page_part("<style>", "</style>")),
        hash(page_part("<script>", "</script>")),
    )
});

/// The page.
pub(crate) fn page(document: &StatusDocument) -> String {
    let sections: String = sections(document).into_iter().map(|it| it.html).collect();
    let title = Escaped(&title(document)).to_string();
    // The content of sections is inserted last: it may contain any text.
    PAGE.replace("{{title}}", &title)
        .replace("{{sections}}", &sections)
}

/// The servers behind the bridge.
pub(crate) fn title(document: &StatusDocument) -> String {
    let local = document.servers.iter().filter(|it| it.local);
    let names: Vec<_> = local.map(|it| it.name().to_owned()).collect();
    shortened(&names.join(", "), 60)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::{
        ApiMatrix, ApiMatrixRow, Bridge, Certificate, DepartedServer, Event, OpenRequests,
        ReachedBy, Registry, Server, ServerState, StopImpact, Table, TappedRequest, TappedRequests,
        Traffic, TrafficRow,
    };

    const HOSTILE: &str = "<img src=x onerror=alert(1)>\"'{{sections}}&\u{202e}";

    /// A document in which every text is hostile.
    #[allow(clippy::too_many_lines)] // every field
    fn hostile() -> StatusDocument {
        let text = || HOSTILE.to_owned();
        let texts = || vec![text()];
        let request = TappedRequest {
            time: text(),
            verb: text(),
            path: text(),
            user: text(),
            user_agent: text(),
            server: Some(text()),
            rule: Some(text()),
            ..TappedRequest::default()
        };
        let tapped = || TappedRequests {
            requests: vec![request.clone()],
            skipped: 3,
        };
        let server = |state| Server {
            identity: text(),
            host: Some(text()),
            state,
            problem: Some(text()),
            version: Some(text()),
            git_version: Some(text()),
            emulated_version: Some(text()),
            min_compatibility_version: Some(text()),
            address: Some(text()),
            serves_alone: texts(),
            certificate_expires: Some(text()),
            reached_by: vec![ReachedBy {
                bridge: text(),
                reached: false,
            }],
            ..Server::default()
        };
        StatusDocument {
            time: text(),
            bridge: Bridge {
                version: text(),
                problems: texts(),
                local_only: Some(text()),
                waiting_for: Some(text()),
                registry: Some(Registry {
                    kind: text(),
                    up: false,
                    last_error: Some(text()),
                }),
                ..Bridge::default()
            },
            servers: vec![server(ServerState::Ready), server(ServerState::Unreachable)],
            departed: vec![DepartedServer {
                time: text(),
                name: text(),
                version: Some(text()),
            }],
            matrix: ApiMatrix {
                servers: texts(),
                rows: vec![ApiMatrixRow {
                    group_version: text(),
                    resources: texts(),
                    served_by: vec![Some(true)],
                }],
                omitted: 1,
            },
            if_stopped: vec![StopImpact {
                server: text(),
                apis: texts(),
                remaining: texts(),
                ..StopImpact::default()
            }],
            traffic: Traffic {
                rows: vec![TrafficRow {
                    server: Some(text()),
                    rule: text(),
                    ..TrafficRow::default()
                }],
                ..Traffic::default()
            },
            open: vec![OpenRequests {
                server: text(),
                kind: text(),
                user: text(),
                program: text(),
                count: 1,
            }],
            rerouted: tapped(),
            refused: tapped(),
            certificates: vec![Certificate {
                flag: text(),
                expires: text(),
                days_left: 3,
            }],
            timeline: vec![Event {
                time: text(),
                tone: text(),
                server: Some(text()),
                text: text(),
            }],
            tables: vec![Table {
                id: "further".to_owned(),
                title: text(),
                caption: text(),
                columns: texts(),
                rows: vec![texts()],
            }],
            ..StatusDocument::default()
        }
    }

    #[test]
    fn every_text_is_escaped_wherever_it_stands() {
        let page = page(&hostile());
        for markup in [
            "<img",
            "onerror=alert(1)>",
            "\u{202e}",
            "\"'{{",
            "}}&\u{fffd}",
        ] {
            assert!(!page.contains(markup), "{markup}");
        }
        assert!(page.matches("&lt;img src=x").count() > 20);
    }

    #[test]
    fn the_policy_permits_what_the_page_contains_and_nothing_else() {
        let page = page(&hostile());
        let policy = &*CONTENT_SECURITY_POLICY;
        for (start, end, directive) in [
            ("<style>", "</style>", "style-src"),
            ("<script>", "</script>", "script-src"),
        ] {
            let (_, rest) = page.split_once(start).unwrap();
            let (part, rest) = rest.split_once(end).unwrap();
            assert!(part.len() > 100 && !rest.contains(start));
            let hash = STANDARD.encode(digest(&SHA256, part.as_bytes()));
            assert!(
                policy.contains(&format!("{directive} 'sha256-{hash}'")),
                "{policy}"
            );
        }
        // Inline attributes would not work.
        for attribute in [" style=", " onclick=", " onload=", "http://", "https://"] {
            assert!(!page.contains(attribute), "{attribute}");
        }
        assert!(!page.contains("{{"), "a placeholder is left");
    }

    #[test]
    fn the_page_is_rendered_before_anything_is_known() {
        let page = page(&StatusDocument::default());
        assert!(page.contains("</html>"));
        let ids: Vec<_> = sections(&StatusDocument::default())
            .into_iter()
            .map(|it| it.id)
            .collect();
        assert_eq!(ids.first().map(String::as_str), Some("summary"));
    }
}
