//! Parsers of flag values.
//!
//! Each function parses one value, or returns a sentence that describes the error. The syntax is
//! kube-apiserver's, so that values can be copied from its manifest.

use std::fmt::Display;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use http::{HeaderName, Uri};
use ipnet::IpNet;
use rustls_pki_types::ServerName;
use skewbridge_released_apis::{Minor, known_minors};

/// A parsed value, or the error.
pub(crate) type Parsed<T> = Result<T, String>;

/// Go's `time.ParseDuration`, without its negative half: `1m30s`, `1.5h`, `0`.
pub(crate) fn duration(text: &str) -> Parsed<Duration> {
    let wrong = || format!("{text:?} is not a duration; write it like 30s, 1m30s, 100ms or 1.5h");
    if text.starts_with('-') {
        return Err(format!("{text:?} must not be negative"));
    }
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest == "0" {
        return Ok(Duration::ZERO);
    }
    if rest.is_empty() {
        return Err(wrong());
    }
    let mut total: u128 = 0;
    while !rest.is_empty() {
        let (whole, after) = digits(rest);
        let (fraction, after) = match after.strip_prefix('.') {
            Some(after) => digits(after),
            None => ("", after),
        };
        if whole.is_empty() && fraction.is_empty() {
            return Err(wrong());
        }
        let end = after
            .find(|c: char| c == '.' || c.is_ascii_digit())
            .unwrap_or(after.len());
        let (unit, after) = after.split_at(end);
        let unit: u128 = match unit {
            "ns" => 1,
            // Both the micro sign and the Greek letter, as Go takes them.
            "us" | "\u{b5}s" | "\u{3bc}s" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            _ => return Err(wrong()),
        };
        let too_long = || format!("{text:?} is too long");
        let whole: u128 = parse_digits(whole).ok_or_else(too_long)?;
        // Digits beyond a nanosecond are dropped.
        let fraction = &fraction[..fraction.len().min(16)];
        let scale = 10_u128.pow(u32::try_from(fraction.len()).unwrap_or(0));
        let part = parse_digits(fraction).ok_or_else(too_long)? * unit / scale;
        total = whole
            .checked_mul(unit)
            .and_then(|whole| total.checked_add(whole)?.checked_add(part))
            // Go's limit is an int64 of nanoseconds: 292 years.
            .filter(|total| i64::try_from(*total).is_ok())
            .ok_or_else(too_long)?;
        rest = after;
    }
    u64::try_from(total)
        .map(Duration::from_nanos)
        .map_err(|_| wrong())
}

fn digits(text: &str) -> (&str, &str) {
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    text.split_at(end)
}

fn parse_digits(digits: &str) -> Option<u128> {
    match digits {
        "" => Some(0),
        digits if digits.len() > 19 => None,
        digits => digits.parse().ok(),
    }
}

/// A duration greater than zero.
pub(crate) fn timeout(text: &str) -> Parsed<Duration> {
    match duration(text)? {
        Duration::ZERO => Err("must be more than 0".into()),
        timeout => Ok(timeout),
    }
}

/// A comma-separated list; the flag may be repeated. Quoted commas are kept, as in
/// kube-apiserver's syntax (CSV): `"a,b",c`.
pub(crate) fn list(values: &[String]) -> Parsed<Vec<String>> {
    let mut items = Vec::new();
    for value in values.iter().filter(|value| !value.is_empty()) {
        for item in fields(value)? {
            if item.is_empty() {
                return Err(format!("{value:?} has an empty entry"));
            }
            items.push(item);
        }
    }
    Ok(items)
}

fn fields(line: &str) -> Parsed<Vec<String>> {
    let unclosed = || format!("{line:?} has quotes that do not match");
    let mut fields = Vec::new();
    let mut rest = line;
    loop {
        rest = rest.trim_start();
        if let Some(mut quoted) = rest.strip_prefix('"') {
            let mut field = String::new();
            loop {
                let (text, after) = quoted.split_once('"').ok_or_else(unclosed)?;
                field.push_str(text);
                let Some(after_pair) = after.strip_prefix('"') else {
                    rest = after.trim_start();
                    break;
                };
                field.push('"');
                quoted = after_pair;
            }
            fields.push(field);
            match rest.strip_prefix(',') {
                Some(after) => rest = after,
                None if rest.is_empty() => return Ok(fields),
                None => return Err(unclosed()),
            }
        } else if let Some((field, after)) = rest.split_once(',') {
            fields.push(field.trim_end().to_owned());
            rest = after;
        } else {
            fields.push(rest.trim_end().to_owned());
            return Ok(fields);
        }
    }
}

