//! The components that a signature covers: their identifiers, and their values in a request
//! (RFC 9421, 2).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, HeaderName};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode, utf8_percent_encode};
use sfv::StringRef;

use crate::structured::{
    BareItem, Item, parse_dictionary, parse_list, serialize, serialize_member,
};
use crate::{Error, Request};

/// A component of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Component {
    /// `@method`
    Method,
    /// `@target-uri`
    TargetUri,
    /// `@authority`
    Authority,
    /// `@scheme`
    Scheme,
    /// `@request-target`: the path and the query.
    RequestTarget,
    /// `@path`
    Path,
    /// `@query`
    Query,
    /// `@query-param` of this name, encoded.
    QueryParam(String),
    /// A header.
    Field(HeaderName, FieldForm),
}

/// How the lines of a header become one value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FieldForm {
    /// Joined by commas.
    Joined,
    /// `sf`: parsed as a structured field, and serialized again.
    Strict,
    /// `key`: one member of a dictionary.
    Key(String),
    /// `bs`: each line as a byte sequence.
    Bytes,
}

/// A component, and its identifier in `Signature-Input`, which is signed too.
#[derive(Debug, Clone, PartialEq)]
pub struct Identifier {
    component: Component,
    item: Item,
}

/// Structured fields of requests whose type is known. `sf` cannot be used with other fields
/// (RFC 9421, 2.1.1).
const DICTIONARIES: [&str; 8] = [
    "accept-signature",
    "content-digest",
    "priority",
    "repr-digest",
    "signature",
    "signature-input",
    "want-content-digest",
    "want-repr-digest",
];
const LISTS: [&str; 3] = ["accept-ch", "cache-status", "proxy-status"];

impl Identifier {
    /// A derived component, or a header without parameters.
    pub fn named(name: &str) -> Result<Self, Error> {
        Self::read(&Item::new(string(name)?))
    }

    /// A header without parameters.
    pub fn field(name: &HeaderName) -> Result<Self, Error> {
        Ok(Self {
            component: Component::Field(name.clone(), FieldForm::Joined),
            item: Item::new(string(name.as_str())?),
        })
    }

    /// Parses an identifier of `Signature-Input`.
    pub fn read(item: &Item) -> Result<Self, Error> {
        let refuse = |cause| Error::Component {
            identifier: serialize(item),
            cause,
        };
        let BareItem::String(name) = &item.bare_item else {
            return Err(refuse("its name is not a string"));
        };
        let component = if let Some(derived) = name.as_str().strip_prefix('@') {
            derived_component(derived, item)
        } else {
            field(name.as_str(), item)
        };
        Ok(Self {
            component: component.map_err(refuse)?,
            item: item.clone(),
        })
    }

    /// The component that it identifies.
    pub fn component(&self) -> &Component {
        &self.component
    }

    /// The identifier as it is serialized.
    pub fn item(&self) -> &Item {
        &self.item
    }

    /// The value of the component in this request.
    pub fn value(&self, request: &Request<'_>) -> Result<String, Error> {
        let value = value(&self.component, request);
        // RFC 9421, 2.5: a value must not look like another line of the base.
        let value = value.and_then(|value| {
            if value
                .bytes()
                .all(|it| it == b'\t' || (b' '..0x7f).contains(&it))
            {
                Ok(value)
            } else {
                Err("its value is not printable ASCII")
            }
        });
        value.map_err(|cause| Error::Component {
            identifier: serialize(&self.item),
            cause,
        })
    }
}

/// A string of a structured field.
pub(super) fn string(text: &str) -> Result<BareItem, Error> {
    match StringRef::from_str(text) {
        Ok(text) => Ok(text.into()),
        Err(_) => Err(Error::NotSerializable(
            "a string that is not printable ASCII",
        )),
    }
}

