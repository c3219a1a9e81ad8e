//! `/status`: the state of the control plane and of this bridge, as a page, as JSON and as a stream of
//! events. One task samples the state each second, with or without viewers; it renders the page once for all
//! viewers.

mod document;
mod events;
mod matrix;
mod response;
mod sampler;
mod servers;
mod vanishing;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use skewbridge_peer_directory::MicroTime;

pub(super) use self::response::{is_status_path, respond};
pub(crate) use self::sampler::StatusSampler;

/// Seconds since 1970 in RFC 3339 format.
fn timestamp(seconds: i64) -> String {
    let seconds = u64::try_from(seconds).unwrap_or_default();
    let at = UNIX_EPOCH.checked_add(Duration::from_secs(seconds));
    time(at.unwrap_or(UNIX_EPOCH))
}

/// In RFC 3339 format, to the second.
fn time(at: SystemTime) -> String {
    let text = MicroTime::from(at).to_string();
    match text.split_once('.') {
        Some((seconds, _)) => format!("{seconds}Z"),
        None => text,
    }
}
