//! The `Date` header of responses that a proxy generates (RFC 9110, 6.6.1).

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::HeaderValue;
use skewbridge_k8s_api::time::http_date;

/// The current time as a header value.
pub fn now() -> HeaderValue {
    after(Duration::ZERO)
}

/// The time in one year, for `Expires` of immutable documents.
pub fn one_year_from_now() -> HeaderValue {
    after(Duration::from_hours(365 * 24))
}

fn after(time: Duration) -> HeaderValue {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .saturating_add(time);
    // Letters, digits, commas and colons are a header value.
    HeaderValue::try_from(http_date(since.as_secs()))
        .unwrap_or_else(|_| HeaderValue::from_static("Thu, 01 Jan 1970 00:00:00 GMT"))
}
