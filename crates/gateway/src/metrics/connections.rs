//! Metrics of client connections and of failed authentications.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use super::Gauge;
use super::described::Described;

/// The kind of a credential. Each has its own budget in [`crate::authentication_limit`], so that
/// rejected certificates do not limit tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Credential {
    Token,
    Signature,
    Certificate,
}

impl Credential {
    pub(crate) const ALL: [Self; 3] = [Self::Token, Self::Signature, Self::Certificate];

    /// The metric label.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Token => "token",
            Self::Signature => "signature",
            Self::Certificate => "certificate",
        }
    }
}

/// Why a connection was evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EvictionReason {
    /// All slots were taken.
    SlotsFull,
    /// Its source had reached its limit of unauthenticated connections.
    SourceLimit,
    /// It sent no request in time.
    NoRequest,
}

impl EvictionReason {
    pub(crate) const ALL: [Self; 3] = [Self::SlotsFull, Self::SourceLimit, Self::NoRequest];

    /// The metric label.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::SlotsFull => "slots-full",
            Self::SourceLimit => "source-limit",
            Self::NoRequest => "no-request",
        }
    }
}

/// Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct ConnectionMetrics {
    /// Slots of `--max-connections`.
    pub(crate) slots: SlotMetrics,
    authentication_failures: Family<ReasonLabels, Counter>,
    authentications_limited: Family<ReasonLabels, Counter>,
}

/// Metrics of the slots of one port. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct SlotMetrics {
    evictions: Family<ReasonLabels, Counter>,
    unauthenticated: Gauge,
    overflow: Gauge,
    authenticated: Gauge,
    reserved: Gauge,
}

/// The number of connections with a slot, by share.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SlotCounts {
    pub(crate) unauthenticated: usize,
    pub(crate) overflow: usize,
    pub(crate) authenticated: usize,
    pub(crate) reserved: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ClassLabels {
    class: &'static str,
}

impl ConnectionMetrics {
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let authentication_failures = Family::default();
        let authentications_limited = Family::default();
        let bridge = registry.sub_registry_with_prefix("skewbridge");
        let slots = SlotMetrics::register(bridge, "--max-connections");
        bridge.register(
            "authentication_failures",
            "Requests whose credential was rejected by the bridge, or with 401 by kube-apiserver",
            Described(Family::clone(&authentication_failures)),
        );
        bridge.register(
            "authentications_limited",
            "Requests answered 429 because their source had too many authentication failures",
            Described(Family::clone(&authentications_limited)),
        );
        // All series exist from the start, so that the first event is an increase.
        for reason in Credential::ALL.map(Credential::as_str) {
            drop(authentication_failures.get_or_create(&ReasonLabels { reason }));
            drop(authentications_limited.get_or_create(&ReasonLabels { reason }));
        }
        Self {
            slots,
            authentication_failures,
            authentications_limited,
        }
    }

    pub(crate) fn authentication_failed(&self, credential: Credential) {
        let reason = credential.as_str();
        let failures = &self.authentication_failures;
        failures.get_or_create(&ReasonLabels { reason }).inc();
    }

    pub(crate) fn authentication_limited(&self, credential: Credential) {
        let reason = credential.as_str();
        let limited = &self.authentications_limited;
        limited.get_or_create(&ReasonLabels { reason }).inc();
    }
}

impl SlotMetrics {
    /// Registers the metrics of the slots that this flag limits or opens.
    pub(super) fn register(registry: &mut Registry, flag: &str) -> Self {
        let evictions = Family::default();
        let slots = Family::<ClassLabels, Gauge>::default();
        registry.register(
            "connection_evictions",
            format!("Client connections closed to free their slots of {flag}, by reason"),
            Described(Family::clone(&evictions)),
        );
        registry.register(
            "connection_slots",
            format!("Client connections with a slot of {flag}, by class"),
            Described(Family::clone(&slots)),
        );
        for reason in EvictionReason::ALL.map(EvictionReason::as_str) {
            drop(evictions.get_or_create(&ReasonLabels { reason }));
        }
        let class = |class| slots.get_or_create_owned(&ClassLabels { class });
        Self {
            unauthenticated: class("unauthenticated"),
            overflow: class("overflow"),
            authenticated: class("authenticated"),
            reserved: class("reserved"),
            evictions,
        }
    }

    pub(crate) fn evicted(&self, reason: EvictionReason) {
        let reason = reason.as_str();
        self.evictions.get_or_create(&ReasonLabels { reason }).inc();
    }

    pub(crate) fn slots(&self, counts: SlotCounts) {
        for (gauge, count) in [
            (&self.unauthenticated, counts.unauthenticated),
            (&self.overflow, counts.overflow),
            (&self.authenticated, counts.authenticated),
            (&self.reserved, counts.reserved),
        ] {
            gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }
}
