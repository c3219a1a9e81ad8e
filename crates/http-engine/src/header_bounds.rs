//! Limits on request headers: the maximum size that a proxy forwards, which requests may share a
//! connection, and how much HPACK may expand on a client connection.

use std::time::Duration;

use http::request::Parts;
use http::{HeaderMap, Method, Uri};
use skewbridge_k8s_api::status::Status;
use tokio::time::Instant;

/// The overhead per field in RFC 9113, 6.5.2.
const FIELD_OVERHEAD_BYTES: usize = 32;

/// Maximum header list that a proxy forwards, counted as the receiver counts it. Go's `net/http`
/// accepts 1 MiB and 320 bytes. Above that it responds 431, and closes the connection if one value
/// alone is longer or if more frames follow.
pub const MAX_HEADER_LIST_BYTES: usize = 1 << 20;

/// A request with a larger header list never shares an HTTP/2 connection with others. A
/// service account token has 1.5 KiB, and 200 impersonated groups have 20 KiB.
pub const MAX_SHARED_HEADER_LIST_BYTES: usize = 64 * 1024;

/// A `Cookie` header that is joined from several fields (RFC 9113, 8.2.3). Browsers send
/// 4 KiB for each of a few cookies, and kube-apiserver reads none.
pub const MAX_JOINED_COOKIE_BYTES: usize = 64 * 1024;

/// A limit on headers that a request or a connection has met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeaderLimit {
    /// The headers that a client has sent are too large: 431.
    RequestTooLarge,
    /// With the headers that the proxy adds, the list is too large for the receiver: 431.
    OutgoingTooLarge,
    /// The joined `Cookie` is too large: 431.
    CookieTooLarge,
    /// The oldest hops of `X-Forwarded-For` were left out.
    ForwardedForShortened,
    /// A request was delayed, since HPACK expanded too much on its connection.
    ExpansionDelayed,
    /// A connection was ended for the same reason (`ENHANCE_YOUR_CALM`).
    ExpansionEnded,
    /// A request was too large to share an HTTP/2 connection, and got its own.
    OwnConnection,
    /// A request was too large to share an HTTP/2 connection, and the maximum number of such
    /// requests was in flight: 503.
    OwnConnectionRefused,
}

impl HeaderLimit {
    /// All limits.
    pub const ALL: [Self; 8] = [
        Self::RequestTooLarge,
        Self::OutgoingTooLarge,
        Self::CookieTooLarge,
        Self::ForwardedForShortened,
        Self::ExpansionDelayed,
        Self::ExpansionEnded,
        Self::OwnConnection,
        Self::OwnConnectionRefused,
    ];

