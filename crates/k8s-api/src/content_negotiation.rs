//! Negotiation of response formats from `Accept` headers.

use std::borrow::Cow;

use http::header::ACCEPT;
use http::{HeaderMap, HeaderValue};

/// A serialization format of API objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// `application/json`
    Json,
    /// `application/vnd.kubernetes.protobuf`
    Protobuf,
    /// `application/cbor`
    Cbor,
    /// `application/yaml`
    Yaml,
}

/// The `Content-Type` value of a format.
pub fn content_type(format: Format) -> HeaderValue {
    HeaderValue::from_static(match format {
        Format::Json => "application/json",
        Format::Protobuf => "application/vnd.kubernetes.protobuf",
        Format::Cbor => "application/cbor",
        Format::Yaml => "application/yaml",
    })
}

/// One media range of an `Accept` header, or a `Content-Type`.
#[derive(Debug, Clone, PartialEq)]
pub struct MediaRange<'a> {
    /// `application` of `application/json`, or `*`; in lower case.
    pub kind: Cow<'a, str>,
    /// `json` of `application/json`, or `*`; in lower case.
    pub subtype: Cow<'a, str>,
    /// Parameters such as `g=apidiscovery.k8s.io`, without `q`.
    pub parameters: Vec<(Cow<'a, str>, Cow<'a, str>)>,
    /// The quality value in thousandths.
    pub quality: u16,
}

/// All media ranges of all `Accept` headers, in order. Invalid ones are skipped.
pub fn parse_accept(headers: &HeaderMap) -> impl Iterator<Item = MediaRange<'_>> {
    headers
        .get_all(ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|text| split_outside_quotes(text, ','))
        .filter_map(MediaRange::parse)
}

/// The media ranges in the order in which kube-apiserver tries them. kube-apiserver reads
/// the first `Accept` header only. `None` means that there is no such header: then the
/// first offered format is used.
pub fn sorted_accept(headers: &HeaderMap) -> Option<Vec<MediaRange<'_>>> {
    let text = headers.get(ACCEPT)?.to_str().ok()?;
    if text.is_empty() {
        return None;
    }
    let mut ranges: Vec<_> = text
        .split(',')
        .filter_map(MediaRange::parse_goautoneg)
        .collect();
    // An insertion sort with a comparison that is not a total order, as in goautoneg, the library
    // that kube-apiserver uses: another sort would select other ranges.
    for place in 1..ranges.len() {
        let mut at = place;
        while at > 0 && ranges[at].sorts_before(&ranges[at - 1]) {
            ranges.swap(at, at - 1);
            at -= 1;
        }
    }
    Some(ranges)
}

/// The format in which kube-apiserver would encode an object, out of the offered ones;
/// `None` means 406.
pub fn negotiate(headers: &HeaderMap, offers: &[Format]) -> Option<Format> {
    let Some(ranges) = sorted_accept(headers) else {
        return offers.first().copied();
    };
    let plain = (ranges.iter())
        .filter(|range| !range.is_transformed() && !range.has_unsupported_parameters());
    let mut formats = plain.filter_map(|range| {
        let mut offers = offers.iter().copied();
        offers.find(|offer| range.includes(*offer))
    });
    formats.next()
}

/// The format of an error response: JSON, unless the client accepts only another format
/// that can be encoded here.
pub fn negotiate_error_format(headers: &HeaderMap) -> Format {
    let mut alternative = None;
    for range in parse_accept(headers).filter(|range| range.quality > 0) {
        match (&*range.kind, &*range.subtype) {
            ("*", _) | ("application", "*" | "json") => return Format::Json,
            ("application", "vnd.kubernetes.protobuf") => {
                alternative = alternative.or(Some(Format::Protobuf));
            }
            ("application", "cbor") => alternative = alternative.or(Some(Format::Cbor)),
            _ => {}
        }
    }
    alternative.unwrap_or(Format::Json)
}

impl<'a> MediaRange<'a> {
    /// Parses a media range. White space, quotes and the case of names are ignored.
    pub fn parse(text: &'a str) -> Option<Self> {
        let mut parts = split_outside_quotes(text, ';');
        let (kind, subtype) = parts.next()?.trim().split_once('/')?;
        let mut range = Self {
            kind: lower(kind.trim()),
            subtype: lower(subtype.trim()),
            parameters: Vec::new(),
            quality: 1000,
        };
        for part in parts {
            let Some((name, value)) = part.trim().split_once('=') else {
                continue;
            };
            let name = lower(name.trim());
            let value = unquote(value.trim());
            if name == "q" {
                range.quality = quality(&value)?;
            } else {
                range.parameters.push((name, value));
            }
        }
        Some(range)
    }
}

