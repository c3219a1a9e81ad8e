//! Requests to the admin port of a bridge on this machine.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use serde::Deserialize;
use serde_json::Value;
use skewbridge_client::{Request, Response};

use super::handshake::PROBE_TIMEOUT;
use crate::admin_port::AdminTarget;

/// The admin address that bridges have by default.
pub(crate) const DEFAULT_ADDRESS: SocketAddr =
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 10270);

/// The media type of `/flagz` as JSON.
const FLAGZ: &str = "application/json;v=v1beta1;g=config.k8s.io;as=Flagz";

/// A page of the admin port.
pub(crate) async fn page(address: SocketAddr, path: &str) -> Result<Response, String> {
    send(address, Request::get(path)).await
}

async fn send(address: SocketAddr, request: Request) -> Result<Response, String> {
    let admin = AdminTarget::Loopback(address);
    let response = admin.get(&request, Some(PROBE_TIMEOUT)).await;
    response.map_err(|error| error.to_string())
}

/// What a bridge reports of itself and its peers: one document for each backend.
pub(crate) async fn peers(address: SocketAddr) -> Result<Vec<Value>, String> {
    let response = page(address, "/debug/peers").await?;
    let document: Value = serde_json::from_slice(&response.body)
        .map_err(|_| format!("{address} does not answer as the admin port of a bridge"))?;
    match (document.get("backends"), document.get("peers")) {
        (Some(Value::Array(backends)), _) => Ok(backends.clone()),
        (None, Some(_)) => Ok(vec![document]),
        _ => Err(format!(
            "{address} does not answer as the admin port of a bridge"
        )),
    }
}

/// The addresses at which the bridge with this admin port listens, as its flags name them.
pub(crate) async fn listeners(address: SocketAddr) -> Result<Vec<SocketAddr>, String> {
    #[derive(Deserialize)]
    struct Flagz {
        flags: BTreeMap<String, String>,
    }
    let response = send(address, Request::get("/flagz").header("accept", FLAGZ)).await?;
    let flagz = serde_json::from_slice::<Flagz>(&response.body);
    let flagz = flagz.map_err(|error| format!("{address}/flagz: {error}"))?;
    Ok(of_flags(&flagz.flags))
}

fn of_flags(flags: &BTreeMap<String, String>) -> Vec<SocketAddr> {
    let value = |flag: &str| flags.get(flag).map(String::as_str).unwrap_or_default();
    let secure = value("bind-address")
        .parse::<IpAddr>()
        .ok()
        .zip(value("secure-port").parse().ok())
        .map(|(ip, port)| SocketAddr::new(ip, port));
    let admin = ["admin-address", "admin-secure-address"].map(|flag| value(flag).parse().ok());
    [secure].into_iter().chain(admin).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_address_is_on_this_machine() {
        assert_eq!(DEFAULT_ADDRESS.to_string(), "127.0.0.1:10270");
    }

    #[test]
    fn listeners_are_read_from_flags() {
        let flags = |given: &[(&str, &str)]| {
            let given = given.iter();
            let owned = given.map(|&(flag, value)| (flag.to_owned(), value.to_owned()));
            let listeners = of_flags(&owned.collect()).into_iter();
            listeners.map(|it| it.to_string()).collect::<Vec<_>>()
        };
        let all = [
            ("bind-address", "10.0.0.11"),
            ("secure-port", "6443"),
            ("admin-address", "127.0.0.1:10270"),
            ("admin-secure-address", "[::]:10271"),
        ];
        assert_eq!(
            flags(&all),
            ["10.0.0.11:6443", "127.0.0.1:10270", "[::]:10271"]
        );
        let without = [all[0], all[1], all[2], ("admin-secure-address", "")];
        assert_eq!(flags(&without), ["10.0.0.11:6443", "127.0.0.1:10270"]);
        assert!(flags(&[all[0]]).is_empty());
    }
}