fn derived_component(name: &str, item: &Item) -> Result<Component, &'static str> {
    if name == "query-param" {
        return match (item.params.len(), item.params.get("name")) {
            (1, Some(BareItem::String(name))) => {
                Ok(Component::QueryParam(name.as_str().to_owned()))
            }
            _ => Err("it takes a name, and nothing else"),
        };
    }
    if !item.params.is_empty() {
        return Err("it takes no parameters in a request");
    }
    Ok(match name {
        "method" => Component::Method,
        "target-uri" => Component::TargetUri,
        "authority" => Component::Authority,
        "scheme" => Component::Scheme,
        "request-target" => Component::RequestTarget,
        "path" => Component::Path,
        "query" => Component::Query,
        "signature-params" => return Err("it is always covered, and never listed"),
        "status" => return Err("requests do not have it"),
        _ => return Err("it is not known"),
    })
}

fn field(name: &str, item: &Item) -> Result<Component, &'static str> {
    let Ok(name) = HeaderName::from_lowercase(name.as_bytes()) else {
        return Err("it is not a header name in lower case");
    };
    let (mut strict, mut bytes, mut key) = (false, false, None);
    for (parameter, value) in &item.params {
        match (parameter.as_str(), value) {
            ("sf", BareItem::Boolean(true)) => strict = true,
            ("bs", BareItem::Boolean(true)) => bytes = true,
            ("key", BareItem::String(of)) => key = Some(of.as_str().to_owned()),
            ("req", _) => return Err("the parameter req is for responses only"),
            ("tr", _) => return Err("trailers are not covered"),
            _ => return Err("it has a parameter that is not known"),
        }
    }
    let form = match (strict, bytes, key) {
        (false, false, None) => FieldForm::Joined,
        (true, false, None) => FieldForm::Strict,
        (false, true, None) => FieldForm::Bytes,
        // `key` is strict by itself.
        (_, false, Some(key)) => FieldForm::Key(key),
        (_, true, _) => return Err("bs excludes sf and key"),
    };
    Ok(Component::Field(name, form))
}

fn value(component: &Component, request: &Request<'_>) -> Result<String, &'static str> {
    let path = if request.path.is_empty() {
        "/"
    } else {
        request.path
    };
    let target = || match request.query {
        Some(query) => format!("{path}?{query}"),
        None => path.to_owned(),
    };
    Ok(match component {
        Component::Method => request.method.as_str().to_owned(),
        Component::TargetUri => {
            let authority = request.normalized_authority();
            format!("{}://{authority}{}", request.scheme, target())
        }
        Component::Authority => request.normalized_authority(),
        Component::Scheme => request.scheme.to_ascii_lowercase(),
        Component::RequestTarget => target(),
        Component::Path => path.to_owned(),
        Component::Query => format!("?{}", request.query.unwrap_or_default()),
        Component::QueryParam(name) => query_param(request.query.unwrap_or_default(), name)?,
        Component::Field(name, form) => field_value(request.headers, name, form)?,
    })
}

/// Characters that "percent-encode after encoding" encodes in a form (URL Standard, 5.2).
const FORM_ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'*')
    .remove(b'-')
    .remove(b'.')
    .remove(b'_');

/// The value of the only parameter of this name. Names and values are decoded and encoded
/// again, so that one meaning has one form.
fn query_param(query: &str, name: &str) -> Result<String, &'static str> {
    let reencode = |part: &str| -> Result<String, &'static str> {
        let part = part.replace('+', " ");
        let decoded = percent_decode(part.as_bytes()).decode_utf8();
        let decoded = decoded.map_err(|_| "the query is not UTF-8")?;
        Ok(utf8_percent_encode(&decoded, FORM_ENCODED).to_string())
    };
    let mut found = None;
    for pair in query.split('&').filter(|it| !it.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        if reencode(key)? == name && found.replace(reencode(value)?).is_some() {
            return Err("the query has it more than once");
        }
    }
    found.ok_or("the query does not have it")
}