impl<'a> MediaRange<'a> {
    /// Parses as goautoneg, the library that kube-apiserver uses: case and quotes are
    /// significant, a quality that is not a number is 0, and a quality above 1 is accepted.
    fn parse_goautoneg(text: &'a str) -> Option<Self> {
        let text = text.trim_matches(' ');
        let mut parts = text.split(';');
        let media = parts.next()?;
        let (kind, subtype) = match media.split_once('/') {
            None if media.trim_matches(' ') == "*" => ("*", "*"),
            None | Some((_, "")) => return None,
            Some((_, subtype)) if subtype.contains('/') => return None,
            Some(pair) => pair,
        };
        let mut range = Self {
            kind: Cow::Borrowed(kind.trim_matches(' ')),
            subtype: Cow::Borrowed(subtype.trim_matches(' ')),
            parameters: Vec::new(),
            quality: 1000,
        };
        for part in parts {
            let Some((name, value)) = part.split_once('=') else {
                continue;
            };
            if value.is_empty() || value.contains('=') {
                continue;
            }
            match name.trim_matches(' ') {
                "q" => range.quality = goautoneg_quality(value),
                name => {
                    let value = value.trim_matches(' ');
                    range.parameters.push((name.into(), value.into()));
                }
            }
        }
        Some(range)
    }
}

impl MediaRange<'_> {
    fn sorts_before(&self, other: &Self) -> bool {
        self.quality > other.quality
            || (self.kind != "*" && other.kind == "*")
            || (self.subtype != "*" && other.subtype == "*")
    }

    /// The value of a parameter; the last value if there are several.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        let mut found = self.parameters.iter().rev();
        found
            .find(|(key, _)| key == name)
            .map(|(_, value)| &**value)
    }

    /// Whether it requests a conversion to another kind (`as`, `g`, `v`).
    pub fn is_transformed(&self) -> bool {
        ["as", "g", "v"]
            .iter()
            .any(|name| self.parameter(name).is_some())
    }

    /// Whether it has parameters that no object supports: a stream other than a watch, or a
    /// server version (`sv`).
    pub fn has_unsupported_parameters(&self) -> bool {
        let stream = self.parameter("stream").unwrap_or_default();
        let version = self.parameter("sv").unwrap_or_default();
        !matches!(stream, "" | "watch") || !version.is_empty()
    }

    /// Whether the media range includes a format.
    pub fn includes(&self, format: Format) -> bool {
        let subtype = match format {
            Format::Json => "json",
            Format::Protobuf => "vnd.kubernetes.protobuf",
            Format::Cbor => "cbor",
            Format::Yaml => "yaml",
        };
        match (&*self.kind, &*self.subtype) {
            ("*" | "application", "*") => true,
            ("application", this) => this == subtype,
            _ => false,
        }
    }
}

fn lower(text: &str) -> Cow<'_, str> {
    if text.bytes().any(|byte| byte.is_ascii_uppercase()) {
        Cow::Owned(text.to_ascii_lowercase())
    } else {
        Cow::Borrowed(text)
    }
}

fn unquote(text: &str) -> Cow<'_, str> {
    let Some(inner) = text
        .strip_prefix('"')
        .and_then(|text| text.strip_suffix('"'))
    else {
        return Cow::Borrowed(text);
    };
    if inner.contains('\\') {
        Cow::Owned(inner.replace('\\', ""))
    } else {
        Cow::Borrowed(inner)
    }
}

