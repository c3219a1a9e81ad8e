//! What the playground can be told while it runs, by keys or over HTTP.

use std::fmt;

use serde_json::{Value, json};
use skewbridge_playground::catalogue::Release;
use skewbridge_playground::cluster::{Cluster, ClusterError, Server};
use tokio::sync::oneshot;

/// What is to become of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Deed {
    Kill,
    Stop,
    Start,
    /// Stop if it runs, else start.
    Toggle,
    Upgrade,
    Downgrade,
}

/// An order, and where the answer goes.
#[derive(Debug)]
pub(super) struct Order {
    pub(super) wish: Wish,
    pub(super) answer: oneshot::Sender<Answer>,
}

#[derive(Debug)]
pub(super) enum Wish {
    /// How all servers are.
    Show,
    /// Something for one of them.
    Do { server: String, deed: Deed },
}

/// What has come of an order.
#[derive(Debug)]
pub(super) enum Answer {
    Done(Value),
    Unknown(String),
    /// The server is in a state in which this cannot be done.
    Impossible(String),
    Failed(String),
}

impl Deed {
    /// By its word.
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

    /// Why it cannot be done to a server, if it cannot.
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

    /// The release that a server is to have.
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

impl fmt::Display for Deed {
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

/// Carries an order out.
pub(super) async fn carry_out(cluster: &mut Cluster, wish: &Wish) -> Answer {
    let (server, deed) = match wish {
        Wish::Show => {
            let servers: Vec<_> = cluster.servers().iter().map(tell).collect();
            return Answer::Done(json!({"servers": servers}));
        }
        Wish::Do { server, deed } => (server, *deed),
    };
    let index = match cluster.find(server) {
        Ok(index) => index,
        Err(error) => return Answer::Unknown(error.to_string()),
    };
    if let Some(reason) = refusal(cluster, index, deed) {
        return Answer::Impossible(reason);
    }
    match perform(cluster, index, deed).await {
        Ok(()) => Answer::Done(tell(&cluster.servers()[index])),
        Err(error) => Answer::Failed(error.to_string()),
    }
}

/// Why something cannot be done to a server, if it cannot.
pub(super) fn refusal(cluster: &Cluster, index: usize, deed: Deed) -> Option<String> {
    let server = cluster.servers().get(index)?;
    deed.refusal(server.name(), server.release(), server.is_running())
}

/// Does something to a server.
pub(super) async fn perform(
    cluster: &mut Cluster,
    index: usize,
    deed: Deed,
) -> Result<(), ClusterError> {
    let Some(server) = cluster.servers().get(index) else {
        return Ok(());
    };
    let (runs, release) = (server.is_running(), server.release());
    match deed {
        Deed::Kill => cluster.kill(index).await,
        Deed::Stop => cluster.stop(index).await,
        Deed::Toggle if runs => cluster.stop(index).await,
        Deed::Start | Deed::Toggle => cluster.start_server(index).await?,
        Deed::Upgrade | Deed::Downgrade => {
            cluster.set_release(index, deed.release(release)).await?;
        }
    }
    Ok(())
}

/// A server, for machines.
fn tell(server: &Server) -> Value {
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
    fn what_cannot_be_done_is_refused_with_a_reason() {
        let [oldest, middle, newest] = Release::ALL;
        let rows = [
            (Deed::Kill, middle, true, None),
            (Deed::Kill, middle, false, Some("it is not running")),
            (Deed::Stop, middle, false, Some("it is not running")),
            (Deed::Start, middle, false, None),
            (Deed::Start, middle, true, Some("it is running already")),
            (Deed::Toggle, middle, true, None),
            (Deed::Toggle, middle, false, None),
            (Deed::Upgrade, oldest, false, None),
            (
                Deed::Upgrade,
                newest,
                true,
                Some("it has the newest version, 1.36"),
            ),
            (
                Deed::Upgrade,
                newest,
                false,
                Some("it has the newest version, 1.36"),
            ),
            (
                Deed::Downgrade,
                oldest,
                true,
                Some("it has the oldest version, 1.28"),
            ),
            (Deed::Downgrade, newest, true, None),
        ];
        for (deed, release, is_running, reason) in rows {
            let expected = reason.map(|reason| format!("cannot {deed} server-x: {reason}"));
            let refused = deed.refusal("server-x", release, is_running);
            assert_eq!(refused, expected, "{deed} {release} {is_running}");
        }
    }

    #[test]
    fn releases_go_up_and_down_to_the_ends() {
        let [oldest, middle, newest] = Release::ALL;
        let rows = [
            (Deed::Upgrade, oldest, middle),
            (Deed::Upgrade, newest, newest),
            (Deed::Downgrade, middle, oldest),
            (Deed::Downgrade, oldest, oldest),
            (Deed::Stop, middle, middle),
        ];
        for (deed, from, to) in rows {
            assert_eq!(deed.release(from), to, "{deed} {from}");
        }
    }
}
