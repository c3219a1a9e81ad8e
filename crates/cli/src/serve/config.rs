//! From flags to [`Config`]: parses every value, and reads every file once.

mod authentication;
mod guards;
mod limits;
mod listeners;
mod peers;
mod streams;
mod upstream;

use std::num::NonZeroUsize;
use std::thread::available_parallelism;

use skewbridge_gateway::config::{Config, LogFormat, Logs, Shutdown};

use super::diagnostics::{Diagnostics, Problems, Warning};
use super::features::features;
use super::flags::{Flags, GenericFlags, LogFlags};
use crate::flag_values::{self, Endpoint, Parsed};

pub(super) use upstream::kubernetes_service;

/// Parses a command line: a config and its warnings, or all errors. `service` is the Service of the
/// kube-apiservers, in a pod.
pub(crate) fn config(
    flags: &Flags,
    service: Option<Endpoint>,
) -> Result<(Config, Vec<Warning>), Problems> {
    let mut diagnostics = Diagnostics::default();
    let built = build(flags, service, &mut diagnostics);
    diagnostics.conclude(built)
}

/// Checks all flags, and records every error. A missing part has had its error recorded.
fn build(
    flags: &Flags,
    service: Option<Endpoint>,
    diagnostics: &mut Diagnostics,
) -> Option<Config> {
    let listen = listeners::listen(&flags.serving, &flags.generic, diagnostics);
    let serving = listeners::serving(&flags.serving, diagnostics);
    let callers = authentication::callers(&flags.authentication, diagnostics);
    let admin = listeners::admin(&flags.admin, diagnostics);
    let upstream = upstream::upstream(
        (&flags.upstream, service),
        listen.as_ref(),
        admin.as_ref(),
        diagnostics,
    );
    let features = features(&flags.features.feature_gates, diagnostics);
    let peers = peers::peers(&flags.peers, &flags.etcd, diagnostics);
    let streams = streams::streams(&flags.streams, diagnostics);
    let limits = limits::limits(&flags.limits, diagnostics);
    let shutdown = shutdown(&flags.generic, diagnostics);
    let logs = logs(&flags.logs, diagnostics);
    let workers = workers(&flags.generic, diagnostics);

    authentication::check_front_proxy_present(flags, diagnostics);
    listeners::check_reviews_can_be_sent(flags, diagnostics);
    if let (Some(listen), Some(admin)) = (&listen, &admin) {
        listeners::check_listeners_differ(listen, admin, diagnostics);
    }

    let config = Config {
        listen: listen?,
        serving: serving?,
        callers,
        upstream: upstream?,
        peers: peers?,
        streams: streams?,
        features,
        limits: limits?,
        admin: admin?,
        shutdown: shutdown?,
        logs: logs?,
        workers: workers?,
    };
    peers::warn_of_incomplete_peering(&flags.peers, &config, diagnostics);
    upstream::check_flags_of_balancer(flags, &config, diagnostics);
    authentication::check_front_proxy_is_not_user(&config, diagnostics);
    Some(config)
}

fn shutdown(flags: &GenericFlags, diagnostics: &mut Diagnostics) -> Option<Shutdown> {
    let delay = diagnostics.value(
        "--shutdown-delay-duration",
        flag_values::duration(&flags.shutdown_delay_duration),
    );
    let drain = diagnostics.value(
        "--shutdown-drain-timeout",
        flag_values::duration(&flags.shutdown_drain_timeout),
    );
    Some(Shutdown {
        delay: delay?,
        drain: drain?,
    })
}

fn logs(flags: &LogFlags, diagnostics: &mut Diagnostics) -> Option<Logs> {
    let verbosity = diagnostics.value("--v", flag_values::number(&flags.v, &(0..=10)));
    let formats = [("text", LogFormat::Text), ("json", LogFormat::Json)];
    let format = diagnostics.value(
        "--log-format",
        flag_values::keyword(&flags.log_format, &formats),
    );
    Some(Logs {
        verbosity: verbosity?,
        format: format?,
    })
}

fn workers(flags: &GenericFlags, diagnostics: &mut Diagnostics) -> Option<NonZeroUsize> {
    let Some(count) = non_empty(flags.worker_threads.as_ref()) else {
        return Some(available_parallelism().unwrap_or(NonZeroUsize::MIN));
    };
    let count = flag_values::number(count, &(1..=1024));
    diagnostics
        .value("--worker-threads", count)
        .and_then(NonZeroUsize::new)
}

/// The value of a flag; as with kube-apiserver, an empty value is no file.
fn non_empty(value: Option<&String>) -> Option<&str> {
    value.map(String::as_str).filter(|value| !value.is_empty())
}

fn required<'a>(value: Option<&'a String>, what: &str) -> Parsed<&'a str> {
    non_empty(value).ok_or_else(|| format!("required: {what}"))
}

#[cfg(test)]
mod tests;
