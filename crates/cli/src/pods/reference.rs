//! References to a pod: `NAME`, `pod/NAME`, `deployment/NAME` and so on.

/// A kind and a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reference {
    pub(crate) kind: Kind,
    pub(crate) name: String,
}

/// Pods and their owners.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Pod,
    Service,
    Deployment,
    ReplicaSet,
    StatefulSet,
    DaemonSet,
    Job,
    ReplicationController,
}

impl Kind {
    const ALL: [(Self, &'static [&'static str], &'static str, &'static str); 8] = [
        (Self::Pod, &["pods", "pod", "po"], "", "pods"),
        (
            Self::Service,
            &["services", "service", "svc"],
            "",
            "services",
        ),
        (
            Self::Deployment,
            &["deployments", "deployment", "deploy"],
            "apps",
            "deployments",
        ),
        (
            Self::ReplicaSet,
            &["replicasets", "replicaset", "rs"],
            "apps",
            "replicasets",
        ),
        (
            Self::StatefulSet,
            &["statefulsets", "statefulset", "sts"],
            "apps",
            "statefulsets",
        ),
        (
            Self::DaemonSet,
            &["daemonsets", "daemonset", "ds"],
            "apps",
            "daemonsets",
        ),
        (Self::Job, &["jobs", "job"], "batch", "jobs"),
        (
            Self::ReplicationController,
            &["replicationcontrollers", "replicationcontroller", "rc"],
            "",
            "replicationcontrollers",
        ),
    ];

    /// From a resource in the plural or the singular, or its short name; with or without
    /// its group.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let text = text.to_ascii_lowercase();
        let (word, rest) = text.split_once('.').unwrap_or((&text, ""));
        let mut all = Self::ALL.into_iter();
        let (kind, _, group, _) = all.find(|(_, words, ..)| words.contains(&word))?;
        // `deployments.apps`, `deployments.v1.apps`
        let named = rest
            .strip_prefix("v1")
            .map_or(rest, |rest| rest.trim_start_matches('.'));
        (rest.is_empty() || named == group).then_some(kind)
    }

    /// By `apiVersion` and `kind` of an object. All of them are `v1` of their group.
    pub(crate) fn of_object(api_version: &str, kind: &str) -> Option<Self> {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let kind = kind.to_ascii_lowercase();
        let mut all = Self::ALL.into_iter();
        let found = all.find(|(_, words, known, _)| words[1] == kind && *known == group);
        found.filter(|_| version == "v1").map(|(kind, ..)| kind)
    }

    /// The path of its objects in a namespace.
    pub(crate) fn path(self, namespace: &str) -> String {
        let (group, plural) = self.resource();
        match group {
            "" => format!("/api/v1/namespaces/{namespace}/{plural}"),
            group => format!("/apis/{group}/v1/namespaces/{namespace}/{plural}"),
        }
    }

    fn resource(self) -> (&'static str, &'static str) {
        let mut all = Self::ALL.into_iter();
        let found = all.find(|(kind, ..)| *kind == self);
        found.map_or(("", "pods"), |(_, _, group, plural)| (group, plural))
    }

    /// The plural, as in paths.
    pub(crate) fn plural(self) -> &'static str {
        self.resource().1
    }

    /// In the singular.
    pub(crate) fn singular(self) -> &'static str {
        let mut all = Self::ALL.into_iter();
        let found = all.find(|(kind, ..)| *kind == self);
        found.map_or("pod", |(_, words, ..)| words[1])
    }
}

impl Reference {
    /// `NAME`, `TYPE/NAME`, or `TYPE NAME` as two arguments.
    pub(crate) fn parse_words(words: &[String]) -> Result<Self, String> {
        match words {
            [] => Err("at least 1 argument is required for attach".to_owned()),
            [text] => Self::parse(text),
            [_, text] if text.contains('/') => Self::parse(text),
            [kind, name] => Self::parse(&format!("{kind}/{name}")),
            words => Err(format!(
                "expected POD, TYPE/NAME, or TYPE NAME, (at most 2 arguments) saw {}: [{}]",
                words.len(),
                words.join(" ")
            )),
        }
    }

    /// With kubectl's message if it is invalid.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let (kind, name) = match text.split_once('/') {
            None => (Kind::Pod, text),
            Some((kind, name)) => {
                let kind = Kind::parse(kind)
                    .ok_or_else(|| format!("the server doesn't have a resource type {kind:?}"))?;
                (kind, name)
            }
        };
        if name.is_empty() {
            return Err("pod, type/name or --filename must be specified".to_owned());
        }
        if name.contains('/') {
            return Err(format!(
                "arguments in resource/name form may not have more than one slash: {text:?}"
            ));
        }
        Ok(Self {
            kind,
            name: name.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_and_owners_are_named_as_for_kubectl() {
        let rows = [
            ("web", Ok((Kind::Pod, "web"))),
            ("pod/web", Ok((Kind::Pod, "web"))),
            ("po/web", Ok((Kind::Pod, "web"))),
            ("Deployment/web", Ok((Kind::Deployment, "web"))),
            ("deployments.apps/web", Ok((Kind::Deployment, "web"))),
            ("deployments.v1.apps/web", Ok((Kind::Deployment, "web"))),
            ("svc/web", Ok((Kind::Service, "web"))),
            ("sts/db", Ok((Kind::StatefulSet, "db"))),
            ("job/once", Ok((Kind::Job, "once"))),
            (
                "deployments.example.com/web",
                Err("the server doesn't have a resource type \"deployments.example.com\""),
            ),
            (
                "node/a",
                Err("the server doesn't have a resource type \"node\""),
            ),
            (
                "pod/",
                Err("pod, type/name or --filename must be specified"),
            ),
            ("", Err("pod, type/name or --filename must be specified")),
            (
                "pod/a/b",
                Err(
                    "arguments in resource/name form may not have more than one slash: \"pod/a/b\"",
                ),
            ),
        ];
        for (text, expected) in rows {
            let found = Reference::parse(text);
            let found = found.as_ref().map(|it| (it.kind, it.name.as_str()));
            assert_eq!(found.map_err(String::as_str), expected, "{text}");
        }
        assert_eq!(Kind::Job.path("a"), "/apis/batch/v1/namespaces/a/jobs");
        assert_eq!(Kind::Service.path("a"), "/api/v1/namespaces/a/services");
        assert_eq!(Kind::Deployment.singular(), "deployment");
    }

    #[test]
    fn a_type_and_a_name_may_be_two_words() {
        let rows: [(&[&str], _); 6] = [
            (&["web"], Ok((Kind::Pod, "web"))),
            (&["deploy/web"], Ok((Kind::Deployment, "web"))),
            (&["deploy", "web"], Ok((Kind::Deployment, "web"))),
            (&["pods", "deploy/web"], Ok((Kind::Deployment, "web"))),
            (
                &["node", "a"],
                Err("the server doesn't have a resource type \"node\""),
            ),
            (
                &["a", "b", "c"],
                Err("expected POD, TYPE/NAME, or TYPE NAME, (at most 2 arguments) saw 3: [a b c]"),
            ),
        ];
        for (words, expected) in rows {
            let words: Vec<_> = words.iter().map(|&word| word.to_owned()).collect();
            let found = Reference::parse_words(&words);
            let found = found.as_ref().map(|it| (it.kind, it.name.as_str()));
            assert_eq!(found.map_err(String::as_str), expected, "{words:?}");
        }
    }
}
