//! The proxy for a server: the cluster's `proxy-url`, or the one that the environment names,
//! read as Go reads it.

use std::fmt;
use std::net::IpAddr;

use bytes::BytesMut;
use http::{StatusCode, Uri};
use percent_encoding::percent_decode_str;
use skewbridge_http_engine::http_connect::{InvalidResponse, TunnelError, http_connect};
use tokio::io::{AsyncRead, AsyncWrite};
use zeroize::Zeroizing;

use super::address::{Address, Scheme};
use super::authorization;
use super::socks::{self, Login};
use crate::Secret;

/// A proxy.
#[derive(Debug, Clone)]
pub(crate) struct Proxy {
    pub(crate) address: Address,
    protocol: ProxyProtocol,
}

/// The protocol that opens a tunnel through the proxy.
#[derive(Debug, Clone)]
enum ProxyProtocol {
    /// HTTP CONNECT, with this `Proxy-Authorization`.
    Http(Option<Secret>),
    Socks(Option<Login>),
}

/// The default port of SOCKS (RFC 1928, 3).
const DEFAULT_SOCKS_PORT: u16 = 1080;

impl Proxy {
    /// Parses `http[s]://[USER:PASSWORD@]HOST[:PORT]`, or the same with `socks5`. Errors do not
    /// repeat it.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let (scheme, rest) = text.split_once("://").unwrap_or(("http", text));
        let (scheme, socks) = match scheme.to_ascii_lowercase().as_str() {
            "http" | "https" => (scheme, false),
            // SOCKS itself has no TLS.
            "socks5" | "socks5h" => ("http", true),
            _ => return Err("its scheme is neither http, https nor socks5".to_owned()),
        };
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let (user, host) = match authority.rsplit_once('@') {
            Some((user, host)) => (Some(user), host),
            None => (None, authority),
        };
        let url = format!("{scheme}://{host}{path}");
        let invalid = "write it like http://HOST:PORT";
        let mut address = Address::parse(&url, Scheme::Http).map_err(|_| invalid)?;
        let login = user.map(|user| {
            let (name, password) = user.split_once(':').unwrap_or((user, ""));
            let name: Vec<u8> = percent_decode_str(name).collect();
            let password: Vec<u8> = percent_decode_str(password).collect();
            (name, password)
        });
        let protocol = if socks {
            if !host.ends_with(&format!(":{}", address.port)) {
                address.port = DEFAULT_SOCKS_PORT;
            }
            ProxyProtocol::Socks(login.map(|(name, password)| Login {
                name: Secret::new(name),
                password: Secret::new(password),
            }))
        } else {
            ProxyProtocol::Http(login.map(|(name, password)| {
                let name = String::from_utf8_lossy(&name);
                authorization::basic_value(&name, &Zeroizing::new(password))
            }))
        };
        Ok(Self { address, protocol })
    }

    /// The URL of the environment's proxy for a server, if there is one. Loopback addresses
    /// never use a proxy.
    pub(crate) fn from_environment(
        to: &Address,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Option<String> {
        let variable_in_either_case = |name: &str| {
            let values = [variable(name), variable(&name.to_ascii_lowercase())];
            values.into_iter().flatten().find(|text| !text.is_empty())
        };
        let url = variable_in_either_case(match to.scheme {
            Scheme::Https => "HTTPS_PROXY",
            Scheme::Http => "HTTP_PROXY",
        })?;
        let is_loopback =
            to.host == "localhost" || to.host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
        let is_excluded =
            variable_in_either_case("NO_PROXY").is_some_and(|list| matches_no_proxy(to, &list));
        (!is_loopback && !is_excluded).then_some(url)
    }

    /// Opens a tunnel, and returns the bytes that followed the proxy's response.
    pub(crate) async fn tunnel(
        &self,
        io: &mut (impl AsyncRead + AsyncWrite + Unpin),
        to: &str,
    ) -> Result<BytesMut, String> {
        let authorization = match &self.protocol {
            ProxyProtocol::Http(authorization) => authorization,
            ProxyProtocol::Socks(login) => {
                let (host, port) = to.rsplit_once(':').unwrap_or((to, ""));
                let host = host.trim_start_matches('[').trim_end_matches(']');
                let port = port
                    .parse()
                    .map_err(|_| "was given a destination without a port".to_owned())?;
                socks::tunnel(io, host, port, login.as_ref()).await?;
                return Ok(BytesMut::new());
            }
        };
        let authorization = authorization.as_ref().map(Secret::expose);
        let connected = http_connect(io, to, authorization).await;
        connected.map_err(|error| match error {
            TunnelError::Io(error) => format!("ended the connection: {error}"),
            TunnelError::Closed => {
                "ended the connection instead of an answer to CONNECT".to_owned()
            }
            TunnelError::Refused(StatusCode::PROXY_AUTHENTICATION_REQUIRED) => {
                "requires a user and a password (407); put them into its URL".to_owned()
            }
            TunnelError::Refused(status) => format!("answered {} to CONNECT", status.as_u16()),
            TunnelError::InvalidResponse(InvalidResponse::Head(error)) => {
                format!("does not answer in HTTP/1.1: {error}")
            }
            TunnelError::InvalidResponse(_) => "does not answer in HTTP/1.1".to_owned(),
        })
    }
}

