//! The metric for plugin calls, named as in KEP-2718.

use std::sync::LazyLock;

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

/// Without `_total`, which the registry adds.
const METRIC_NAME: &str = "rest_client_exec_plugin_with_proxy_call";

const METRIC_HELP: &str = "Number of calls to an exec plugin that may proxy requests, by its exit code \
                    and how the call ended; calls that gave a credential without a proxy are not \
                    counted";

/// The labels of a call, as in client-go's `rest_client_exec_plugin_call_total`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ExecCallLabels {
    /// The plugin's exit code: 0 if it keeps running, 1 if there is none.
    pub code: i32,
    /// How the call ended.
    pub call_status: CallStatus,
}

/// How a call ended, with client-go's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CallStatus {
    /// `no_error`
    NoError,
    /// `plugin_execution_error`
    PluginExecutionError,
    /// `plugin_not_found_error`
    PluginNotFoundError,
    /// `client_internal_error`: the output is unusable, or came too late.
    ClientInternalError,
}

impl EncodeLabelValue for CallStatus {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
        EncodeLabelValue::encode(
            &match self {
                Self::NoError => "no_error",
                Self::PluginExecutionError => "plugin_execution_error",
                Self::PluginNotFoundError => "plugin_not_found_error",
                Self::ClientInternalError => "client_internal_error",
            },
            encoder,
        )
    }
}

static PROXY_CALLS: LazyLock<Family<ExecCallLabels, Counter>> = LazyLock::new(Family::default);

/// The counter of this process. Clones share it.
pub fn proxy_calls() -> Family<ExecCallLabels, Counter> {
    PROXY_CALLS.clone()
}

/// Adds `rest_client_exec_plugin_with_proxy_call_total` to a registry.
pub fn register(registry: &mut Registry) {
    registry.register(METRIC_NAME, METRIC_HELP, proxy_calls());
}

pub(super) fn record_call(code: i32, call_status: CallStatus) {
    PROXY_CALLS
        .get_or_create(&ExecCallLabels { code, call_status })
        .inc();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_metric_has_the_keps_name_and_client_gos_labels() {
        let mut registry = Registry::default();
        register(&mut registry);
        record_call(3, CallStatus::PluginExecutionError);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        let line = "rest_client_exec_plugin_with_proxy_call_total{code=\"3\",call_status=\"plugin_execution_error\"} ";
        assert!(text.contains(line), "{text}");
    }
}
