//! Metrics of the limits on headers.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

/// A limit on headers that a request or a connection has reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeaderLimit {
    /// The headers that a client has sent are too large: 431.
    RequestTooLarge,
    /// With the headers that the bridge adds they are too large for upstream: 431.
    OutgoingTooLarge,
    /// The joined `Cookie` is too large: 431.
    CookieTooLarge,
    /// The oldest hops of `X-Forwarded-For` were removed.
    ForwardedForShortened,
    /// A request was delayed, because HPACK expanded too much on its connection.
    ExpansionDelayed,
    /// A connection was ended for the same reason (`ENHANCE_YOUR_CALM`).
    ExpansionEnded,
    /// A request was too large to share an HTTP/2 connection, and got its own.
    OwnConnection,
    /// The same, but the limit of such requests was reached: 503.
    OwnConnectionRefused,
}

impl HeaderLimit {
    const ALL: [Self; 8] = [
        Self::RequestTooLarge,
        Self::OutgoingTooLarge,
        Self::CookieTooLarge,
        Self::ForwardedForShortened,
        Self::ExpansionDelayed,
        Self::ExpansionEnded,
        Self::OwnConnection,
        Self::OwnConnectionRefused,
    ];

    /// The metric label.
    fn as_str(self) -> &'static str {
        match self {
            Self::RequestTooLarge => "request-too-large",
            Self::OutgoingTooLarge => "outgoing-too-large",
            Self::CookieTooLarge => "cookie-too-large",
            Self::ForwardedForShortened => "forwarded-for-shortened",
            Self::ExpansionDelayed => "expansion-delayed",
            Self::ExpansionEnded => "expansion-ended",
            Self::OwnConnection => "own-connection",
            Self::OwnConnectionRefused => "own-connection-refused",
        }
    }
}

/// Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct HeaderMetrics(Family<Labels, Counter>);

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    limit: &'static str,
}

impl HeaderMetrics {
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let metrics = Self(Family::default());
        registry.sub_registry_with_prefix("skewbridge").register(
            "header_limits",
            "Requests and connections that reached a limit on headers, by limit",
            Family::clone(&metrics.0),
        );
        // All series exist from the start, so that the first event is an increase.
        for limit in HeaderLimit::ALL.map(HeaderLimit::as_str) {
            drop(metrics.0.get_or_create(&Labels { limit }));
        }
        metrics
    }

    pub(crate) fn met(&self, limit: HeaderLimit) {
        let limit = limit.as_str();
        self.0.get_or_create(&Labels { limit }).inc();
    }
}