    /// As a metric label.
    pub fn as_str(self) -> &'static str {
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

/// The size of a header list.
pub fn list_bytes(headers: &HeaderMap) -> usize {
    let fields = headers.iter();
    fields
        .map(|(name, value)| field_bytes(name.as_str(), value.len()))
        .sum()
}

fn field_bytes(name: &str, value: usize) -> usize {
    name.len() + value + FIELD_OVERHEAD_BYTES
}

/// The size of a request's header list as HTTP/2 counts it; `Host` stands for `:authority`.
pub fn request_bytes(method: &Method, uri: &Uri, headers: &HeaderMap) -> usize {
    let path = uri.path_and_query().map_or(1, |path| path.as_str().len());
    list_bytes(headers)
        + field_bytes(":method", method.as_str().len())
        + field_bytes(":scheme", "https".len())
        + field_bytes(":path", path)
}

/// The size of a request with all that a proxy has added to it. Refuses one that its
/// receiver would not accept.
pub fn check_outgoing(method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<usize, Status> {
    let bytes = request_bytes(method, uri, headers);
    if bytes > MAX_HEADER_LIST_BYTES {
        return Err(Status::header_fields_too_large(format!(
            "the request's headers with those that the gateway adds are larger than \
             {MAX_HEADER_LIST_BYTES} bytes"
        )));
    }
    Ok(bytes)
}

/// Whether a request may share an HTTP/2 connection with those of other users.
/// `known_bytes` is the result of [`request_bytes`], where it is known.
pub fn may_share(head: &Parts, known_bytes: Option<usize>) -> bool {
    let bytes =
        known_bytes.unwrap_or_else(|| request_bytes(&head.method, &head.uri, &head.headers));
    bytes <= MAX_SHARED_HEADER_LIST_BYTES
}

/// How much the decoded headers of a client may exceed the received bytes. HPACK encodes a repeated
/// token in one byte, so a ratio is meaningless: the limit is a rate of expanded bytes with a
/// burst.
#[derive(Debug, Clone, Copy)]
struct ExpansionRate {
    burst: i64,
    bytes_per_second: i64,
}

/// 100 requests at once with a token and 200 impersonated groups are 2.5 MiB.
const UNAUTHENTICATED_RATE: ExpansionRate = ExpansionRate {
    burst: 4 << 20,
    bytes_per_second: 256 << 10,
};

/// A peer's connection with 10,000 requests a second, each with a token, needs 25 MiB a
/// second; one with 1,000, each with 200 impersonated groups, needs as much.
const AUTHENTICATED_RATE: ExpansionRate = ExpansionRate {
    burst: 64 << 20,
    bytes_per_second: 32 << 20,
};

/// A request that would have to wait longer ends its connection instead.
const MAX_EXPANSION_DELAY: Duration = Duration::from_secs(5);

/// Whether and when a request is processed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpansionDecision {
    /// At once.
    Allow,
    /// After this time.
    Delay(Duration),
    /// Never: the connection is ended.
    Close,
}

/// The remaining expansion of one connection.
#[derive(Debug)]
pub struct HeaderCredit {
    level: i64,
    updated: Instant,
    /// Bytes received when it was updated.
    received: u64,
    authenticated: bool,
}

impl HeaderCredit {
    /// The credit of a new connection.
    pub fn new(now: Instant) -> Self {
        Self {
            level: UNAUTHENTICATED_RATE.burst,
            updated: now,
            received: 0,
            authenticated: false,
        }
    }

    /// Charges the header list of one request. `received` is what the connection has
    /// received so far.
    pub fn charge(
        &mut self,
        list_bytes: usize,
        received: u64,
        authenticated: bool,
        now: Instant,
    ) -> ExpansionDecision {
        if authenticated && !self.authenticated {
            self.authenticated = true;
            self.level += AUTHENTICATED_RATE.burst - UNAUTHENTICATED_RATE.burst;
        }
        let allowance = if self.authenticated {
            AUTHENTICATED_RATE
        } else {
            UNAUTHENTICATED_RATE
        };
        let elapsed = now.saturating_duration_since(self.updated);
        let millis = i64::try_from(elapsed.as_millis()).unwrap_or(i64::MAX);
        let refill = millis.saturating_mul(allowance.bytes_per_second) / 1_000;
        let sent = i64::try_from(received.saturating_sub(self.received)).unwrap_or(i64::MAX);
        // The clock advances with the refill, so that fractions of a byte are not lost.
        if refill > 0 {
            self.updated = now;
        }
        self.received = received;
        self.level = self
            .level
            .saturating_add(refill)
            .saturating_add(sent)
            .min(allowance.burst)
            .saturating_sub(i64::try_from(list_bytes).unwrap_or(i64::MAX));
        if self.level >= 0 {
            return ExpansionDecision::Allow;
        }
        let millis = self.level.saturating_neg().saturating_mul(1_000) / allowance.bytes_per_second;
        let delay = Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX));
        if delay > MAX_EXPANSION_DELAY {
            ExpansionDecision::Close
        } else {
            ExpansionDecision::Delay(delay)
        }
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_list_is_counted_as_its_receiver_counts_it() {
        let mut headers = HeaderMap::new();
        headers.insert("accept", HeaderValue::from_static("*/*"));
        headers.append("via", HeaderValue::from_static("2 a"));
        headers.append("via", HeaderValue::from_static("2 b"));
        assert_eq!(list_bytes(&headers), (6 + 3 + 32) + 2 * (3 + 3 + 32));
        let uri = Uri::from_static("/api?x");
        let pseudo = (7 + 3 + 32) + (7 + 5 + 32) + (5 + 6 + 32);
        let whole = request_bytes(&Method::GET, &uri, &headers);
        assert_eq!(whole, list_bytes(&headers) + pseudo);
    }

