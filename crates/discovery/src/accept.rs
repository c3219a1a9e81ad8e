//! How a document is asked for, and in which form the answer came.

use skewbridge_api::media::MediaRange;

/// What this server itself serves, by one that merges its peers' discovery into
/// its own (1.35 and later). Servers that know no such profile pass it over.
pub const V2_NOPEER: &str =
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList;profile=nopeer";
/// Aggregated discovery of 1.30 and later.
pub const V2: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
/// Aggregated discovery of 1.26 and later.
pub const V2_BETA1: &str =
    "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";
/// The lists that every server has.
pub const LEGACY: &str = "application/json";

/// All of these, the best first: a server takes the first that it knows.
pub const LOCAL_DOCUMENT: &str = concat!(
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList;profile=nopeer,",
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,",
    "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,",
    "application/json",
);

/// In which form an answer came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answered {
    /// A document in `apidiscovery.k8s.io/v2`.
    V2,
    /// A document in `apidiscovery.k8s.io/v2beta1`.
    V2Beta1,
    /// `APIVersions` or an `APIGroupList`, from a server older than 1.26.
    Legacy,
}

impl Answered {
    /// By the `Content-Type`. None if that is not JSON.
    pub fn of_content_type(text: &str) -> Option<Self> {
        let media = MediaRange::parse(text)?;
        if (&*media.kind, &*media.subkind) != ("application", "json") {
            return None;
        }
        let says = |name: &str, value: &str| {
            media
                .parameters
                .iter()
                .any(|(key, said)| key == name && said.eq_ignore_ascii_case(value))
        };
        if !says("g", "apidiscovery.k8s.io") || !says("as", "APIGroupDiscoveryList") {
            Some(Self::Legacy)
        } else if says("v", "v2") {
            Some(Self::V2)
        } else if says("v", "v2beta1") {
            Some(Self::V2Beta1)
        } else {
            Some(Self::Legacy)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_form_is_asked_for_first() {
        assert_eq!(LOCAL_DOCUMENT, [V2_NOPEER, V2, V2_BETA1, LEGACY].join(","));
    }

    #[test]
    fn the_form_is_told_by_the_content_type() {
        let rows = [
            (V2_NOPEER, Some(Answered::V2)),
            (V2, Some(Answered::V2)),
            (V2_BETA1, Some(Answered::V2Beta1)),
            (LEGACY, Some(Answered::Legacy)),
            (
                "Application/JSON ; AS=apigroupdiscoverylist; V=V2 ;G=\"apidiscovery.k8s.io\"",
                Some(Answered::V2),
            ),
            (
                "application/json;charset=utf-8;as=APIGroupDiscoveryList;v=\"v2beta1\";g=apidiscovery.k8s.io;",
                Some(Answered::V2Beta1),
            ),
            (
                "application/json;g=apidiscovery.k8s.io;v=v3;as=APIGroupDiscoveryList",
                Some(Answered::Legacy),
            ),
            (
                "application/json;g=meta.k8s.io;v=v2;as=APIGroupDiscoveryList",
                Some(Answered::Legacy),
            ),
            (
                "application/json;g=apidiscovery.k8s.io;v=v2",
                Some(Answered::Legacy),
            ),
            ("application/json; charset=utf-8", Some(Answered::Legacy)),
            (
                "application/vnd.kubernetes.protobuf;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
                None,
            ),
            ("text/plain; charset=utf-8", None),
            ("", None),
        ];
        for (text, expected) in rows {
            assert_eq!(Answered::of_content_type(text), expected, "{text}");
        }
    }
}
