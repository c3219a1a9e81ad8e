//! The address of an etcd server.

use std::fmt;
use std::str::FromStr;

use http::Uri;
use http::uri::{Authority, Scheme};
use rustls_pki_types::ServerName;

/// An etcd address: `http://HOST:PORT` or `https://HOST:PORT`, as in kube-apiserver's
/// `--etcd-servers`.
#[derive(Clone, PartialEq, Eq)]
pub struct Endpoint {
    pub(crate) authority: Authority,
    /// Without the brackets of an IPv6 address.
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) transport: Transport,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Transport {
    /// HTTP/2 with prior knowledge.
    Plain,
    /// The name in the server certificate.
    Tls(ServerName<'static>),
}

/// Why there is no client. The address itself is not quoted: it could contain a password.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EndpointError {
    /// Neither of the two forms.
    #[error("an etcd endpoint has the form http://HOST:PORT or https://HOST:PORT")]
    Form,
    /// A user or password in the URL.
    #[error("an etcd endpoint holds no user or password")]
    UserInfo,
    /// A path or query.
    #[error("an etcd endpoint has no path or query")]
    Path,
    /// No endpoint.
    #[error("at least one etcd endpoint is needed")]
    None,
    /// An `https` endpoint without a CA.
    #[error("an https:// etcd endpoint needs a CA")]
    NoTls,
}

impl Endpoint {
    pub(crate) fn scheme(&self) -> Scheme {
        match self.transport {
            Transport::Plain => Scheme::HTTP,
            Transport::Tls(_) => Scheme::HTTPS,
        }
    }
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        let uri: Uri = text.parse().map_err(|_| EndpointError::Form)?;
        let authority = uri.authority().ok_or(EndpointError::Form)?;
        if authority.as_str().contains('@') {
            return Err(EndpointError::UserInfo);
        }
        if uri.path().len() > 1 || uri.query().is_some() {
            return Err(EndpointError::Path);
        }
        let host = authority.host();
        let host = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'))
            .unwrap_or(host)
            .to_owned();
        let port = authority.port_u16().ok_or(EndpointError::Form)?;
        let transport = match uri.scheme_str() {
            _ if host.is_empty() => return Err(EndpointError::Form),
            Some("http") => Transport::Plain,
            Some("https") => {
                Transport::Tls(ServerName::try_from(host.clone()).map_err(|_| EndpointError::Form)?)
            }
            _ => return Err(EndpointError::Form),
        };
        Ok(Self {
            authority: authority.clone(),
            host,
            port,
            transport,
        })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme(), self.authority)
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_addresses_are_parsed() {
        for (text, host, port) in [
            ("http://127.0.0.1:2379", "127.0.0.1", 2379),
            ("https://etcd-0.etcd:1", "etcd-0.etcd", 1),
            ("https://[::1]:2379", "::1", 2379),
        ] {
            let endpoint: Endpoint = text.parse().unwrap();
            assert_eq!((endpoint.host.as_str(), endpoint.port), (host, port));
            assert_eq!(endpoint.to_string(), text);
            assert_eq!(
                endpoint.transport == Transport::Plain,
                text.starts_with("http:")
            );
        }
        let slash: Endpoint = "http://a:1/".parse().unwrap();
        assert_eq!(slash.to_string(), "http://a:1");
    }

    #[test]
    fn other_forms_are_rejected() {
        for (text, error) in [
            ("", EndpointError::Form),
            ("127.0.0.1:2379", EndpointError::Form),
            ("http://a", EndpointError::Form),
            ("unix://a:1", EndpointError::Form),
            ("http://:1", EndpointError::Form),
            ("http://a:99999", EndpointError::Form),
            ("http://u:p@a:1", EndpointError::UserInfo),
            ("http://a:1/v3", EndpointError::Path),
            ("http://a:1?x", EndpointError::Path),
        ] {
            assert_eq!(text.parse::<Endpoint>(), Err(error), "{text}");
        }
    }
}
