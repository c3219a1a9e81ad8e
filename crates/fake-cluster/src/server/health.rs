//! `/version`, `/healthz`, `/livez` and `/readyz`, `/metrics`, and the list of paths.

use std::fmt::Write as _;

use http::StatusCode;
use serde_json::json;

use super::Server;
use super::query::Query;
use super::responses::{self, ApiResponse};

/// The checks that `?verbose` shows.
const CHECKS: [&str; 4] = [
    "ping",
    "log",
    "etcd",
    "poststarthook/start-apiserver-identity",
];

/// Responses of non-resource paths other than discovery; `None` for unknown paths.
pub(super) fn answer(server: &Server, path: &str, query: &Query) -> Option<ApiResponse> {
    let trimmed = path.trim_end_matches('/');
    Some(match trimmed {
        "/version" => version(server),
        "/healthz" | "/livez" | "/readyz" => health(server, &trimmed[1..], query),
        "/metrics" => metrics(server),
        "" => paths(server),
        _ => {
            let (endpoint, check) = trimmed.strip_prefix('/')?.split_once('/')?;
            let is_known = matches!(endpoint, "healthz" | "livez" | "readyz");
            if !is_known || !CHECKS.contains(&check) {
                return None;
            }
            responses::text(StatusCode::OK, "ok")
        }
    })
}

fn version(server: &Server) -> ApiResponse {
    let git = server.release.git_version();
    let mut numbers = git.trim_start_matches('v').split('.');
    let (major, minor) = (numbers.next(), numbers.next());
    responses::json(
        StatusCode::OK,
        &json!({
            "major": major.unwrap_or_default(),
            "minor": minor.unwrap_or_default(),
            "gitVersion": git,
            "gitCommit": "",
            "gitTreeState": "clean",
            "buildDate": "1970-01-01T00:00:00Z",
            "goVersion": "",
            "compiler": "rustc",
            "platform": format!("{}/{}", std::env::consts::OS, go_architecture()),
        }),
    )
}

fn go_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn health(server: &Server, endpoint: &str, query: &Query) -> ApiResponse {
    let not_ready = endpoint == "readyz" && server.drain.is_not_ready();
    let code = if not_ready {
        StatusCode::INTERNAL_SERVER_ERROR
    } else {
        StatusCode::OK
    };
    if query.find("verbose").is_none() && !not_ready {
        return responses::text(code, "ok");
    }
    let mut text = String::new();
    for check in CHECKS {
        // Writing to a String does not fail.
        let _ = writeln!(text, "[+]{check} ok");
    }
    let _ = if not_ready {
        write!(
            text,
            "[-]shutdown failed: reason withheld\n{endpoint} check failed\n"
        )
    } else {
        writeln!(text, "{endpoint} check passed")
    };
    responses::text(code, text)
}

fn metrics(server: &Server) -> ApiResponse {
    let git = server.release.git_version();
    let (objects, version) = server
        .store
        .read(|store| (store.all().count(), store.version()));
    let text = format!(
        "# HELP kubernetes_build_info A metric with a constant '1' value labeled by version.\n\
         # TYPE kubernetes_build_info gauge\n\
         kubernetes_build_info{{git_version=\"{git}\"}} 1\n\
         # HELP playground_objects Objects in the store that all servers share.\n\
         # TYPE playground_objects gauge\n\
         playground_objects {objects}\n\
         # HELP playground_resource_version The latest version of that store.\n\
         # TYPE playground_resource_version counter\n\
         playground_resource_version {version}\n"
    );
    responses::full(
        StatusCode::OK,
        "text/plain; version=0.0.4; charset=utf-8",
        text,
    )
}

/// `/`: the list of paths.
fn paths(server: &Server) -> ApiResponse {
    let mut paths = vec!["/api".to_owned(), "/api/v1".to_owned(), "/apis".to_owned()];
    for group in server.catalogue.groups().groups {
        paths.push(format!("/apis/{}", group.name));
        let versions = group.versions.iter();
        paths.extend(versions.map(|it| format!("/apis/{}", it.group_version)));
    }
    for endpoint in ["healthz", "livez", "readyz"] {
        paths.push(format!("/{endpoint}"));
        paths.extend(CHECKS.iter().map(|check| format!("/{endpoint}/{check}")));
    }
    for path in ["/metrics", "/openapi/v2", "/openapi/v3", "/version"] {
        paths.push(path.to_owned());
    }
    paths.sort();
    responses::json(StatusCode::OK, &json!({"paths": paths}))
}
