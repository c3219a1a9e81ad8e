//! Long-running requests that are open: watches, logs and streams, by server and client.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use skewbridge_k8s_api::request_info::{RequestInfo, Verb};

/// Clients that are counted apart. Further ones are counted together.
const MAX_CLIENTS: usize = 1_024;

/// The user and the user agent of the clients that do not fit.
const OTHER_CLIENTS: &str = "(others)";

/// Open requests of the same kind, of one client at one server.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct OpenRequestKey {
    /// The identity of the server.
    pub(crate) server: Arc<str>,
    /// See [`long_running_kind`].
    pub(crate) kind: &'static str,
    /// The user, as far as the bridge knows it.
    pub(crate) user: Box<str>,
    /// The first word of the user agent: name and version of the program.
    pub(crate) program: Box<str>,
}

/// All open requests.
#[derive(Debug, Clone, Default)]
pub(crate) struct OpenRequests(Arc<Mutex<BTreeMap<OpenRequestKey, usize>>>);

/// Counts a request as open until it is dropped.
#[derive(Debug)]
pub(crate) struct OpenRequestGuard {
    all: OpenRequests,
    key: OpenRequestKey,
}

impl OpenRequests {
    /// Counts a request.
    pub(crate) fn begin(&self, mut key: OpenRequestKey) -> OpenRequestGuard {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MAX_CLIENTS && !all.contains_key(&key) {
            key.user = OTHER_CLIENTS.into();
            key.program = OTHER_CLIENTS.into();
        }
        *all.entry(key.clone()).or_default() += 1;
        drop(all);
        OpenRequestGuard {
            all: self.clone(),
            key,
        }
    }

    /// All open requests, with their number.
    pub(crate) fn counts(&self) -> Vec<(OpenRequestKey, usize)> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter()
            .map(|(key, count)| (key.clone(), *count))
            .collect()
    }
}

impl Drop for OpenRequestGuard {
    fn drop(&mut self) {
        let mut all = self.all.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = all.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                all.remove(&self.key);
            }
        }
    }
}

/// The kind of a long-running request.
pub(crate) fn long_running_kind(info: &RequestInfo<'_>) -> &'static str {
    match (info.verb, info.subresource) {
        (_, "exec") => "exec",
        (_, "attach") => "attach",
        (_, "portforward") => "portforward",
        (_, "log") => "log",
        (Verb::Proxy, _) | (_, "proxy") => "proxy",
        (Verb::Watch, _) => "watch",
        _ => "other",
    }
}

/// The first word of a user agent: name and version of the program.
pub(crate) fn program_name(user_agent: &str) -> Box<str> {
    const MAX_CHARS: usize = 64;
    let word = user_agent.split_whitespace().next().unwrap_or_default();
    let printable = word.chars().filter(|it| !it.is_control());
    printable.take(MAX_CHARS).collect::<String>().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(user: &str) -> OpenRequestKey {
        OpenRequestKey {
            server: "apiserver-a".into(),
            kind: "watch",
            user: user.into(),
            program: "kubelet/v1.36.4".into(),
        }
    }

    #[test]
    fn requests_count_while_they_are_open() {
        let open = OpenRequests::default();
        let guards = [
            open.begin(key("a")),
            open.begin(key("a")),
            open.begin(key("b")),
        ];
        assert_eq!(open.counts(), [(key("a"), 2), (key("b"), 1)]);
        let [first, second, third] = guards;
        drop((first, third));
        assert_eq!(open.counts(), [(key("a"), 1)]);
        drop(second);
        assert!(open.counts().is_empty());
    }

    #[test]
    fn clients_have_a_bound() {
        let open = OpenRequests::default();
        let guards: Vec<_> = (0..MAX_CLIENTS + 5)
            .map(|number| open.begin(key(&format!("{number:04}"))))
            .collect();
        let counts = open.counts();
        assert_eq!(counts.len(), MAX_CLIENTS + 1);
        let all: usize = counts.iter().map(|(_, count)| count).sum();
        assert_eq!(all, MAX_CLIENTS + 5);
        drop(guards);
        assert!(open.counts().is_empty());
    }

    #[test]
    fn the_program_is_the_first_word_of_the_user_agent() {
        let long = "x".repeat(100);
        for (text, expected) in [
            (
                "kubelet/v1.36.4 (linux/amd64) kubernetes/1",
                "kubelet/v1.36.4",
            ),
            ("", ""),
            (&long, &long[..64]),
        ] {
            assert_eq!(&*program_name(text), expected);
        }
    }
}
