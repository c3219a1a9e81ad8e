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
    match perform(cluster, index, deed).await {
        Ok(()) => Answer::Done(tell(&cluster.servers()[index])),
        Err(error) => Answer::Failed(error.to_string()),
    }
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
        Deed::Start | Deed::Toggle => cluster.resume(index).await?,
        Deed::Upgrade | Deed::Downgrade => {
            let next = deed.release(release);
            if next != release || !runs {
                cluster.change(index, next).await?;
            }
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
