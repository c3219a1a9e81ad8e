//! SOCKS5 (RFC 1928) with username/password authentication (RFC 1929). The proxy resolves host
//! names, as in Go.

use std::net::IpAddr;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use crate::Secret;

const VERSION: u8 = 5;
const CONNECT: u8 = 1;
const METHOD_NO_AUTHENTICATION: u8 = 0;
const METHOD_USERNAME_PASSWORD: u8 = 2;
const USERNAME_PASSWORD_VERSION: u8 = 1;
const NO_ACCEPTABLE_METHOD: u8 = 0xff;

/// The login for a proxy.
#[derive(Debug, Clone)]
pub(crate) struct Login {
    pub(crate) name: Secret,
    pub(crate) password: Secret,
}

/// Opens a tunnel to a host name or an address.
pub(crate) async fn tunnel(
    io: &mut (impl AsyncRead + AsyncWrite + Unpin),
    host: &str,
    port: u16,
    login: Option<&Login>,
) -> Result<(), String> {
    let connection_lost = |error: std::io::Error| format!("ended the connection: {error}");
    let methods: &[u8] = match login {
        Some(_) => &[
            VERSION,
            2,
            METHOD_NO_AUTHENTICATION,
            METHOD_USERNAME_PASSWORD,
        ],
        None => &[VERSION, 1, METHOD_NO_AUTHENTICATION],
    };
    io.write_all(methods).await.map_err(connection_lost)?;
    io.flush().await.map_err(connection_lost)?;
    let mut method = [0; 2];
    io.read_exact(&mut method).await.map_err(connection_lost)?;
    match (method, login) {
        ([VERSION, METHOD_NO_AUTHENTICATION], _) => {}
        ([VERSION, METHOD_USERNAME_PASSWORD], Some(login)) => {
            let mut request = vec![USERNAME_PASSWORD_VERSION];
            for part in [&login.name, &login.password] {
                let length = u8::try_from(part.expose().len());
                request.push(
                    length.map_err(|_| "does not support a user or password of that length")?,
                );
                request.extend_from_slice(part.expose());
            }
            io.write_all(&request).await.map_err(connection_lost)?;
            io.flush().await.map_err(connection_lost)?;
            let mut reply = [0; 2];
            io.read_exact(&mut reply).await.map_err(connection_lost)?;
            if reply[1] != 0 {
                return Err("does not accept the user and the password in its URL".to_owned());
            }
        }
        ([VERSION, NO_ACCEPTABLE_METHOD], None) => {
            return Err("requires a user and a password; put them into its URL".to_owned());
        }
        ([VERSION, _], _) => return Err("requires an unsupported authentication method".to_owned()),
        _ => return Err("does not speak SOCKS5".to_owned()),
    }
    let mut request = vec![VERSION, CONNECT, 0];
    match host.parse() {
        Ok(IpAddr::V4(ip)) => {
            request.push(1);
            request.extend_from_slice(&ip.octets());
        }
        Ok(IpAddr::V6(ip)) => {
            request.push(4);
            request.extend_from_slice(&ip.octets());
        }
        Err(_) => {
            let length = u8::try_from(host.len())
                .map_err(|_| "does not support a host name of that length")?;
            request.extend_from_slice(&[3, length]);
            request.extend_from_slice(host.as_bytes());
        }
    }
    request.extend_from_slice(&port.to_be_bytes());
    io.write_all(&request).await.map_err(connection_lost)?;
    io.flush().await.map_err(connection_lost)?;
    let mut reply = [0; 4];
    io.read_exact(&mut reply).await.map_err(connection_lost)?;
    if reply[0] != VERSION {
        return Err("does not speak SOCKS5".to_owned());
    }
    if reply[1] != 0 {
        return Err(reply_message(reply[1]));
    }
    // The bound address is read and ignored.
    let length = match reply[3] {
        1 => 4,
        4 => 16,
        3 => io.read_u8().await.map_err(connection_lost)?.into(),
        _ => return Err("does not speak SOCKS5".to_owned()),
    };
    let mut bound = vec![0; length + 2];
    io.read_exact(&mut bound).await.map_err(connection_lost)?;
    Ok(())
}

fn reply_message(code: u8) -> String {
    let what = match code {
        2 => "does not allow it",
        3 => "reports that the network is unreachable",
        4 => "reports that the host is unreachable",
        5 => "reports that the connection was refused",
        6 => "reports a timeout",
        7 | 8 => "does not support the request",
        _ => "failed",
    };
    format!("{what} (SOCKS5 code {code})")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs [`tunnel`] against a proxy that sends these replies; returns what the proxy
    /// received.
    async fn run_tunnel(
        host: &str,
        login: Option<Login>,
        replies: &'static [&'static [u8]],
    ) -> (Vec<u8>, Result<(), String>) {
        let (mut client, mut proxy_end) = tokio::io::duplex(1024);
        let proxy = async move {
            let mut received = Vec::new();
            for reply in replies {
                let mut buffer = [0; 256];
                let read = proxy_end.read(&mut buffer).await.unwrap();
                received.extend_from_slice(&buffer[..read]);
                proxy_end.write_all(reply).await.unwrap();
            }
            received
        };
        let (received, result) =
            tokio::join!(proxy, tunnel(&mut client, host, 443, login.as_ref()));
        (received, result)
    }

    const GRANTED: &[u8] = &[5, 0, 0, 1, 127, 0, 0, 1, 0, 80];

    #[tokio::test]
    async fn host_names_are_sent_unresolved() {
        let (received, result) = run_tunnel("k.example", None, &[&[5, 0], GRANTED]).await;
        assert_eq!(result, Ok(()));
        assert_eq!(
            received,
            b"\x05\x01\x00\x05\x01\x00\x03\x09k.example\x01\xbb"
        );
        let (received, result) = run_tunnel("10.1.2.3", None, &[&[5, 0], GRANTED]).await;
        assert_eq!(result, Ok(()));
        assert_eq!(
            received,
            b"\x05\x01\x00\x05\x01\x00\x01\x0a\x01\x02\x03\x01\xbb"
        );
    }

    #[tokio::test]
    async fn the_password_is_sent_if_the_proxy_requests_it() {
        let login = || {
            Some(Login {
                name: Secret::new("me"),
                password: Secret::new("pw"),
            })
        };
        let (received, result) = run_tunnel("h", login(), &[&[5, 2], &[1, 0], GRANTED]).await;
        assert_eq!(result, Ok(()));
        assert_eq!(
            received,
            b"\x05\x02\x00\x02\x01\x02me\x02pw\x05\x01\x00\x03\x01h\x01\xbb"
        );
        let (_, result) = run_tunnel("h", login(), &[&[5, 2], &[1, 1]]).await;
        assert!(result.unwrap_err().contains("does not accept"));
    }

    #[tokio::test]
    async fn refusals_of_the_proxy_are_reported() {
        let rows: [(&'static [&'static [u8]], &str); 4] = [
            (&[&[5, 0xff]], "requires a user and a password"),
            (&[b"HT"], "does not speak SOCKS5"),
            (
                &[&[5, 0], &[5, 5, 0, 1]],
                "the connection was refused (SOCKS5 code 5)",
            ),
            (&[&[5]], "ended the connection"),
        ];
        for (replies, expected) in rows {
            let (_, result) = run_tunnel("h", None, replies).await;
            let error = result.unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