fn field_value(
    headers: &HeaderMap,
    name: &HeaderName,
    form: &FieldForm,
) -> Result<String, &'static str> {
    let lines: Vec<&[u8]> = headers
        .get_all(name)
        .iter()
        .map(|value| value.as_bytes().trim_ascii())
        .collect();
    if lines.is_empty() {
        return Err("the request does not have it");
    }
    match form {
        FieldForm::Joined => String::from_utf8(lines.join(&b", "[..]))
            .map_err(|_| "its value is not printable ASCII"),
        FieldForm::Bytes => Ok(lines
            .iter()
            .map(|line| format!(":{}:", STANDARD.encode(line)))
            .collect::<Vec<_>>()
            .join(", ")),
        FieldForm::Strict => strict(&lines.join(&b", "[..]), FieldType::of(name)),
        FieldForm::Key(key) => {
            let dictionary = parse_dictionary(&lines.join(&b", "[..]));
            let dictionary = dictionary.map_err(|_| "it is not a dictionary")?;
            let member = dictionary
                .get(key.as_str())
                .ok_or("the dictionary does not have this member")?;
            Ok(serialize_member(member))
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum FieldType {
    List,
    Dictionary,
}

impl FieldType {
    fn of(name: &HeaderName) -> Option<Self> {
        if DICTIONARIES.contains(&name.as_str()) {
            Some(Self::Dictionary)
        } else if LISTS.contains(&name.as_str()) {
            Some(Self::List)
        } else {
            None
        }
    }
}

fn strict(text: &[u8], kind: Option<FieldType>) -> Result<String, &'static str> {
    let written = match kind {
        None => return Err("it is not known to be a structured field"),
        Some(FieldType::List) => parse_list(text).map(|it| serialize(&it)),
        Some(FieldType::Dictionary) => parse_dictionary(text).map(|it| serialize(&it)),
    };
    written.map_err(|_| "it is not a structured field")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use http::{HeaderValue, Method};

    use super::*;
    use crate::structured::parse_item;

    fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    fn value_of(identifier: &str, uri: &str, lines: &[(&'static str, &str)]) -> Option<String> {
        let uri = uri.parse().unwrap();
        let headers = headers(lines);
        let request = Request::of("https", &Method::POST, &uri, &headers)?;
        let item = parse_item(identifier.as_bytes()).unwrap();
        Identifier::read(&item).ok()?.value(&request).ok()
    }

    /// The examples of RFC 9421, 2.2.
    #[test]
    fn derived_components_have_the_values_of_the_rfc() {
        let at = "https://www.example.com/path?param=value&foo=bar&baz=batman&qux=";
        let rows = [
            ("\"@method\"", at, Some("POST")),
            ("\"@target-uri\"", at, Some(at)),
            ("\"@authority\"", at, Some("www.example.com")),
            ("\"@scheme\"", at, Some("https")),
            ("\"@path\"", at, Some("/path")),
            (
                "\"@request-target\"",
                at,
                Some("/path?param=value&foo=bar&baz=batman&qux="),
            ),
            (
                "\"@query\"",
                "https://k/path?param=value&foo=bar&baz=bat%2Dman",
                Some("?param=value&foo=bar&baz=bat%2Dman"),
            ),
            (
                "\"@query\"",
                "https://k/path?queryString",
                Some("?queryString"),
            ),
            ("\"@query\"", "https://k/path", Some("?")),
            ("\"@path\"", "https://k", Some("/")),
            ("\"@query-param\";name=\"baz\"", at, Some("batman")),
            ("\"@query-param\";name=\"qux\"", at, Some("")),
            ("\"@query-param\";name=\"param\"", at, Some("value")),
            ("\"@query-param\";name=\"absent\"", at, None),
            ("\"@query-param\";name=\"a\"", "https://k/?a=1&a=2", None),
            ("\"@query-param\"", at, None),
            ("\"@method\";req", at, None),
            ("\"@method\";bs", at, None),
            ("\"@status\"", at, None),
            ("\"@signature-params\"", at, None),
            ("\"@unheard-of\"", at, None),
            ("method", at, None),
        ];
        for (identifier, uri, expected) in rows {
            let value = value_of(identifier, uri, &[]);
            assert_eq!(value.as_deref(), expected, "{identifier} {uri}");
        }
    }

    #[test]
    fn query_parameters_are_encoded_as_in_the_rfc() {
        let query = "var=this%20is%20a%20big%0Amultiline%20value&\
                     bar=with+plus+whitespace&fa%C3%A7ade%22%3A%20=something";
        let rows = [
            ("var", "this%20is%20a%20big%0Amultiline%20value"),
            ("bar", "with%20plus%20whitespace"),
            ("fa%C3%A7ade%22%3A%20", "something"),
        ];
        for (name, expected) in rows {
            assert_eq!(query_param(query, name).unwrap(), expected);
        }
        assert!(query_param("a=%FF", "a").is_err());
    }

    /// The examples of RFC 9421, 2.1.
    #[test]
    fn fields_have_the_values_of_the_rfc() {
        let lines = [
            ("host", "www.example.com"),
            ("date", "Tue, 20 Apr 2021 02:07:56 GMT"),
            ("x-ows-header", "   Leading and trailing whitespace.   "),
            ("cache-control", "max-age=60"),
            ("cache-control", "   must-revalidate"),
            ("example-dict", "a=1,    b=2;x=1;y=2,   c=(a   b   c), d"),
            ("x-empty-header", ""),
            ("example-header", "value, with, lots"),
            ("example-header", "of, commas"),
            ("x-latin", "caf\u{e9}"),
            ("content-digest", "b=2,   a=1"),
        ];
        let rows = [
            ("\"host\"", Some("www.example.com")),
            ("\"date\"", Some("Tue, 20 Apr 2021 02:07:56 GMT")),
            ("\"x-ows-header\"", Some("Leading and trailing whitespace.")),
            ("\"cache-control\"", Some("max-age=60, must-revalidate")),
            (
                "\"example-dict\"",
                Some("a=1,    b=2;x=1;y=2,   c=(a   b   c), d"),
            ),
            ("\"example-dict\";key=\"a\"", Some("1")),
            ("\"example-dict\";key=\"d\"", Some("?1")),
            ("\"example-dict\";key=\"b\"", Some("2;x=1;y=2")),
            ("\"example-dict\";key=\"c\"", Some("(a b c)")),
            ("\"example-dict\";sf;key=\"c\"", Some("(a b c)")),
            ("\"example-dict\";key=\"e\"", None),
            ("\"x-empty-header\"", Some("")),
            ("\"example-header\"", Some("value, with, lots, of, commas")),
            (
                "\"example-header\";bs",
                Some(":dmFsdWUsIHdpdGgsIGxvdHM=:, :b2YsIGNvbW1hcw==:"),
            ),
            ("\"content-digest\";sf", Some("b=2, a=1")),
            ("\"example-header\";sf", None),
            ("\"example-dict\";sf;bs", None),
            ("\"example-dict\";key=\"a\";bs", None),
            ("\"example-dict\";tr", None),
            ("\"example-dict\";req", None),
            ("\"example-dict\";unknown", None),
            ("\"x-latin\"", None),
            ("\"x-latin\";bs", Some(":Y2Fmw6k=:")),
            ("\"Host\"", None),
            ("\"absent\"", None),
        ];
        for (identifier, expected) in rows {
            let value = value_of(identifier, "/", &lines);
            assert_eq!(value.as_deref(), expected, "{identifier}");
        }
        let dictionary = b"a=1,    b=2;x=1;y=2,   c=(a   b   c)";
        assert_eq!(
            strict(dictionary, Some(FieldType::Dictionary)).unwrap(),
            "a=1, b=2;x=1;y=2, c=(a b c)"
        );
        assert_eq!(strict(b"a,b", Some(FieldType::List)).unwrap(), "a, b");
    }
}