/// Go's `strconv.ParseBool`.
pub(crate) fn boolean(text: &str) -> Parsed<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(format!("{text:?} is neither true nor false")),
    }
}

/// A whole number in a range.
pub(crate) fn number<T>(text: &str, range: &RangeInclusive<T>) -> Parsed<T>
where
    T: FromStr + PartialOrd + Display,
{
    let parsed = text.parse().ok().filter(|number| range.contains(number));
    parsed.ok_or_else(|| {
        let (start, end) = (range.start(), range.end());
        format!("{text:?} is not a whole number from {start} to {end}")
    })
}

/// A number of bytes, plain or with one of Kubernetes' binary suffixes: `268435456`, `256Mi`.
pub(crate) fn bytes(text: &str, range: &RangeInclusive<usize>) -> Parsed<usize> {
    let units = [("Ki", 10), ("Mi", 20), ("Gi", 30)];
    let (digits, shift) = units
        .iter()
        .find_map(|(suffix, shift)| Some((text.strip_suffix(suffix)?, *shift)))
        .unwrap_or((text, 0));
    let parsed = (digits.bytes().all(|it| it.is_ascii_digit()))
        .then(|| digits.parse::<usize>().ok()?.checked_mul(1 << shift))
        .flatten();
    parsed
        .filter(|number| range.contains(number))
        .ok_or_else(|| {
            let (start, end) = (range.start(), range.end());
            format!("{text:?} is not a number of bytes (such as 256Mi) from {start} to {end}")
        })
}

/// One of a few keywords.
pub(crate) fn keyword<T: Copy>(text: &str, words: &[(&str, T)]) -> Parsed<T> {
    let found = words.iter().find(|(word, _)| *word == text);
    found.map(|(_, value)| *value).ok_or_else(|| {
        let words: Vec<_> = words.iter().map(|(word, _)| *word).collect();
        format!("{text:?} is not one of {}", words.join(", "))
    })
}

/// A minor version whose APIs are known.
pub(crate) fn released_minor(text: &str) -> Parsed<Minor> {
    let minor: Minor = text.parse().map_err(|wrong| format!("{wrong}"))?;
    if known_minors().any(|known| known == minor) {
        return Ok(minor);
    }
    let known: Vec<_> = known_minors().map(|known| known.to_string()).collect();
    Err(format!(
        "the APIs of {minor} are not known to this version of skewbridge; known are {}",
        known.join(", ")
    ))
}

/// An IP address to listen on.
pub(crate) fn ip(text: &str) -> Parsed<IpAddr> {
    text.parse()
        .map_err(|_| format!("{text:?} is not an IP address"))
}

/// An IP address at which other machines reach this one.
pub(crate) fn advertised_ip(text: &str) -> Parsed<IpAddr> {
    let ip = ip(text)?;
    if ip.is_unspecified() || ip.is_multicast() {
        return Err(format!(
            "clients cannot connect to {ip}; set one address of this machine"
        ));
    }
    Ok(ip)
}

/// `IP:PORT`, on loopback.
pub(crate) fn loopback_socket(text: &str) -> Parsed<SocketAddr> {
    let address = socket(text, "127.0.0.1:10270 or [::1]:0")?;
    if !address.ip().is_loopback() {
        return Err(format!(
            "{address} is not on loopback; metrics and health are served without TLS and \
             without authorisation, so only to this machine: use 127.0.0.1 or [::1]"
        ));
    }
    Ok(address)
}

/// `IP:PORT` on any interface.
pub(crate) fn any_socket(text: &str) -> Parsed<SocketAddr> {
    socket(text, "10.0.0.11:10271, 0.0.0.0:10271 or [::]:10271")
}

fn socket(text: &str, examples: &str) -> Parsed<SocketAddr> {
    (text.parse()).map_err(|_| format!("{text:?} is not IP:PORT; write it like {examples}"))
}

/// A network in CIDR notation; bits of a host are dropped, as Go drops them.
pub(crate) fn cidr(text: &str) -> Parsed<IpNet> {
    if let Ok(ip) = text.parse::<IpAddr>() {
        let bits = if ip.is_ipv4() { 32 } else { 128 };
        return Err(format!(
            "{text:?} has no prefix length; for this one address write {ip}/{bits}"
        ));
    }
    text.parse()
        .map(|net: IpNet| net.trunc())
        .map_err(|_| format!("{text:?} is not a network; write it like 10.0.0.0/24 or fd00::/64"))
}

