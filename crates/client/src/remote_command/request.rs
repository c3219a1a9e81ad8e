//! Requests for command streams.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use skewbridge_remotecommand::{Options, QueryDialect};

/// The characters that need no escaping in a path or a query (RFC 3986, 2.3).
const UNRESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// A command to run in a container.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools)] // the fields of the API
pub struct ExecRequest {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod.
    pub pod: String,
    /// The container; without one the server uses the pod's only container.
    pub container: Option<String>,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Whether to attach to its stdin.
    pub stdin: bool,
    /// Whether to attach to its stdout.
    pub stdout: bool,
    /// Whether to attach to its stderr. With a terminal all output comes on stdout.
    pub stderr: bool,
    /// Whether to allocate a terminal.
    pub tty: bool,
}

/// A running container process to attach to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools)] // the fields of the API
pub struct AttachRequest {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod.
    pub pod: String,
    /// The container; without one the server uses the pod's only container.
    pub container: Option<String>,
    /// Whether to attach to its stdin.
    pub stdin: bool,
    /// Whether to attach to its stdout.
    pub stdout: bool,
    /// Whether to attach to its stderr. With a terminal all output comes on stdout.
    pub stderr: bool,
    /// Whether it has a terminal.
    pub tty: bool,
}

/// A request for the streams of a command: the path with its query, and the channels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamRequest {
    pub(crate) path: String,
    pub(crate) options: Options,
}

impl From<&ExecRequest> for StreamRequest {
    fn from(request: &ExecRequest) -> Self {
        let arguments = request.command.iter();
        let mut query: Vec<_> = arguments
            .map(|argument| ("command", escape_component(argument)))
            .collect();
        if let Some(container) = &request.container {
            query.push(("container", escape_component(container)));
        }
        let flags = [
            ("stdin", request.stdin),
            ("stdout", request.stdout),
            ("stderr", request.stderr && !request.tty),
            ("tty", request.tty),
        ];
        Self::new(&request.namespace, &request.pod, "exec", query, flags)
    }
}

impl From<&AttachRequest> for StreamRequest {
    fn from(request: &AttachRequest) -> Self {
        let container = request.container.iter();
        let query = container.map(|name| ("container", escape_component(name)));
        let flags = [
            ("stdin", request.stdin),
            ("stdout", request.stdout),
            ("stderr", request.stderr && !request.tty),
            ("tty", request.tty),
        ];
        Self::new(
            &request.namespace,
            &request.pod,
            "attach",
            query.collect(),
            flags,
        )
    }
}

impl StreamRequest {
    fn new(
        namespace: &str,
        pod: &str,
        subresource: &str,
        mut query: Vec<(&str, String)>,
        flags: [(&'static str, bool); 4],
    ) -> Self {
        let enabled = flags.into_iter().filter(|(_, is_enabled)| *is_enabled);
        query.extend(enabled.map(|(name, _)| (name, "true".to_owned())));
        let query: Vec<_> = query
            .iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        let query = query.join("&");
        let path = pod_path(namespace, pod, subresource);
        Self {
            options: Options::from_query(QueryDialect::Api, Some(&query)),
            path: format!("{path}?{query}"),
        }
    }
}

/// The path of a pod's subresource.
pub(crate) fn pod_path(namespace: &str, pod: &str, subresource: &str) -> String {
    let (namespace, pod) = (escape_component(namespace), escape_component(pod));
    format!("/api/v1/namespaces/{namespace}/pods/{pod}/{subresource}")
}

/// Escapes text for a path segment or a query value.
pub fn escape_component(text: &str) -> String {
    utf8_percent_encode(text, UNRESERVED).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_sent_as_separate_arguments() {
        let request = ExecRequest {
            namespace: "default".to_owned(),
            pod: "web".to_owned(),
            container: Some("app".to_owned()),
            command: ["sh", "-c", "echo 'ä&b' > /tmp/x"]
                .map(str::to_owned)
                .to_vec(),
            stdin: true,
            stdout: true,
            stderr: true,
            tty: false,
        };
        let request = StreamRequest::from(&request);
        assert_eq!(
            request.path,
            "/api/v1/namespaces/default/pods/web/exec?command=sh&command=-c&command=echo%20%27%C3%A4%26b%27%20%3E%20%2Ftmp%2Fx\
             &container=app&stdin=true&stdout=true&stderr=true"
        );
        assert!(!request.options.tty());
    }

    #[test]
    fn a_terminal_has_one_output() {
        let request = AttachRequest {
            namespace: "a/b".to_owned(),
            pod: "web".to_owned(),
            stdout: true,
            stderr: true,
            tty: true,
            ..AttachRequest::default()
        };
        let request = StreamRequest::from(&request);
        assert_eq!(
            request.path,
            "/api/v1/namespaces/a%2Fb/pods/web/attach?stdout=true&tty=true"
        );
        assert!(request.options.tty());
    }
}
