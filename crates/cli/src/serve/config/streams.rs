//! Translation and timeouts of streams.

use std::time::Duration;

use skewbridge_gateway::config::{Streams, TranslateStreams, UpstreamStreams};

use crate::flag_values;
use crate::serve::diagnostics::Diagnostics;
use crate::serve::flags::StreamFlags;

/// More frequent pings would be most of the traffic.
const MIN_PING_INTERVAL: Duration = Duration::from_secs(1);

pub(super) fn streams(flags: &StreamFlags, diagnostics: &mut Diagnostics) -> Option<Streams> {
    let words = [
        ("auto", TranslateStreams::Auto),
        ("always", TranslateStreams::Always),
        ("never", TranslateStreams::Never),
    ];
    let translate = diagnostics.value(
        "--translate-streams",
        flag_values::keyword(&flags.translate_streams, &words),
    );
    let ping_interval = diagnostics.value(
        "--stream-ping-interval",
        flag_values::duration(&flags.stream_ping_interval).and_then(|interval| {
            if interval.is_zero() || interval >= MIN_PING_INTERVAL {
                Ok(interval)
            } else {
                Err(format!(
                    "{:?} is too short: not less than 1s, or 0 for none",
                    flags.stream_ping_interval
                ))
            }
        }),
    );
    let idle_timeout = diagnostics.value(
        "--streaming-connection-idle-timeout",
        flag_values::duration(&flags.streaming_connection_idle_timeout),
    );
    let words = [
        ("any", UpstreamStreams::Any),
        ("websocket", UpstreamStreams::WebSocket),
    ];
    let upstream = diagnostics.value(
        "--upstream-streams",
        flag_values::keyword(&flags.upstream_streams, &words).and_then(|upstream| {
            if upstream == UpstreamStreams::WebSocket && translate == Some(TranslateStreams::Always)
            {
                return Err(
                    "\"websocket\" means that upstream gets no SPDY streams, and \
                     --translate-streams=always that it gets only SPDY streams: omit one of them"
                        .to_owned(),
                );
            }
            Ok(upstream)
        }),
    );
    Some(Streams {
        translate: translate?,
        upstream: upstream?,
        ping_interval: ping_interval?,
        idle_timeout: idle_timeout?,
    })
}