/// Host and port of a URL without path or query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Endpoint {
    /// Whether it is `https`.
    pub(crate) secure: bool,
    /// Without brackets.
    pub(crate) host: String,
    pub(crate) port: Option<u16>,
    pub(crate) uri: Uri,
}

/// `http[s]://HOST[:PORT]`.
pub(crate) fn endpoint(text: &str) -> Parsed<Endpoint> {
    let wrong = |what: &str| Err(format!("{text:?} {what}; write it like https://HOST:PORT"));
    // A URL may contain a password, so it is never printed.
    if text.contains('@') {
        return Err("a user or password is not allowed in this URL".into());
    }
    if !text.contains("://") {
        return wrong("has no scheme");
    }
    if text.contains('#') {
        return wrong("has a fragment");
    }
    let Ok(uri) = text.parse::<Uri>() else {
        return wrong("is not a URL");
    };
    let secure = match uri.scheme_str() {
        Some("https") => true,
        Some("http") => false,
        _ => return wrong("is neither http nor https"),
    };
    if uri.path() != "/" || uri.query().is_some() {
        return wrong("must not have a path or a query");
    }
    let Some(authority) = uri.authority() else {
        return wrong("has no host");
    };
    let bracketed = authority.host();
    let port = match authority.as_str().strip_prefix(bracketed) {
        Some("") => None,
        Some(port) => match port.strip_prefix(':').map(str::parse::<u16>) {
            Some(Ok(port @ 1..)) => Some(port),
            _ => return wrong("has a port that is not a number from 1 to 65535"),
        },
        None => return wrong("is not a URL"),
    };
    let literal = bracketed
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    let host = literal.unwrap_or(bracketed);
    let parsed = match literal {
        Some(ip) => ip.parse::<Ipv6Addr>().is_ok(),
        None => server_name(host).is_ok(),
    };
    if !parsed {
        return wrong("has a host that is neither a DNS name nor an IP address");
    }
    Ok(Endpoint {
        secure,
        host: host.to_owned(),
        port,
        uri,
    })
}

/// The name that is expected in a server's certificate.
pub(crate) fn server_name(text: &str) -> Parsed<ServerName<'static>> {
    ServerName::try_from(text)
        .map(|name| name.to_owned())
        .map_err(|_| format!("{text:?} is neither a DNS name nor an IP address"))
}

/// The name of a header that may carry an identity.
pub(crate) fn identity_header(text: &str) -> Parsed<HeaderName> {
    let name: HeaderName = text
        .parse()
        .map_err(|_| format!("{text:?} is not a header name"))?;
    if RESERVED_HEADERS.contains(&name.as_str()) {
        return Err(format!(
            "{name} has another meaning and cannot carry an identity"
        ));
    }
    Ok(name)
}

/// The prefix of headers with the user's extra fields; in lower case, as header names are
/// compared.
pub(crate) fn identity_prefix(text: &str) -> Parsed<String> {
    let name: HeaderName = text
        .parse()
        .map_err(|_| format!("{text:?} is not a valid prefix of a header name"))?;
    let covered_header = RESERVED_HEADERS
        .iter()
        .find(|other| other.starts_with(name.as_str()));
    match covered_header {
        Some(other) => Err(format!(
            "{text:?} is too short: it would also match {other}"
        )),
        None => Ok(name.as_str().to_owned()),
    }
}

/// Headers with another meaning in HTTP, Kubernetes or the bridge.
const RESERVED_HEADERS: [&str; 20] = [
    "accept",
    "accept-encoding",
    "audit-id",
    "authorization",
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "cookie",
    "expect",
    "host",
    "impersonate-user",
    "sec-websocket-protocol",
    "te",
    "transfer-encoding",
    "upgrade",
    "user-agent",
    "via",
    "x-forwarded-for",
    "x-stream-protocol-version",
];

/// RFC 1123 as in Kubernetes: labels of lower-case letters, digits and inner dashes, joined by
/// dots, at most 253 characters.
pub(crate) fn dns_subdomain(text: &str) -> Parsed<String> {
    let label = |label: &str| {
        !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label
                .bytes()
                .all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'))
    };
    if text.len() <= 253 && text.split('.').all(label) {
        return Ok(text.to_owned());
    }
    Err(format!(
        "{text:?} is not a name of a Lease; use lower-case letters, digits, '-' and '.', \
         beginning and ending with a letter or digit, 253 characters at most"
    ))
}

#[cfg(test)]
mod tests;
