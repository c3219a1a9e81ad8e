//! How a document is asked for, and in which form the answer came.

use skewbridge_api::media::MediaRange;

use crate::document::Schema;

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
    "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList;profile=nopeer,",
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

/// Which document of `/apis` a client wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// The one of the whole cluster, in this schema.
    Merged(Schema),
    /// The one of the server itself, or none of these: its own affair.
    Local,
}

impl Wanted {
    /// What the first alternative asks for that the server understands, as
    /// kube-apiserver negotiates: the most wanted first, a profile that asks for
    /// the local document with `nopeer` (on the wire) or `local` (in the KEP).
    /// Only JSON is written here.
    pub fn of<'a>(
        accepted: impl Iterator<Item = MediaRange<'a>>,
        understands: impl Fn(Schema) -> bool,
    ) -> Self {
        let mut accepted: Vec<_> = accepted.filter(|range| range.quality > 0).collect();
        accepted.sort_by_key(|range| std::cmp::Reverse(range.quality));
        // Who asks for a local document in any form is a server that wants to
        // know what this one serves by itself. Were it told more, two servers
        // could keep telling each other of an API that neither has.
        let is_local = |range: &MediaRange<'_>| {
            let mut parameters = range.parameters.iter();
            parameters
                .any(|(key, value)| key == "profile" && matches!(&**value, "nopeer" | "local"))
        };
        if accepted.iter().any(is_local) {
            return Self::Local;
        }
        for range in &accepted {
            let parameter = |name: &str| {
                let mut found = range.parameters.iter().filter(|(key, _)| key == name);
                found.next().map(|(_, value)| &**value)
            };
            let is_json = matches!((&*range.kind, &*range.subkind), ("application", "json"));
            let schema = match (parameter("g"), parameter("v"), parameter("as")) {
                (Some("apidiscovery.k8s.io"), Some("v2"), Some(LIST)) => Schema::V2,
                (Some("apidiscovery.k8s.io"), Some("v2beta1"), Some(LIST)) => Schema::V2Beta1,
                (_, _, None) => return Self::Local,
                _ => continue,
            };
            if !understands(schema) {
                continue;
            }
            return if is_json {
                Self::Merged(schema)
            } else {
                Self::Local
            };
        }
        Self::Local
    }
}

const LIST: &str = "APIGroupDiscoveryList";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_form_is_asked_for_first() {
        let beta_nopeer = format!("{V2_BETA1};profile=nopeer");
        let offers = [V2_NOPEER, V2, &beta_nopeer, V2_BETA1, LEGACY];
        assert_eq!(LOCAL_DOCUMENT, offers.join(","));
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

    #[test]
    fn the_first_alternative_that_is_understood_is_wanted() {
        const BETA_TOO: fn(Schema) -> bool = |_| true;
        const ONLY_V2: fn(Schema) -> bool = |schema| schema == Schema::V2;
        const ONLY_BETA: fn(Schema) -> bool = |schema| schema == Schema::V2Beta1;
        let v2 = Wanted::Merged(Schema::V2);
        let beta = Wanted::Merged(Schema::V2Beta1);
        let client = format!("{V2},{V2_BETA1},{LEGACY}");
        let low = format!("{V2};q=0.5,{V2_BETA1}");
        let kep = format!("{V2};profile=local,{V2}");
        let unknown = format!("{V2};profile=other");
        let protobuf = V2.replace("json", "vnd.kubernetes.protobuf");
        let rows = [
            (&*client, BETA_TOO, v2),
            (&client, ONLY_V2, v2),
            (&client, ONLY_BETA, beta),
            (&low, BETA_TOO, beta),
            (&low, ONLY_V2, v2),
            (V2_BETA1, ONLY_V2, Wanted::Local),
            (V2_NOPEER, BETA_TOO, Wanted::Local),
            (LOCAL_DOCUMENT, BETA_TOO, Wanted::Local),
            (LOCAL_DOCUMENT, ONLY_BETA, Wanted::Local),
            (&kep, BETA_TOO, Wanted::Local),
            (&unknown, BETA_TOO, v2),
            (&protobuf, BETA_TOO, Wanted::Local),
            (LEGACY, BETA_TOO, Wanted::Local),
            ("*/*", BETA_TOO, Wanted::Local),
            ("", BETA_TOO, Wanted::Local),
            (
                "application/json,application/json;as=Table;v=v1;g=meta.k8s.io",
                BETA_TOO,
                Wanted::Local,
            ),
        ];
        for (accept, understands, expected) in rows {
            let ranges = accept.split(',').filter_map(MediaRange::parse);
            assert_eq!(Wanted::of(ranges, understands), expected, "{accept}");
        }
    }
}
