//! What is asked for.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use skewbridge_remotecommand::{Options, QueryDialect};

/// What may stand in a path or a query as it is (RFC 3986, 2.3).
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// A command to run in a container.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools)] // as the API has them
pub struct ExecRequest {
    /// Of the pod.
    pub namespace: String,
    /// The pod.
    pub pod: String,
    /// The container; none is the server's choice: the only one that there is.
    pub container: Option<String>,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Whether it reads from here.
    pub stdin: bool,
    /// Whether what it writes comes here.
    pub stdout: bool,
    /// The same for stderr. With a terminal all comes by stdout.
    pub stderr: bool,
    /// Whether it has a terminal.
    pub tty: bool,
}

/// The process of a container that already runs, to be joined.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools)] // as the API has them
pub struct AttachRequest {
    /// Of the pod.
    pub namespace: String,
    /// The pod.
    pub pod: String,
    /// The container; none is the server's choice: the only one that there is.
    pub container: Option<String>,
    /// Whether it reads from here.
    pub stdin: bool,
    /// Whether what it writes comes here.
    pub stdout: bool,
    /// The same for stderr. With a terminal all comes by stdout.
    pub stderr: bool,
    /// Whether it has a terminal.
    pub tty: bool,
}

/// Where a stream begins: a path with its query, and which channels it has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opening {
    pub(crate) path: String,
    pub(crate) options: Options,
}

impl From<&ExecRequest> for Opening {
    fn from(request: &ExecRequest) -> Self {
        let words = request.command.iter();
        let mut query: Vec<_> = words.map(|word| ("command", escaped(word))).collect();
        if let Some(container) = &request.container {
            query.push(("container", escaped(container)));
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

impl From<&AttachRequest> for Opening {
    fn from(request: &AttachRequest) -> Self {
        let container = request.container.iter();
        let query = container.map(|name| ("container", escaped(name)));
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

impl Opening {
    fn new(
        namespace: &str,
        pod: &str,
        subresource: &str,
        mut query: Vec<(&str, String)>,
        flags: [(&'static str, bool); 4],
    ) -> Self {
        let on = flags.into_iter().filter(|(_, is_on)| *is_on);
        query.extend(on.map(|(name, _)| (name, "true".to_owned())));
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

/// The path of a subresource of a pod.
pub(crate) fn pod_path(namespace: &str, pod: &str, subresource: &str) -> String {
    let (namespace, pod) = (escaped(namespace), escaped(pod));
    format!("/api/v1/namespaces/{namespace}/pods/{pod}/{subresource}")
}

/// Text, escaped for a path or a query.
pub fn escaped(text: &str) -> String {
    utf8_percent_encode(text, PLAIN).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_asked_for_word_by_word() {
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
        let opening = Opening::from(&request);
        assert_eq!(
            opening.path,
            "/api/v1/namespaces/default/pods/web/exec?command=sh&command=-c&command=echo%20%27%C3%A4%26b%27%20%3E%20%2Ftmp%2Fx\
             &container=app&stdin=true&stdout=true&stderr=true"
        );
        assert!(!opening.options.tty());
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
        let opening = Opening::from(&request);
        assert_eq!(
            opening.path,
            "/api/v1/namespaces/a%2Fb/pods/web/attach?stdout=true&tty=true"
        );
        assert!(opening.options.tty());
    }
}
