//! The `Date` of answers that a proxy gives itself (RFC 9110, 6.6.1).

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::HeaderValue;
use skewbridge_k8s_api::time::http_date;

/// Now, as a header.
pub fn now() -> HeaderValue {
    after(Duration::ZERO)
}

/// For `Expires` of documents that never change.
pub fn in_a_year() -> HeaderValue {
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
