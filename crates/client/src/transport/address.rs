//! Parsing of server URLs.

use http::Uri;
use rustls_pki_types::ServerName;

/// A parsed server URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) scheme: Scheme,
    /// Without the brackets of an IPv6 address.
    pub(crate) host: String,
    pub(crate) port: u16,
    /// Path prefix of every request: empty, or like `/k8s/clusters/c-1`.
    pub(crate) prefix: String,
    /// As written in the URL, for the `Host` header.
    pub(crate) authority: String,
}

/// The URL scheme.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scheme {
    Http,
    Https,
}

impl Address {
    /// Parses `http[s]://HOST[:PORT][/PATH]`. A URL without a scheme gets `default_scheme`.
    pub(crate) fn parse(text: &str, default_scheme: Scheme) -> Result<Self, String> {
        // A URL may contain a password: errors never repeat it.
        if text.contains('@') {
            return Err("the server's URL must not contain a user or a password".to_owned());
        }
        let invalid = |what: &str| {
            Err(format!(
                "server {text:?} {what}; write it like https://HOST:PORT"
            ))
        };
        let with_scheme = if text.contains("://") {
            text.to_owned()
        } else {
            format!("{}://{text}", default_scheme.as_str())
        };
        let Ok(uri) = with_scheme.parse::<Uri>() else {
            return invalid("is not a URL");
        };
        let scheme = match uri.scheme_str() {
            Some("https") => Scheme::Https,
            Some("http") => Scheme::Http,
            _ => return invalid("is neither http nor https"),
        };
        if uri.query().is_some() || text.contains('#') {
            return invalid("has a query or a fragment");
        }
        let Some(authority) = uri.authority() else {
            return invalid("has no host");
        };
        let bracketed = authority.host();
        let host = bracketed
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'))
            .unwrap_or(bracketed);
        if ServerName::try_from(host).is_err() {
            return invalid("has a host that is neither a DNS name nor an IP address");
        }
        let port = match authority.as_str().strip_prefix(bracketed) {
            Some("") => scheme.default_port(),
            Some(port) => match port.strip_prefix(':').map(str::parse::<u16>) {
                Some(Ok(port @ 1..)) => port,
                _ => return invalid("has a port that is not a number from 1 to 65535"),
            },
            None => return invalid("is not a URL"),
        };
        Ok(Self {
            scheme,
            host: host.to_owned(),
            port,
            prefix: uri.path().trim_end_matches('/').to_owned(),
            authority: authority.to_string(),
        })
    }

    /// `HOST:PORT`, with brackets around an IPv6 address.
    pub(crate) fn host_and_port(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

impl Scheme {
    fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }

    fn default_port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_parsed_into_their_parts() {
        let rows = [
            ("https://10.0.0.1:6443", Scheme::Https, "10.0.0.1", 6443, ""),
            ("https://k.example", Scheme::Https, "k.example", 443, ""),
            ("https://k.example/", Scheme::Https, "k.example", 443, ""),
            (
                "http://localhost:8001/",
                Scheme::Http,
                "localhost",
                8001,
                "",
            ),
            ("https://[::1]:6443", Scheme::Https, "::1", 6443, ""),
            (
                "https://r.example/k8s/clusters/c-1/",
                Scheme::Https,
                "r.example",
                443,
                "/k8s/clusters/c-1",
            ),
            ("127.0.0.1:8080", Scheme::Http, "127.0.0.1", 8080, ""),
        ];
        for (text, scheme, host, port, prefix) in rows {
            let address = Address::parse(text, Scheme::Http).unwrap();
            let found = (
                address.scheme,
                &*address.host,
                address.port,
                &*address.prefix,
            );
            assert_eq!(found, (scheme, host, port, prefix), "{text}");
        }
        let bare = Address::parse("k.example:1", Scheme::Https).unwrap();
        assert_eq!(bare.scheme, Scheme::Https);
        let address = Address::parse("https://[fd00::1]", Scheme::Http).unwrap();
        assert_eq!(address.host_and_port(), "[fd00::1]:443");
    }

    #[test]
    fn an_invalid_url_is_reported_without_its_password() {
        for text in [
            "",
            "https://",
            "ftp://k.example",
            "https://k.example:0",
            "https://k.example:x",
            "https://k.example?x=1",
            "https://k.example/#x",
            "https://a b",
        ] {
            let invalid = Address::parse(text, Scheme::Https).unwrap_err();
            assert!(
                invalid.ends_with("write it like https://HOST:PORT"),
                "{invalid}"
            );
        }
        let invalid = Address::parse("https://me:hunter2@k.example", Scheme::Https).unwrap_err();
        assert!(!invalid.contains("hunter2"), "{invalid}");
    }
}
