//! A request as signers and verifiers of signatures see it.

use http::header::HOST;
use http::{HeaderMap, Method, Uri};

/// The head of a request as it is sent, by reference.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// The method.
    pub method: &'a Method,
    /// `https`, in lower case.
    pub scheme: &'a str,
    /// `Host`, or `:authority`.
    pub authority: &'a str,
    /// The path, without the query.
    pub path: &'a str,
    /// The query, without the question mark.
    pub query: Option<&'a str>,
    /// The headers.
    pub headers: &'a HeaderMap,
}

impl<'a> Request<'a> {
    /// The request of a head. The authority is that of the target, or else that of `Host`; `None`
    /// if there is none or several.
    pub fn of(
        scheme: &'a str,
        method: &'a Method,
        uri: &'a Uri,
        headers: &'a HeaderMap,
    ) -> Option<Self> {
        let mut hosts = headers.get_all(HOST).iter();
        let host = hosts.next();
        if hosts.next().is_some() {
            return None;
        }
        let authority = match (uri.authority(), host) {
            (Some(authority), _) => authority.as_str(),
            (None, Some(host)) => host.to_str().ok()?,
            (None, None) => return None,
        };
        Some(Self {
            method,
            scheme,
            authority,
            path: uri.path(),
            query: uri.query(),
            headers,
        })
    }

    /// The authority in lower case, and without the default port of the scheme (RFC 9110,
    /// 4.2.3).
    pub fn normalized_authority(&self) -> String {
        normalize_authority(self.scheme, self.authority)
    }
}

/// An authority in lower case, and without the default port of the scheme.
pub fn normalize_authority(scheme: &str, authority: &str) -> String {
    let default = match scheme {
        "https" => ":443",
        "http" => ":80",
        _ => ":",
    };
    let authority = authority.to_ascii_lowercase();
    let bare = authority
        .strip_suffix(default)
        .or_else(|| authority.strip_suffix(':'));
    bare.unwrap_or(&authority).to_owned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use super::*;

    #[test]
    fn an_authority_is_normalized_to_lower_case_without_the_default_port() {
        let rows = [
            ("https", "WWW.Example.com", "www.example.com"),
            ("https", "www.example.com:443", "www.example.com"),
            ("https", "www.example.com:", "www.example.com"),
            ("https", "www.example.com:80", "www.example.com:80"),
            ("http", "www.example.com:80", "www.example.com"),
            ("https", "[FE80::1]:443", "[fe80::1]"),
            ("https", "[fe80::443]", "[fe80::443]"),
            ("https", "a:8443", "a:8443"),
        ];
        for (scheme, authority, expected) in rows {
            assert_eq!(normalize_authority(scheme, authority), expected);
        }
    }

    #[test]
    fn the_authority_is_that_of_the_target_or_of_one_host_header() {
        let rows: [(&str, &[&str], Option<&str>); 5] = [
            ("https://a/x", &[], Some("a")),
            ("https://a/x", &["b"], Some("a")),
            ("/x", &["b:1"], Some("b:1")),
            ("/x", &["b", "b"], None),
            ("/x", &[], None),
        ];
        for (uri, hosts, expected) in rows {
            let mut headers = HeaderMap::new();
            for host in hosts {
                headers.append(HOST, host.parse().unwrap());
            }
            let uri = uri.parse().unwrap();
            let request = Request::of("https", &Method::GET, &uri, &headers);
            assert_eq!(request.map(|it| it.authority), expected);
        }
    }
}
