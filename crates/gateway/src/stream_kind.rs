//! The kind of a stream: exec, attach or port-forward.

use skewbridge_k8s_api::request_info::{Kind as RequestKind, RequestInfo};
use skewbridge_k8s_api::version::Version;

/// The kind of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum StreamKind {
    Exec,
    Attach,
    PortForward,
}

impl StreamKind {
    /// `None` for requests that are not for a stream.
    pub(crate) fn of(info: &RequestInfo<'_>) -> Option<Self> {
        if info.kind != RequestKind::Resource
            || (info.group, info.version, info.resource) != ("", "v1", "pods")
            || info.name.is_empty()
        {
            return None;
        }
        match info.subresource {
            "exec" => Some(Self::Exec),
            "attach" => Some(Self::Attach),
            "portforward" => Some(Self::PortForward),
            _ => None,
        }
    }

    /// The subresource, also used as a metric label.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Exec => "exec",
            Self::Attach => "attach",
            Self::PortForward => "portforward",
        }
    }

    /// The first kube-apiserver that translates it itself (KEP-4006: on by default).
    pub(crate) fn native_since(self) -> Version {
        let minor = match self {
            Self::Exec | Self::Attach => 30,
            Self::PortForward => 31,
        };
        Version {
            major: 1,
            minor,
            patch: 0,
        }
    }
}
