//! The protocol of the exec requests, from kube-apiserver's audit log.

use anyhow::{Result, ensure};
use serde_json::Value;

/// All clients have to use WebSocket: a fallback would be another measurement.
pub(super) fn all_by_websocket(log: &str) -> Result<()> {
    let mut commands = 0_u32;
    for line in log.lines() {
        let Ok(event) = serde_json::from_str::<Value>(line) else {
            // The last line may be incomplete.
            continue;
        };
        if event["objectRef"]["subresource"] != "exec" {
            continue;
        }
        // A GET over WebSocket, a POST over SPDY.
        ensure!(
            event["verb"] == "get",
            "{} has requested a command without WebSocket",
            event["userAgent"]
        );
        commands += 1;
    }
    ensure!(commands > 0, "the audit log contains no command");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(verb: &str, subresource: &str) -> String {
        format!(
            r#"{{"verb":"{verb}","userAgent":"kubectl/v1","objectRef":{{"resource":"pods","subresource":"{subresource}"}}}}"#
        )
    }

    #[test]
    fn a_command_over_spdy_is_reported_with_its_client() {
        let websocket = [event("get", "exec"), event("create", "status")].join("\n");
        all_by_websocket(&websocket).unwrap();
        all_by_websocket(&format!("{websocket}\n{{\"verb\":\"cr")).unwrap();
        let mixed = format!("{websocket}\n{}\n", event("create", "exec"));
        let error = all_by_websocket(&mixed).unwrap_err().to_string();
        assert!(error.starts_with(r#""kubectl/v1" has"#), "{error}");
    }

    #[test]
    fn a_log_without_commands_is_an_error() {
        assert!(all_by_websocket(&event("get", "log")).is_err());
        assert!(all_by_websocket("").is_err());
    }
}
