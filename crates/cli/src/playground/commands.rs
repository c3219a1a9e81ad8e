//! Commands to a running playground, by keys or over HTTP.

use std::fmt;

use serde_json::{Value, json};
use skewbridge_fake_cluster::catalogue::Release;
use skewbridge_fake_cluster::cluster::{Cluster, ClusterError, Server};
use tokio::sync::oneshot;

/// An action on a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ServerAction {
    Kill,
    Stop,
    Start,
    /// Stop if it runs, else start.
    Toggle,
    Upgrade,
    Downgrade,
}

/// A command, and the channel for its result.
#[derive(Debug)]
pub(super) struct Command {
    pub(super) control_request: ControlRequest,
    pub(super) answer: oneshot::Sender<CommandResult>,
}

#[derive(Debug)]
pub(super) enum ControlRequest {
    /// The state of all servers.
    Show,
    /// An action on one server.
    Do {
        server: String,
        action: ServerAction,
    },
}

/// The result of a command.
#[derive(Debug)]
pub(super) enum CommandResult {
    Done(Value),
    Unknown(String),
    /// The action is not possible in the current state of the server.
    Impossible(String),
    Failed(String),
}

impl ServerAction {
    /// The action of this name.
    pub(super) fn named(word: &str) -> Option<Self> {
        Some(match word {
            "kill" => Self::Kill,
            "stop" => Self::Stop,
            "start" => Self::Start,
            "upgrade" => Self::Upgrade,
            "downgrade" => Self::Downgrade,
            _ => return None,
        })
    }

    /// Why the action is not possible, if it is not.
    pub(super) fn refusal(self, name: &str, release: Release, is_running: bool) -> Option<String> {
        let [oldest, .., newest] = Release::ALL;
        let reason = match self {
            Self::Kill | Self::Stop if !is_running => "is not running".to_owned(),
            Self::Start if is_running => "is running already".to_owned(),
            Self::Upgrade if release == newest => format!("has the newest version, {newest}"),
            Self::Downgrade if release == oldest => format!("has the oldest version, {oldest}"),
            _ => return None,
        };
        Some(format!("cannot {self} {name}: it {reason}"))
    }

    /// The release of the server after the action.
    fn release(self, now: Release) -> Release {
        let at = Release::ALL.iter().position(|it| *it == now);
        let at = at.unwrap_or_default();
        let next = match self {
            Self::Upgrade => at + 1,
            Self::Downgrade => at.saturating_sub(1),
            _ => at,
        };
        Release::ALL.get(next).copied().unwrap_or(now)
    }
}

impl fmt::Display for ServerAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kill => "kill",
            Self::Stop => "stop",
            Self::Start => "start",
            Self::Toggle => "stop or start",
            Self::Upgrade => "upgrade",
            Self::Downgrade => "downgrade",
        })
    }
}

/// Executes a request.
pub(super) async fn execute(
    cluster: &mut Cluster,
    control_request: &ControlRequest,
) -> CommandResult {
    let (server, action) = match control_request {
        ControlRequest::Show => {
            let servers: Vec<_> = cluster.servers().iter().map(server_json).collect();
            return CommandResult::Done(json!({"servers": servers}));
        }
        ControlRequest::Do { server, action } => (server, *action),
    };
    let index = match cluster.find(server) {
        Ok(index) => index,
        Err(error) => return CommandResult::Unknown(error.to_string()),
    };
    if let Some(reason) = refusal(cluster, index, action) {
        return CommandResult::Impossible(reason);
    }
    match perform(cluster, index, action).await {
        Ok(()) => CommandResult::Done(server_json(&cluster.servers()[index])),
        Err(error) => CommandResult::Failed(error.to_string()),
    }
}

/// Why an action is not possible, if it is not.
pub(super) fn refusal(cluster: &Cluster, index: usize, action: ServerAction) -> Option<String> {
    let server = cluster.servers().get(index)?;
    action.refusal(server.name(), server.release(), server.is_running())
}

/// Performs an action on a server.
pub(super) async fn perform(
    cluster: &mut Cluster,
    index: usize,
    action: ServerAction,
) -> Result<(), ClusterError> {
    let Some(server) = cluster.servers().get(index) else {
        return Ok(());
    };
    let (runs, release) = (server.is_running(), server.release());
    match action {
        ServerAction::Kill => cluster.kill(index).await,
        ServerAction::Stop => cluster.stop(index).await,
        ServerAction::Toggle if runs => cluster.stop(index).await,
        ServerAction::Start | ServerAction::Toggle => cluster.start_server(index).await?,
        ServerAction::Upgrade | ServerAction::Downgrade => {
            cluster.set_release(index, action.release(release)).await?;
        }
    }
    Ok(())
}

/// A server as JSON.
fn server_json(server: &Server) -> Value {
    json!({
        "name": server.name(),
        "release": server.release().to_string(),
        "running": server.is_running(),
        "url": format!("https://{}", server.address()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_actions_are_refused_with_a_reason() {
        let [oldest, middle, newest] = Release::ALL;
        let rows = [
            (ServerAction::Kill, middle, true, None),
            (ServerAction::Kill, middle, false, Some("it is not running")),
            (ServerAction::Stop, middle, false, Some("it is not running")),
            (ServerAction::Start, middle, false, None),
            (
                ServerAction::Start,
                middle,
                true,
                Some("it is running already"),
            ),
            (ServerAction::Toggle, middle, true, None),
            (ServerAction::Toggle, middle, false, None),
            (ServerAction::Upgrade, oldest, false, None),
            (
                ServerAction::Upgrade,
                newest,
                true,
                Some("it has the newest version, 1.36"),
            ),
            (
                ServerAction::Upgrade,
                newest,
                false,
                Some("it has the newest version, 1.36"),
            ),
            (
                ServerAction::Downgrade,
                oldest,
                true,
                Some("it has the oldest version, 1.28"),
            ),
            (ServerAction::Downgrade, newest, true, None),
        ];
        for (action, release, is_running, reason) in rows {
            let expected = reason.map(|reason| format!("cannot {action} server-x: {reason}"));
            let refused = action.refusal("server-x", release, is_running);
            assert_eq!(refused, expected, "{action} {release} {is_running}");
        }
    }

    #[test]
    fn releases_have_a_next_and_a_previous_one() {
        let [oldest, middle, newest] = Release::ALL;
        let rows = [
            (ServerAction::Upgrade, oldest, middle),
            (ServerAction::Upgrade, newest, newest),
            (ServerAction::Downgrade, middle, oldest),
            (ServerAction::Downgrade, oldest, oldest),
            (ServerAction::Stop, middle, middle),
        ];
        for (action, from, to) in rows {
            assert_eq!(action.release(from), to, "{action} {from}");
        }
    }
}
