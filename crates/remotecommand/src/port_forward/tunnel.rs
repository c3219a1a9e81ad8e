//! SPDY inside a WebSocket: SPDY bytes are the payloads of binary messages, split anywhere.

use skewbridge_websocket::{MessageChunk, MessageKind};

/// The protocol over SPDY.
pub const PORT_FORWARD: &str = "portforward.k8s.io";

/// The subprotocol of SPDY inside a WebSocket.
pub const TUNNELLED_PORT_FORWARD: &str = "SPDY/3.1+portforward.k8s.io";

const PREFIX: &str = "SPDY/3.1+";
const SUFFIX: &str = ".k8s.io";

/// The SPDY protocols that a client offers inside a WebSocket, to be offered upstream in
/// `X-Stream-Protocol-Version`. If there are none, the request uses the older framing.
pub fn tunnelled_protocols<'a>(
    offers: impl IntoIterator<Item = &'a str>,
) -> impl Iterator<Item = &'a str> {
    offers
        .into_iter()
        .filter(|offer| offer.ends_with(SUFFIX))
        .filter_map(|offer| offer.strip_prefix(PREFIX))
}

/// The offer that upstream confirmed in its 101. `None` if it confirmed none, or one that was
/// not offered: the client then does not continue.
pub fn accepted_offer<'a>(
    offers: impl IntoIterator<Item = &'a str>,
    upstream: Option<&str>,
) -> Option<&'a str> {
    let upstream = upstream?.trim();
    offers
        .into_iter()
        .find(|offer| offer.ends_with(SUFFIX) && offer.strip_prefix(PREFIX) == Some(upstream))
}

/// A message that is not binary. Both ends then close the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a tunnel carries binary messages only")]
pub struct NotBinary;

/// The SPDY bytes in a chunk of a message.
pub fn tunnel_payload(chunk: MessageChunk) -> Result<bytes::Bytes, NotBinary> {
    match chunk.kind {
        MessageKind::Binary => Ok(chunk.bytes),
        MessageKind::Text => Err(NotBinary),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tunnel_offers_are_found_and_confirmed() {
        let offers = [
            "v4.channel.k8s.io",
            TUNNELLED_PORT_FORWARD,
            "SPDY/3.1+v2.portforward.k8s.io",
            "SPDY/3.1+x",
        ];
        let spdy: Vec<_> = tunnelled_protocols(offers).collect();
        assert_eq!(spdy, [PORT_FORWARD, "v2.portforward.k8s.io"]);
        assert_eq!(
            accepted_offer(offers, Some(PORT_FORWARD)),
            Some(TUNNELLED_PORT_FORWARD)
        );
        assert_eq!(
            accepted_offer(offers, Some("v2.portforward.k8s.io")),
            Some(offers[2])
        );
        assert_eq!(accepted_offer(offers, Some("x")), None);
        assert_eq!(accepted_offer(offers, Some("v3.portforward.k8s.io")), None);
        assert_eq!(accepted_offer(offers, None), None);
        assert_eq!(tunnelled_protocols(["portforward.k8s.io"]).count(), 0);
    }
}
