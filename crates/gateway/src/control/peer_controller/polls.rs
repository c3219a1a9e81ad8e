//! Polls of the local server and of peers, and their time limits.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use skewbridge_peer_directory::{Identity, Peer, ServedApis};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::confirmation::LocalPoll;
use super::discovery_fetch::{self, fetch_version};
use super::fields;
use super::listed_servers::certificate_names;
use super::{Event, PeerController};
use crate::bridge_headers::bridge_of;
use crate::control::internal_client::{InternalClient, InternalResponse, InternalTarget};
use crate::metrics::peers::SyncErrorType;
use crate::server_report::ServerReport;

/// The timeout of a poll of a server.
const POLL_TIMEOUT: Duration = Duration::from_secs(10);

/// The timeout of a poll of a peer whose documents are known: its requests are conditional, and a
/// client request may be waiting for the result.
const REFRESH_TIMEOUT: Duration = Duration::from_secs(5);

/// The result of polling a peer.
pub(super) struct PeerPoll {
    pub(super) outcome: Result<ServedApis, String>,
    /// Whether the peer has answered the first request.
    pub(super) has_answered: bool,
    /// The address, and the identity of the server whose bridge has answered there, if the bridge
    /// has named it.
    pub(super) bridge_at: Option<(SocketAddr, Option<Identity>)>,
}

impl PeerController {
    /// Starts the polls that are due.
    pub(super) fn start_polls(&mut self, tasks: &mut JoinSet<()>) {
        self.start_field_loads(tasks);
        let now = Instant::now();
        if self.local_schedule.begin_if_due(now) {
            self.poll_local(tasks, now);
        }
        for address in self.addresses.listed_servers.take_due(now) {
            let (client, events) = (self.client.clone(), self.events.clone());
            tasks.spawn(async move {
                let names = certificate_names(&client.bridge, address).await;
                let _ = events.send(Event::Certificate(address, names)).await;
            });
        }
        for peer in self.peer_table.take_due(now) {
            self.poll_peer(tasks, peer);
        }
    }

    fn poll_local(&mut self, tasks: &mut JoinSet<()>, now: Instant) {
        self.refresh_waiters.append(&mut self.next_refresh_waiters);
        let (client, events) = (self.client.clone(), self.events.clone());
        let (known, shared) = (self.local.clone(), self.shared.clone());
        let poll_begin = LocalPoll {
            began: now,
            doubts: client.bridge.local_health.confirmation.doubts(),
        };
        tasks.spawn(async move {
            let target = InternalTarget::Upstream;
            let first = fetch_version(&client, target);
            let rest = |version| {
                discovery_fetch::fetch(
                    &client,
                    target,
                    version,
                    known.as_deref(),
                    shared.as_deref(),
                )
            };
            let (outcome, _) = poll(POLL_TIMEOUT, first, rest).await;
            let _ = events.send(Event::Local(outcome, poll_begin)).await;
        });
    }

    fn poll_peer(&self, tasks: &mut JoinSet<()>, peer: Arc<Peer>) {
        let (client, events) = (self.client.clone(), self.events.clone());
        let shared = self.shared.clone();
        tasks.spawn(async move {
            let began = Instant::now();
            let has_etags = |it: &Arc<ServedApis>| it.etags.iter().all(Option::is_some);
            let poll_timeout = match &peer.served {
                Some(served) if has_etags(served) => REFRESH_TIMEOUT,
                _ => POLL_TIMEOUT,
            };
            let target = InternalTarget::Peer(&peer);
            let first = fetch_version(&client, target);
            let bridge_at = OnceLock::new();
            let rest = |version: InternalResponse| {
                // The peer answers requests even if the rest of the poll fails.
                peer.health.mark_reachable();
                let _ = bridge_at.set(bridge_of(&version.headers));
                note_report(&client, &peer, &version);
                let known = peer.served.as_deref();
                discovery_fetch::fetch(&client, target, version, known, shared.as_deref())
            };
            let (outcome, has_answered) = poll(poll_timeout, first, rest).await;
            let metrics = client.bridge.metrics.peers();
            metrics.polled(&peer, outcome.is_ok());
            if !has_answered {
                peer.health.record_timeout(began.elapsed());
                peer.health.record_unanswered_poll();
            }
            let poll = PeerPoll {
                outcome,
                has_answered,
                bridge_at: peer.address.zip(bridge_at.into_inner()),
            };
            let _ = events.send(Event::Peer(peer.identity.clone(), poll)).await;
        });
    }