    #[test]
    fn headers_that_go_would_refuse_are_refused() {
        let uri = Uri::from_static("/");
        let mut headers = HeaderMap::new();
        let room = MAX_HEADER_LIST_BYTES - request_bytes(&Method::GET, &uri, &headers);
        let value = |length| HeaderValue::try_from("x".repeat(length)).unwrap();
        headers.insert("a", value(room - 1 - 32));
        assert!(check_outgoing(&Method::GET, &uri, &headers).is_ok());
        headers.insert("a", value(room - 32));
        let refused = check_outgoing(&Method::GET, &uri, &headers);
        assert_eq!(refused.unwrap_err().code, 431);
    }

    #[test]
    fn a_repeated_token_is_never_delayed() {
        let mut now = Instant::now();
        let mut credit = HeaderCredit::new(now);
        let mut received = 4_000;
        // The first requests arrive before a response has proved the token.
        for _ in 0..100 {
            let pace = credit.charge(25 << 10, received, false, now);
            assert_eq!(pace, ExpansionDecision::Allow);
            received += 40;
        }
        // An hour of 500 requests a second with 200 impersonated groups.
        for _ in 0..500 * 3_600 {
            now += SECOND / 500;
            received += 40;
            let pace = credit.charge(25 << 10, received, true, now);
            assert_eq!(pace, ExpansionDecision::Allow);
        }
    }

    #[test]
    fn an_unauthenticated_hpack_bomb_is_delayed_and_closed() {
        let now = Instant::now();
        let mut credit = HeaderCredit::new(now);
        let mut received = 4_096;
        let mut paces = Vec::new();
        for _ in 0..8 {
            received += 270;
            paces.push(credit.charge(1 << 20, received, false, now));
        }
        assert_eq!(paces[..4], [ExpansionDecision::Allow; 4]);
        assert!(
            matches!(paces[4], ExpansionDecision::Delay(delay) if delay <= MAX_EXPANSION_DELAY)
        );
        assert_eq!(paces[6..], [ExpansionDecision::Close; 2]);
    }

    #[test]
    fn received_bytes_are_not_charged() {
        let now = Instant::now();
        let mut credit = HeaderCredit::new(now);
        let mut received = 0;
        for _ in 0..1_000 {
            received += 1 << 20;
            assert_eq!(
                credit.charge(1 << 20, received, false, now),
                ExpansionDecision::Allow
            );
        }
        // Unused credit does not accumulate.
        let paces: Vec<_> = (0..8)
            .map(|_| credit.charge(1 << 20, received, false, now))
            .collect();
        assert_eq!(paces[7], ExpansionDecision::Close);
    }

    #[test]
    fn an_authenticated_client_is_slowed_beyond_a_generous_rate() {
        let now = Instant::now();
        let mut credit = HeaderCredit::new(now);
        let paces: Vec<_> = (0..256)
            .map(|_| credit.charge(1 << 20, 0, true, now))
            .collect();
        assert_eq!(paces[63], ExpansionDecision::Allow);
        assert!(matches!(paces[100], ExpansionDecision::Delay(_)));
        assert_eq!(
            paces[255],
            ExpansionDecision::Close,
            "after 160 MiB too much"
        );
    }
}
