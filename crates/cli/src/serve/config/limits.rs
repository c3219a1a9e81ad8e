//! Limits and timeouts of connections and requests.

use skewbridge_gateway::config::Limits;

use super::non_empty;
use crate::flag_values::{self, Parsed};
use crate::serve::diagnostics::Diagnostics;
use crate::serve::flags::LimitFlags;

pub(super) fn limits(flags: &LimitFlags, diagnostics: &mut Diagnostics) -> Option<Limits> {
    let max_connections = diagnostics.value(
        "--max-connections",
        flag_values::number(&flags.max_connections, &(1..=1_000_000)),
    );
    let reserved = non_empty(flags.reserved_connections.as_ref()).and_then(|count| {
        let less_than_all = 0..=max_connections.unwrap_or(1_000_000_usize) - 1;
        diagnostics.value(
            "--reserved-connections",
            flag_values::number(count, &less_than_all),
        )
    });
    let per_source = non_empty(flags.max_unauthenticated_connections_per_source.as_ref());
    let per_source = per_source.and_then(|count| {
        diagnostics.value(
            "--max-unauthenticated-connections-per-source",
            flag_values::number(count, &(1..=1_000_000)),
        )
    });
    let max_failures = diagnostics.value(
        "--max-authentication-failures-per-source",
        flag_values::number(
            &flags.max_authentication_failures_per_source,
            &(0..=1_000_000),
        ),
    );
    let max_streams = diagnostics.value(
        "--http2-max-streams-per-connection",
        flag_values::number(&flags.http2_max_streams_per_connection, &(0..=10_000)),
    );
    let goaway_chance = diagnostics.value("--goaway-chance", goaway_chance(&flags.goaway_chance));
    let max_buffered_bytes = diagnostics.value(
        "--max-buffered-bytes",
        // From a few stalled responses to the memory of any machine.
        flag_values::bytes(&flags.max_buffered_bytes, &((1 << 20)..=(1 << 40))),
    );
    let handshake_timeout = diagnostics.value(
        "--tls-handshake-timeout",
        flag_values::timeout(&flags.tls_handshake_timeout),
    );
    let read_header_timeout = diagnostics.value(
        "--read-header-timeout",
        flag_values::timeout(&flags.read_header_timeout),
    );
    let idle_timeout =
        diagnostics.value("--idle-timeout", flag_values::timeout(&flags.idle_timeout));
    let request_timeout = diagnostics.value(
        "--request-timeout",
        flag_values::timeout(&flags.request_timeout),
    );
    Some(Limits {
        max_connections: max_connections?,
        reserved_connections: reserved,
        max_unauthenticated_connections_per_source: per_source,
        max_authentication_failures_per_source: max_failures?,
        max_streams_per_connection: match max_streams? {
            // As in kube-apiserver.
            0 => Limits::default().max_streams_per_connection,
            count => count,
        },
        goaway_chance: goaway_chance?,
        max_buffered_bytes: max_buffered_bytes?,
        handshake_timeout: handshake_timeout?,
        read_header_timeout: read_header_timeout?,
        idle_timeout: idle_timeout?,
        request_timeout: request_timeout?,
        ..Limits::default()
    })
}

/// The range of kube-apiserver.
fn goaway_chance(text: &str) -> Parsed<f64> {
    let chance = text.parse().ok();
    let chance = chance.filter(|it| (0.0..=0.02).contains(it));
    chance.ok_or_else(|| format!("{text:?} is not a number from 0 to 0.02"))
}
