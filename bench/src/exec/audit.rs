//! By which protocol commands were asked for, as kube-apiserver has noted it.

use anyhow::{Result, ensure};
use serde_json::Value;

/// Everybody has to have used WebSocket: a fallback would be another measurement.
pub(super) fn all_by_websocket(log: &str) -> Result<()> {
    let mut commands = 0_u32;
    for line in log.lines() {
        let Ok(event) = serde_json::from_str::<Value>(line) else {
            // The last one may be half written.
            continue;
        };
        if event["objectRef"]["subresource"] != "exec" {
            continue;
        }
        // By WebSocket it is a GET, by SPDY a POST.
        ensure!(
            event["verb"] == "get",
            "{} has asked for a command otherwise than by WebSocket",
            event["userAgent"]
        );
        commands += 1;
    }
    ensure!(commands > 0, "kube-apiserver has not noted any command");
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
    fn one_command_by_spdy_is_told_with_its_client() {
        let websocket = [event("get", "exec"), event("create", "status")].join("\n");
        all_by_websocket(&websocket).unwrap();
        all_by_websocket(&format!("{websocket}\n{{\"verb\":\"cr")).unwrap();
        let mixed = format!("{websocket}\n{}\n", event("create", "exec"));
        let told = all_by_websocket(&mixed).unwrap_err().to_string();
        assert!(told.starts_with(r#""kubectl/v1" has"#), "{told}");
    }

    #[test]
    fn a_log_without_commands_proves_nothing() {
        assert!(all_by_websocket(&event("get", "log")).is_err());
        assert!(all_by_websocket("").is_err());
    }
}