/// Without the password.
impl fmt::Display for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.address.host_and_port())
    }
}

/// Go's rules for `NO_PROXY`: domain names with their subdomains, addresses and networks, each
/// with an optional port.
fn matches_no_proxy(to: &Address, list: &str) -> bool {
    let ip = to.host.parse::<IpAddr>().ok();
    list.split(',').map(str::trim).any(|entry| {
        if entry == "*" {
            return true;
        }
        if let (Some(ip), Some((network, bits))) = (ip, entry.split_once('/')) {
            return network_contains(ip, network, bits);
        }
        let (name, port) = match entry.parse::<Uri>().ok().and_then(|uri| uri.port_u16()) {
            Some(port) => (
                entry.rsplit_once(':').map_or(entry, |(name, _)| name),
                Some(port),
            ),
            None => (entry, None),
        };
        if name.is_empty() || port.is_some_and(|port| port != to.port) {
            return false;
        }
        let name = name.trim_start_matches('[').trim_end_matches(']');
        if ip.is_some() {
            return name.parse().ok() == ip;
        }
        let name = name.trim_start_matches("*.").to_ascii_lowercase();
        let host = to.host.to_ascii_lowercase();
        match name.strip_prefix('.') {
            Some(suffix) => host.ends_with(&format!(".{suffix}")),
            None => host == name || host.ends_with(&format!(".{name}")),
        }
    })
}

fn network_contains(ip: IpAddr, network: &str, bits: &str) -> bool {
    let (Ok(network), Ok(bits)) = (network.parse::<IpAddr>(), bits.parse::<u32>()) else {
        return false;
    };
    let same_prefix = |ip: u128, network: u128, width: u32| {
        bits <= width && (bits == 0 || (ip ^ network) >> (width - bits) == 0)
    };
    match (ip, network) {
        (IpAddr::V4(ip), IpAddr::V4(network)) => {
            same_prefix(u32::from(ip).into(), u32::from(network).into(), 32)
        }
        (IpAddr::V6(ip), IpAddr::V6(network)) => same_prefix(ip.into(), network.into(), 128),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_url_is_parsed_and_its_password_is_not_shown() {
        let proxy = Proxy::parse("https://me:hunter%32@proxy.example:3128").unwrap();
        assert_eq!(proxy.to_string(), "proxy.example:3128");
        assert!(!format!("{proxy:?}").contains("hunter"));
        let ProxyProtocol::Http(Some(header)) = proxy.protocol else {
            panic!("no header")
        };
        assert_eq!(header.expose(), b"Basic bWU6aHVudGVyMg==");
        assert_eq!(Proxy::parse("proxy:80").unwrap().address.port, 80);
        let socks = Proxy::parse("socks5://me:hunter2@h").unwrap();
        assert_eq!(socks.to_string(), "h:1080");
        assert!(!format!("{socks:?}").contains("hunter"));
        let socks = Proxy::parse("socks5h://[::1]:80").unwrap();
        assert_eq!(socks.to_string(), "[::1]:80");
        for (text, expected) in [
            ("ftp://hunter2@h", "neither http, https nor socks5"),
            ("http://hunter2@", "write it like"),
        ] {
            let error = Proxy::parse(text).unwrap_err();
            assert!(error.contains(expected), "{error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn proxy_variables_are_read_as_go_reads_them() {
        let rows = [
            ("https://k.example", "", true),
            ("http://k.example", "", false),
            ("https://localhost:6443", "", false),
            ("https://127.0.0.1:6443", "", false),
            ("https://[::1]:6443", "", false),
            ("https://k.example", "*", false),
            ("https://k.example", "other, k.example", false),
            ("https://k.example", "example", false),
            ("https://k.example", ".example", false),
            ("https://k.example", "*.example", false),
            ("https://k.example", "ample", true),
            ("https://example", ".example", true),
            ("https://k.example:6443", "k.example:6443", false),
            ("https://k.example:6443", "k.example:443", true),
            ("https://10.1.2.3", "10.0.0.0/8", false),
            ("https://10.1.2.3", "10.2.0.0/16", true),
            ("https://10.1.2.3", "10.1.2.3", false),
            ("https://[fd00::1]", "fd00::/8", false),
            ("https://10.1.2.3", "0.0.0.0/0", false),
            ("https://10.1.2.3", "10.0.0.0/99", true),
        ];
        for (server, no_proxy, expected) in rows {
            let to = Address::parse(server, Scheme::Https).unwrap();
            let found = Proxy::from_environment(&to, |name| match name {
                "https_proxy" => Some("http://proxy".to_owned()),
                "NO_PROXY" => Some(no_proxy.to_owned()),
                _ => None,
            });
            assert_eq!(found.is_some(), expected, "{server} {no_proxy}");
        }
    }
}