    /// Loads the fields of servers that are not known yet.
    fn start_field_loads(&mut self, tasks: &mut JoinSet<()>) {
        let (Some(fields), Some(local), Some(shared)) =
            (&mut self.fields, &self.local, &self.shared)
        else {
            return;
        };
        let Some(cluster_handle) = &self.client.bridge.cluster_handle else {
            return;
        };
        let cluster = cluster_handle.cluster.load();
        if let Some(used) = fields.take_used(Instant::now()) {
            tasks.spawn(fields::note_use(used));
        }
        for needed in fields.take_needed(local, &cluster.peers, Instant::now()) {
            let (client, events) = (self.client.clone(), self.events.clone());
            let shared = shared.clone();
            tasks.spawn(async move {
                let result = fields::load(&client, &needed, &shared).await;
                let _ = events.send(Event::Fields(needed.key, result)).await;
            });
        }
    }

    /// The result of a poll of a peer.
    pub(super) fn on_peer_poll(
        &mut self,
        identity: &Identity,
        poll: PeerPoll,
        now: Instant,
        jitter: f64,
    ) {
        let PeerPoll {
            outcome,
            has_answered,
            bridge_at,
        } = poll;
        let has_failed = outcome.is_err();
        let metrics = self.client.bridge.metrics.peers();
        let name = self.name_of(identity);
        if self.peer_table.polls_fallback(identity) {
            // The state of the peer is that of its bridge.
            tracing::debug!(peer = %name, problem = outcome.as_ref().err(), "a peer was polled directly, because its bridge does not answer");
        } else if let Err(problem) = &outcome {
            metrics.sync_error(SyncErrorType::Fetch);
            if self.discovered.remove(identity) {
                tracing::warn!(peer = %name, %problem, "discovery of a peer failed; its last result stays in use");
            } else {
                tracing::debug!(peer = %name, %problem, "discovery of a peer failed");
            }
        } else if self.discovered.insert(identity.clone()) {
            tracing::info!(peer = %name, "discovery of a peer succeeded");
        }
        if outcome.is_ok() {
            self.records.mark_polled(identity);
        }
        self.peer_table
            .record_poll(identity, outcome, now, SystemTime::now(), jitter);
        if has_failed && has_answered {
            // The bridge of the peer answers although its server does not.
            self.peer_table.record_bridge_answer(identity, now);
        }
        if let Some((address, bridge_of)) = bridge_at
            && self.addresses.listed_servers.on_answer(address, bridge_of)
        {
            self.apply_addresses(now);
        }
    }
}

/// Keeps what a peer reports of itself, for the status page.
fn note_report(client: &InternalClient, peer: &Peer, version: &InternalResponse) {
    if let Some(cluster_handle) = &client.bridge.cluster_handle
        && version.status.is_success()
    {
        let report = ServerReport::parse(&version.headers, &version.body);
        let cluster = cluster_handle.cluster.load();
        let is_peer = |it: &Identity| *it == peer.identity || cluster.peers.get(it).is_some();
        (cluster_handle.reports).set(&peer.identity, report, is_peer);
    }
}

/// Sends the first request of a poll, then the rest. Returns the outcome, and whether the first
/// request was answered: a server that fails later still answers requests.
async fn poll<A, T, F: Future<Output = Result<T, String>>>(
    poll_timeout: Duration,
    first: impl Future<Output = Result<A, String>>,
    rest: impl FnOnce(A) -> F,
) -> (Result<T, String>, bool) {
    let mut has_answered = false;
    let all = async {
        let answer = first.await?;
        has_answered = true;
        rest(answer).await
    };
    let outcome = timeout(poll_timeout, all).await;
    let outcome = outcome.unwrap_or_else(|_| Err(timeout_error(poll_timeout)));
    (outcome, has_answered)
}

fn timeout_error(poll_timeout: Duration) -> String {
    format!("no answer within {} s", poll_timeout.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A peer gets no requests only if the first request of a poll is not answered.
    #[tokio::test]
    async fn a_poll_that_fails_after_the_first_response_counts_as_answered() {
        use std::future::{pending, ready};
        const SHORT_TIMEOUT: Duration = Duration::from_millis(10);
        const LONG_TIMEOUT: Duration = Duration::from_mins(1);
        let fails = || ready(Err::<(), _>("500".to_owned()));
        let good = || ready(Ok::<(), String>(()));
        let outcome = poll(LONG_TIMEOUT, good(), |()| good()).await;
        assert_eq!(outcome, (Ok(()), true));
        let outcome = poll(LONG_TIMEOUT, good(), |()| fails()).await;
        assert_eq!(outcome, (Err("500".to_owned()), true));
        let (outcome, has_answered) =
            poll(SHORT_TIMEOUT, good(), |()| pending::<Result<(), _>>()).await;
        assert!(outcome.is_err() && has_answered);
        let outcome = poll(LONG_TIMEOUT, fails(), |()| good()).await;
        assert_eq!(outcome, (Err("500".to_owned()), false));
        let unanswered = pending::<Result<(), String>>();
        let (outcome, has_answered) = poll(SHORT_TIMEOUT, unanswered, |()| good()).await;
        assert!(outcome.is_err() && !has_answered);
    }
}
