//! The `Warning` headers in which a server reports that an API is deprecated.

use http::header::WARNING;
use http::{HeaderMap, HeaderValue};
use skewbridge_released_apis::Minor;

/// The deprecation of an API, as a server reports it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Deprecation {
    /// The first minor version that does not serve it.
    pub(super) unavailable_in: Option<Minor>,
    /// The API to use instead, such as `discovery.k8s.io/v1 EndpointSlice`.
    pub(super) replacement: Option<String>,
}

/// The deprecation of an API in the headers of a response. Other warnings, of admission webhooks,
/// unknown fields or of the bridge itself, are about something else.
pub(super) fn find(headers: &HeaderMap, group: &str, version: &str) -> Option<Deprecation> {
    if !headers.contains_key(WARNING) {
        return None;
    }
    let mut warnings = headers.get_all(WARNING).iter().filter_map(text);
    warnings.find_map(|text| parse(&text, group, version))
}

/// The text of `299 - "TEXT"` (RFC 7234, 5.5), as Kubernetes writes it.
fn text(value: &HeaderValue) -> Option<String> {
    let rest = value.to_str().ok()?.strip_prefix("299 ")?;
    let (_, quoted) = rest.split_once(" \"")?;
    let mut text = String::new();
    let mut letters = quoted.chars();
    loop {
        match letters.next()? {
            '"' => return Some(text),
            '\\' => text.push(letters.next()?),
            letter => text.push(letter),
        }
    }
}

/// Parses `GROUP/VERSION KIND is deprecated[ in vX.Y+][, unavailable in vX.Y+][; use …]`: the form of
/// k8s.io/apiserver (`deprecation.WarningMessage`), and of custom resources without a
/// `deprecationWarning` of their own.
fn parse(text: &str, group: &str, version: &str) -> Option<Deprecation> {
    let mut words = text.splitn(3, ' ');
    let (api, _kind, rest) = (words.next()?, words.next()?, words.next()?);
    let is_same = match api.split_once('/') {
        Some(named) => named == (group, version),
        None => group.is_empty() && api == version,
    };
    let rest = rest.strip_prefix("is deprecated").filter(|_| is_same)?;
    if !(rest.is_empty() || rest.starts_with([' ', ',', ';'])) {
        return None;
    }
    let (when, replacement) = match rest.split_once("; use ") {
        Some((when, replacement)) => (when, Some(replacement.to_owned())),
        None => (rest, None),
    };
    let unavailable_in = when
        .split_once("unavailable in ")
        .and_then(|(_, minor)| minor.trim_end_matches('+').parse().ok());
    Some(Deprecation {
        unavailable_in,
        replacement,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deprecations_are_distinguished_from_other_warnings() {
        const FLOWS: (&str, &str) = ("flowcontrol.apiserver.k8s.io", "v1beta3");
        const CORE: (&str, &str) = ("", "v1");
        const CUSTOM: (&str, &str) = ("example.com", "v1alpha1");
        // (value of the header, API, first minor without it and replacement)
        let rows = [
            (
                "299 - \"flowcontrol.apiserver.k8s.io/v1beta3 FlowSchema is deprecated in v1.29+, unavailable in v1.32+; use flowcontrol.apiserver.k8s.io/v1 FlowSchema\"",
                FLOWS,
                Some((
                    Some("1.32"),
                    Some("flowcontrol.apiserver.k8s.io/v1 FlowSchema"),
                )),
            ),
            (
                "299 - \"v1 ComponentStatus is deprecated in v1.19+\"",
                CORE,
                Some((None, None)),
            ),
            (
                "299 - \"v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice\"",
                CORE,
                Some((None, Some("discovery.k8s.io/v1 EndpointSlice"))),
            ),
            (
                "299 - \"example.com/v1alpha1 Widget is deprecated\"",
                CUSTOM,
                Some((None, None)),
            ),
            (
                "299 agent \"example.com/v1alpha1 Widget is deprecated\" \"date\"",
                CUSTOM,
                Some((None, None)),
            ),
            // Of another API: a webhook, or an object inside of another.
            (
                "299 - \"v1 ComponentStatus is deprecated in v1.19+\"",
                FLOWS,
                None,
            ),
            (
                "299 - \"v1 ComponentStatus is deprecated in v1.19+\"",
                ("apps", "v1"),
                None,
            ),
            ("299 - \"v1 Widget is deprecatedish\"", CORE, None),
            ("299 - \"unknown field \\\"spec.a\\\"\"", CORE, None),
            (
                "299 - \"metadata.finalizers: \\\"a\\\": prefer a domain-qualified name\"",
                CORE,
                None,
            ),
            (
                "299 - \"spec.template.spec.nodeSelector[beta.kubernetes.io/arch]: deprecated since v1.14; use \\\"kubernetes.io/arch\\\" instead\"",
                ("apps", "v1"),
                None,
            ),
            (
                "299 - \"would violate PodSecurity \\\"restricted:latest\\\"\"",
                CORE,
                None,
            ),
            (
                "299 - \"no available kube-apiserver has all fields of this kind\"",
                CORE,
                None,
            ),
            ("299 - \"this resource is deprecated\"", CORE, None),
            (
                "199 - \"v1 ComponentStatus is deprecated in v1.19+\"",
                CORE,
                None,
            ),
            ("299 - \"v1 ComponentStatus is deprecated", CORE, None),
            ("299 -", CORE, None),
            ("", CORE, None),
        ];
        for (value, (group, version), expected) in rows {
            let mut headers = HeaderMap::new();
            headers.append(WARNING, HeaderValue::from_static("299 - \"another\""));
            headers.append(WARNING, HeaderValue::from_static(value));
            let expected = expected.map(|(minor, replacement)| Deprecation {
                unavailable_in: minor.map(|it: &str| it.parse().unwrap()),
                replacement: replacement.map(str::to_owned),
            });
            assert_eq!(find(&headers, group, version), expected, "{value}");
        }
        assert_eq!(find(&HeaderMap::new(), "", "v1"), None);
    }

    #[test]
    fn quoted_pairs_are_decoded() {
        let value = HeaderValue::from_static("299 - \"a \\\"b\\\" \\\\c\"");
        assert_eq!(text(&value).unwrap(), "a \"b\" \\c");
    }
}
