//! Samples the state, keeps what has changed, and renders updates for all viewers at once.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::watch;
use tokio::time::sleep;

use super::document::{self, DocumentInputs};
use super::events::{Snapshot, Update};
use super::matrix::DifferencesCache;
use super::servers;
use super::vanishing::VanishingCache;
use crate::activity::Activity;
use crate::activity::observers::ViewerGuard;
use crate::activity::rates::RateWindow;
use crate::cluster_state::ResyncHint;
use crate::health::Health;
use crate::status::StatusDocument;
use crate::status::timeline::{ServerSample, Timeline};
use crate::vanishing::ledger::Ledger;

/// The interval between two samples.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

/// The interval between two samples while the status has viewers.
const OBSERVED_SAMPLE_INTERVAL: Duration = Duration::from_millis(500);

/// The interval between two updates of the page without new events.
const UPDATE_INTERVAL: Duration = Duration::from_secs(1);

/// The state of the status page.
#[derive(Debug)]
pub(crate) struct StatusSampler {
    health: Health,
    activity: Arc<Activity>,
    ledger: Arc<Ledger>,
    state: Mutex<SamplerState>,
    updates: watch::Sender<Update>,
}

/// The state that earlier samples leave.
#[derive(Debug, Default)]
struct SamplerState {
    rates: RateWindow,
    timeline: Timeline,
    differences: DifferencesCache,
    vanishing: VanishingCache,
    /// The snapshot that viewers have.
    last_snapshot: Arc<Snapshot>,
    updated_at: Option<Instant>,
}

impl StatusSampler {
    pub(crate) fn new(health: Health, activity: Arc<Activity>, ledger: Arc<Ledger>) -> Self {
        Self {
            health,
            activity,
            ledger,
            state: Mutex::default(),
            updates: watch::Sender::default(),
        }
    }

    /// Samples until it is dropped.
    pub(crate) async fn run(&self) {
        loop {
            let is_observed = self.activity.observers.is_observed(Instant::now());
            if is_observed {
                self.request_peer_polls();
            }
            self.sample();
            sleep(if is_observed {
                OBSERVED_SAMPLE_INTERVAL
            } else {
                SAMPLE_INTERVAL
            })
            .await;
        }
    }

    /// Requests early polls of all peers.
    fn request_peer_polls(&self) {
        let backends = self.health.backends.load();
        for handle in backends
            .iter()
            .filter_map(|it| it.cluster_handle.as_ref().ok())
        {
            handle.hint(ResyncHint::Observed);
        }
    }

    fn sample(&self) {
        let now = Instant::now();
        let servers = servers::samples(&self.health, now);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let sample = document::sample(&self.health, servers.clone());
        let has_new_events = state.timeline.record(sample, SystemTime::now());
        state.rates.record(now, || self.activity.traffic());
        let is_due = |at: Instant| now >= at + UPDATE_INTERVAL;
        if self.activity.observers.viewers() == 0
            || !(has_new_events || state.updated_at.is_none_or(is_due))
        {
            return;
        }
        state.updated_at = Some(now);
        let document = self.build_document(&mut state, &servers, now);
        drop(servers);
        let all = Arc::new(Snapshot::of(&document));
        let changed = all.event_since(&state.last_snapshot);
        state.last_snapshot = all.clone();
        self.updates.send_modify(|update| {
            *update = Update {
                number: update.number + 1,
                changed,
                all,
            };
        });
    }

    /// The current state, for a single request.
    pub(super) fn document(&self) -> StatusDocument {
        let now = Instant::now();
        self.activity.observers.note_request(now);
        let servers = servers::samples(&self.health, now);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.build_document(&mut state, &servers, now)
    }

    fn build_document(
        &self,
        state: &mut SamplerState,
        servers: &[ServerSample],
        now: Instant,
    ) -> StatusDocument {
        let backends = self.health.backends.load();
        let handle = backends
            .iter()
            .find_map(|it| it.cluster_handle.as_ref().ok());
        let cluster = handle.map(|it| it.cluster.load_full());
        let is_shared = |group: &str, version: &str| {
            let shared = cluster.as_ref().and_then(|it| it.shared.as_ref());
            shared.is_some_and(|it| it.contains(group, version, now))
        };
        let columns = servers::columns(servers);
        let differences = state.differences.of(columns, now, is_shared);
        let vanishing = state.vanishing.of(&self.ledger, now);
        let inputs = DocumentInputs {
            activity: &self.activity,
            rates: &state.rates,
            timeline: &state.timeline,
            differences: &differences,
            vanishing: &vanishing,
            now,
        };
        document::document(&self.health, servers, &inputs)
    }

    /// A new event stream; `None` if there are too many.
    pub(super) fn subscribe(&self) -> Option<(ViewerGuard, watch::Receiver<Update>)> {
        let viewer = self.activity.observers.begin()?;
        Some((viewer, self.updates.subscribe()))
    }
}