/// RFC 9110, 12.4.2: 0 to 1 with at most three decimals.
fn quality(text: &str) -> Option<u16> {
    let value: f32 = text.parse().ok()?;
    if !(0.0..=1.0).contains(&value) {
        return None;
    }
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // 0 to 1000
    Some((value * 1000.0).round() as u16)
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // saturates
fn goautoneg_quality(text: &str) -> u16 {
    text.parse::<f32>()
        .map_or(0, |value| (value * 1000.0).round() as u16)
}

/// Splits at separators outside quoted strings.
fn split_outside_quotes(text: &str, separator: char) -> impl Iterator<Item = &str> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let text = rest?;
        let mut quoted = false;
        let mut escaped = false;
        for (at, character) in text.char_indices() {
            match character {
                _ if escaped => escaped = false,
                '\\' if quoted => escaped = true,
                '"' => quoted = !quoted,
                _ if character == separator && !quoted => {
                    rest = Some(&text[at + separator.len_utf8()..]);
                    return Some(&text[..at]);
                }
                _ => {}
            }
        }
        rest = None;
        Some(text)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accept(values: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(ACCEPT, value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn errors_are_json_unless_only_another_format_is_accepted() {
        let rows: &[(&[&str], Format)] = &[
            (&[], Format::Json),
            (&["*/*"], Format::Json),
            (&["text/html"], Format::Json),
            (&["application/json"], Format::Json),
            (&["application/vnd.kubernetes.protobuf"], Format::Protobuf),
            (&["Application/Vnd.Kubernetes.Protobuf"], Format::Protobuf),
            (
                &["application/vnd.kubernetes.protobuf;stream=watch"],
                Format::Protobuf,
            ),
            (
                &["application/vnd.kubernetes.protobuf,application/json"],
                Format::Json,
            ),
            (
                &["application/vnd.kubernetes.protobuf", "application/json"],
                Format::Json,
            ),
            (
                &["application/vnd.kubernetes.protobuf, application/json;q=0"],
                Format::Protobuf,
            ),
            (
                &["application/json;as=Table;v=v1;g=meta.k8s.io,application/json"],
                Format::Json,
            ),
            (&["application/cbor"], Format::Cbor),
            (&["application/cbor;q=0.5, application/*"], Format::Json),
            (
                &["application/cbor;q=0, application/vnd.kubernetes.protobuf"],
                Format::Protobuf,
            ),
            (&["application/cbor;q=7"], Format::Json),
        ];
        for (values, expected) in rows {
            assert_eq!(
                negotiate_error_format(&accept(values)),
                *expected,
                "{values:?}"
            );
        }
    }

    #[test]
    fn the_format_is_chosen_like_kube_apiserver() {
        let offers = [Format::Json, Format::Yaml, Format::Protobuf];
        let protobuf = "application/vnd.kubernetes.protobuf";
        let first = format!("{protobuf},application/json");
        let less = format!("{protobuf};q=0.5,application/json");
        let table = "application/json;as=Table;g=meta.k8s.io;v=v1,application/yaml";
        let rows: &[(&[&str], Option<Format>)] = &[
            (&[], Some(Format::Json)),
            (&[""], Some(Format::Json)),
            (&["*/*"], Some(Format::Json)),
            (&["application/*"], Some(Format::Json)),
            (&["*/*, application/yaml"], Some(Format::Yaml)),
            (&["text/html"], None),
            (&["text/html,*/*;q=0.1"], Some(Format::Json)),
            (&["application/cbor"], None),
            (&[&first], Some(Format::Protobuf)),
            (&[&less], Some(Format::Json)),
            (&[table], Some(Format::Yaml)),
            // Not RFC 9110, but kube-apiserver's behaviour.
            (
                &["application/yaml;q=0.5,application/json;q=x"],
                Some(Format::Yaml),
            ),
            (
                &["application/json,application/yaml;q=2"],
                Some(Format::Yaml),
            ),
            (&["Application/JSON"], None),
            (&["application/json;stream=foo"], None),
            (&["application/json;stream=watch"], Some(Format::Json)),
            (&["*"], Some(Format::Json)),
            (&["application"], None),
            (&["application/json/x"], None),
            // Only the first header counts.
            (
                &["application/yaml", "application/json"],
                Some(Format::Yaml),
            ),
            (&["text/html", "application/json"], None),
        ];
        for (values, expected) in rows {
            let chosen = negotiate(&accept(values), &offers);
            assert_eq!(chosen, *expected, "{values:?}");
        }
    }

    #[test]
    fn parameters_and_quoted_strings_are_parsed() {
        let headers = accept(&[r#"application/json;as="a,b;c";G=x;q=0.25 , text/plain"#]);
        let ranges: Vec<_> = parse_accept(&headers).collect();
        assert_eq!(ranges.len(), 2);
        assert_eq!(ranges[0].quality, 250);
        assert_eq!(
            ranges[0].parameters,
            [("as".into(), "a,b;c".into()), ("g".into(), "x".into())]
        );
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(text in "[ -~]{0,80}") {
            let _ = negotiate_error_format(&accept(&[&text]));
        }
    }
}
