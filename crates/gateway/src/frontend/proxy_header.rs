//! Connections of load balancers, which begin with a PROXY header.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use bytes::{Buf as _, BytesMut};
use ipnet::IpNet;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::proxy_protocol::{MAX_HEADER_BYTES, Parsed, Source, parse};

/// Connections whose header is being read. A load balancer sends it with its first packet.
pub(crate) const MAX_PENDING_HEADERS: usize = 1024;

/// An accepted connection, before it has a slot.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub(crate) tcp: TcpStream,
    pub(crate) client: SocketAddr,
    /// What was read after the header.
    pub(crate) buffered: BytesMut,
}

/// The load balancers in front of the bridge.
#[derive(Debug, Clone)]
pub(crate) struct LoadBalancers {
    /// `--proxy-protocol-cidrs`
    pub(crate) networks: Vec<IpNet>,
    pub(crate) header_timeout: Duration,
}

impl LoadBalancers {
    /// Whether connections from this address must begin with a header.
    pub(crate) fn contain(&self, source: IpAddr) -> bool {
        let source = source.to_canonical();
        self.networks.iter().any(|it| it.contains(&source))
    }

    /// Reads the header; afterwards the connection counts as one of the client that the header names.
    pub(crate) async fn read_header(&self, mut incoming: Incoming) -> io::Result<Incoming> {
        let read = timeout(self.header_timeout, read_header(&mut incoming.tcp)).await;
        let (source, rest) = read.map_err(|_| io::ErrorKind::TimedOut)??;
        if let Source::Client(client) = source {
            incoming.client = client;
        }
        incoming.buffered = rest;
        Ok(incoming)
    }
}

async fn read_header(tcp: &mut TcpStream) -> io::Result<(Source, BytesMut)> {
    let mut bytes = BytesMut::with_capacity(MAX_HEADER_BYTES);
    loop {
        if tcp.read_buf(&mut bytes).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        match parse(&bytes).map_err(io::Error::other)? {
            Parsed::Incomplete => {}
            Parsed::Complete {
                source,
                bytes: length,
            } => {
                bytes.advance(length);
                return Ok((source, bytes));
            }
        }
    }
}
