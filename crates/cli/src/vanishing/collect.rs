//! Queries the report of each bridge, all at once.

use http::StatusCode;
use skewbridge_client::{Kubeconfig, Request, Response, Target};
use skewbridge_gateway::vanishing::Report;
use tokio::task::JoinSet;

use super::flags::{Bridge, Options};
use super::merge::Answer;
use crate::admin_port::AdminTarget;
use crate::skew::refusal;

const PATH: &str = "/debug/vanishing";

/// Larger than the report of a full ledger.
const MAX_REPORT_BYTES: usize = 64 * 1024 * 1024;

/// The answer of each bridge, in the order of the flags.
pub(super) async fn reports(options: &Options) -> Result<Vec<Answer>, String> {
    let mut answers = Vec::new();
    let mut requests = JoinSet::new();
    for (index, (name, admin)) in targets(options)?.into_iter().enumerate() {
        answers.push(Answer {
            bridge: name,
            report: Err("it could not be queried".to_owned()),
        });
        let timeout = options.timeout;
        requests.spawn(async move {
            let request = Request::get(PATH).limit(MAX_REPORT_BYTES);
            let response = admin.get(&request, timeout).await;
            let response = response.map_err(|error| error.to_string());
            (index, response.and_then(|it| report(&it)))
        });
    }
    while let Some(finished) = requests.join_next().await {
        // A task is never aborted; if it panics, its bridge stays unknown.
        if let Ok((index, report)) = finished {
            answers[index].report = report;
        }
    }
    Ok(answers)
}

/// The admin ports, with their names.
fn targets(options: &Options) -> Result<Vec<(String, AdminTarget)>, String> {
    let needs_user = options
        .bridges
        .iter()
        .any(|it| matches!(it, Bridge::Secure(_)));
    let user = if needs_user {
        let loaded = Kubeconfig::load(options.kubeconfig.as_deref());
        let target = loaded.and_then(|it| it.target(options.context.as_deref()));
        Some(target.map_err(|error| error.to_string())?)
    } else {
        None
    };
    let targets = options.bridges.iter().filter_map(|bridge| {
        let admin = match bridge {
            Bridge::Loopback(address) => AdminTarget::Loopback(*address),
            Bridge::Secure(url) => {
                let name = options.tls_server_name.as_deref();
                let target: Target = user.clone()?.with_server(url, name);
                AdminTarget::Secure(Box::new(target))
            }
        };
        Some((bridge.to_string(), admin))
    });
    Ok(targets.collect())
}

/// The report in a response.
fn report(response: &Response) -> Result<Report, String> {
    match response.status {
        StatusCode::OK => serde_json::from_slice(&response.body)
            .map_err(|error| format!("it does not answer as the admin port of a bridge: {error}")),
        StatusCode::NOT_FOUND => Err(format!(
            "it has no {PATH}: is this the admin port of a bridge of this version?"
        )),
        _ => Err(refusal(PATH, response)),
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;

    use super::*;

    #[test]
    fn only_a_report_is_a_report() {
        let valid = r#"{"since":"2026-11-19T15:00:00Z","targetKnown":false,"calls":[]}"#;
        for (status, body, expected) in [
            (200, valid, None),
            (
                200,
                "{}",
                Some("it does not answer as the admin port of a bridge"),
            ),
            (404, valid, Some("it has no /debug/vanishing")),
            (
                403,
                r#"{"message":"not for you"}"#,
                Some("you are not allowed to read /debug/vanishing: not for you"),
            ),
        ] {
            let response = Response {
                status: StatusCode::from_u16(status).unwrap(),
                headers: HeaderMap::new(),
                body: body.into(),
            };
            let found = report(&response).err();
            let is_expected = match (&found, expected) {
                (Some(found), Some(expected)) => found.starts_with(expected),
                (found, expected) => found.is_none() && expected.is_none(),
            };
            assert!(is_expected, "{found:?}");
        }
    }
}
