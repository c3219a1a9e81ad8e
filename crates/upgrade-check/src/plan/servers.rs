//! The order of the kube-apiservers, and the step of each.

use skewbridge_released_apis::Minor;

use super::{Check, Hop, RollbackPoint, Step, commands, is_before};
use crate::direction::Direction;
use crate::facts::{Bridge, Server};

impl Hop<'_> {
    /// A step for each server that this hop changes, the oldest version first: in an upgrade it lacks
    /// most, and on the way back the newest one serves the APIs of all as long as it runs. A server
    /// whose version is not known is the last one.
    pub(super) fn servers(&self) -> Vec<Step> {
        let minor = self.minor();
        let has_minor =
            |it: &Server| (it.version.as_ref()).is_ok_and(|it| Minor::from(*it) == minor);
        let mut is_first = !self.facts.servers.iter().any(has_minor);
        let mut servers: Vec<_> = self.facts.servers.iter().collect();
        servers.retain(|it| match &it.version {
            Ok(version) => is_before(self.direction, Minor::from(*version), minor),
            Err(_) => true,
        });
        servers.sort_by_key(|it| {
            (
                it.version.is_err(),
                it.version.clone().ok(),
                it.name.clone(),
            )
        });
        let count = servers.len();
        let steps = servers.into_iter().enumerate().map(|(number, server)| {
            let step = self.server(server, is_first);
            is_first = false;
            if number + 1 == count && self.direction == Direction::Rollback {
                let newest =
                    "It is the last one of the newer version: APIs that only it serves go now.";
                return step.note(newest);
            }
            step
        });
        steps.collect()
    }

    fn server(&self, server: &Server, is_first: bool) -> Step {
        let name = &server.name;
        // In the hops after the first one, a server may have the version of the hop before.
        let from = match (self.previous, &server.version) {
            (Some(previous), Ok(own)) => {
                let is_changed = is_before(self.direction, (*own).into(), previous.into());
                Some(if is_changed { previous } else { *own })
            }
            (None, Ok(own)) => Some(*own),
            (previous, Err(_)) => previous,
        };
        let from = from.map_or_else(String::new, |it| format!("from {it} "));
        let verb = match self.direction {
            Direction::Upgrade => "Upgrade",
            Direction::Rollback => "Return",
        };
        let title = format!("{verb} the kube-apiserver {name} {from}to {}", self.text());
        let mut step = Step::new(self.phase(), title).note(self.in_front(server));
        if is_first && self.direction == Direction::Upgrade {
            step = step.note(format!(
                "It is the first one of {}: from now on, objects can be stored with its new APIs and \
                 fields.",
                self.minor()
            ));
        }
        let has_bridge = matches!(server.bridge, Some(Bridge::Peer | Bridge::LocalOnly(_)));
        match self.direction {
            Direction::Upgrade => {
                let text = self.text();
                step = step.commands(commands::upgrade_server(&text, is_first, has_bridge));
                step.rollback = self.before().map(|before| RollbackPoint {
                    when: "it is not ready after 10 minutes, or a check fails".to_owned(),
                    commands: commands::restore(
                        before.into(),
                        &[
                            "kube-controller-manager.yaml",
                            "kube-scheduler.yaml",
                            "kube-apiserver.yaml",
                        ],
                    ),
                });
            }
            Direction::Rollback => {
                step = step.commands(commands::restore(self.minor(), &["kube-apiserver.yaml"]));
            }
        }
        step.checks(self.ready(server))
    }

    /// Whether a bridge protects the clients of a server.
    fn in_front(&self, server: &Server) -> String {
        let others = self.facts.servers.iter();
        let others = others.filter(|it| it.name != server.name && it.bridge == Some(Bridge::Peer));
        let others: Vec<_> = others.map(|it| it.name.clone()).collect();
        match &server.bridge {
            Some(Bridge::Peer) if others.is_empty() => format!(
                "In front of it: the bridge at {}. No other server has one.",
                server.name
            ),
            Some(Bridge::Peer) => format!(
                "In front of it: the bridge at {}. While kube-apiserver restarts, its /readyz fails, and \
                 load balancers use the bridges at {}.",
                server.name,
                super::listed(&others)
            ),
            Some(Bridge::LocalOnly(why)) => format!(
                "In front of it: a bridge that is local-only ({why}). Until that is corrected, its \
                 clients get 404 for APIs that only other servers serve."
            ),
            Some(Bridge::Balancer) => {
                "A bridge in front of several kube-apiservers answers; while this one restarts, it uses \
                 the others."
                    .to_owned()
            }
            None => "No bridge is in front of it: while versions are mixed, its direct clients get 404 \
                     for APIs that only other servers serve, and it erases fields that it does not have. \
                     A balancer with skewbridge protects the clients that use the balancer."
                .to_owned(),
        }
    }

    /// What to wait for after a server has changed, and what to check then.
    fn ready(&self, server: &Server) -> Vec<Check> {
        let name = &server.name;
        let mut checks = vec![
            Check::new(
                format!("kubectl --server=https://{name} get --raw='/readyz?verbose'"),
                "wait for `readyz check passed`",
            ),
            Check::new(
                format!("kubectl --server=https://{name} get --raw=/version"),
                format!("`gitVersion` begins with v{}", self.text()),
            ),
        ];
        if server.bridge == Some(Bridge::Peer) {
            let bridges = self.facts.servers.len().saturating_sub(1);
            checks.push(Check::new(
                "curl -s 'http://127.0.0.1:10270/readyz?verbose'",
                format!(
                    "on its node: wait for `[+]peers ok: {bridges} of {bridges} reachable` and `readyz \
                     check passed`"
                ),
            ));
            checks.push(commands::check_bridges());
        }
        checks.push(Check::new(
            "kubectl -n kube-system get pods -l tier=control-plane",
            "each is Running, and its RESTARTS do not rise",
        ));
        checks
    }
}
