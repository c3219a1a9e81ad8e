//! The secure admin port: the paths of the admin port over TLS, for users that kube-apiserver
//! permits to read them.
//!
//! It has a thread of its own: handshakes of unauthenticated clients delay neither the controllers nor requests.

mod access;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::BytesMut;
use http::{Request, Response};
use skewbridge_http_engine::body::{RequestBody, ResponseBody};
use skewbridge_http_engine::buffer_budget::ClientLimits;
use skewbridge_http_engine::drain::Drain;
use skewbridge_http_engine::server::h2::H2Limits;
use skewbridge_http_engine::server::{ClientResponse, ClientTimeouts, Service, h1, h2};
use skewbridge_k8s_api::content_negotiation::negotiate_error_format;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use self::access::{AccessControl, Permission};
use super::Admin;
use crate::authn::ClientCertState;
use crate::balancer::Backends;
use crate::client_connection::ClientConnection;
use crate::config::Limits;
use crate::connection_slots::{ConnectionSlot, ConnectionSlots};
use crate::error_response;
use crate::frontend::handshake::{self, TlsConnection, accept_tls};
use crate::frontend::listener::ACCEPT_RETRY_DELAY;
use crate::tcp;

/// The clients are some scrapers, probers and administrators. The slots are not those of
/// `--max-connections`: a bridge without free slots can still be scraped.
const MAX_CONNECTIONS: usize = 256;

/// Concurrent requests on one HTTP/2 connection.
const MAX_STREAMS: u32 = 8;

/// The interval between two checks for idle connections to kube-apiserver.
const IDLE_CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// The port, before its thread runs.
pub(crate) struct SecurePort {
    runtime: Runtime,
    listener: TcpListener,
}

impl SecurePort {
    /// Opens the port with this function.
    pub(crate) fn open<E: From<io::Error>>(
        bind: impl FnOnce() -> Result<TcpListener, E>,
    ) -> Result<Self, E> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let listener = {
            let _inside = runtime.enter();
            bind()?
        };
        Ok(Self { runtime, listener })
    }

    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Starts the thread. It serves until `stop` is dropped, also while the bridge drains.
    pub(crate) fn start(
        self,
        admin: Admin,
        backends: Arc<Backends>,
        stop: oneshot::Receiver<()>,
    ) -> io::Result<JoinHandle<()>> {
        std::thread::Builder::new()
            .name("admin".to_owned())
            .spawn(move || {
                self.runtime.block_on(async {
                    tokio::select! {
                        () = run(self.listener, admin, backends) => {}
                        _ = stop => {}
                    }
                });
            })
    }
}

/// What all connections share.
struct SharedState {
    admin: Admin,
    backends: Arc<Backends>,
    access: AccessControl,
    timeouts: ClientTimeouts,
}

async fn run(listener: TcpListener, admin: Admin, backends: Arc<Backends>) {
    let bridge = backends.client_facing();
    let limits = Limits {
        max_connections: MAX_CONNECTIONS,
        reserved_connections: None,
        max_unauthenticated_connections_per_source: None,
        ..bridge.limits.clone()
    };
    let slots = ConnectionSlots::new(&limits, bridge.metrics.admin().connections.clone());
    let shared = Arc::new(SharedState {
        admin,
        access: AccessControl::new(backends.clone()),
        timeouts: ClientTimeouts {
            head: limits.read_header_timeout,
            idle: limits.idle_timeout,
            stall: limits.stall_timeout,
        },
        backends,
    });
    let mut idle_check = tokio::time::interval(IDLE_CHECK_INTERVAL);
    // These tasks end when this future is dropped.
    let mut connections = JoinSet::new();
    loop {
        let next = async {
            slots.wait_for_room().await;
            listener.accept().await
        };
        let accepted = tokio::select! {
            accepted = next => accepted,
            _ = idle_check.tick() => {
                shared.access.close_idle_connections();
                continue;
            }
        };
        let Ok((tcp, source)) = accepted else {
            tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
            continue;
        };
        tcp::tune(&tcp);
        let slot = slots.admit(source.ip()).await;
        let eviction = slot.eviction();
        let task = connections.spawn(connection(tcp, source, slot, shared.clone()));
        eviction.set_task(task);
        while connections.try_join_next().is_some() {}
    }
}

async fn connection(
    tcp: TcpStream,
    source: SocketAddr,
    slot: ConnectionSlot,
    shared: Arc<SharedState>,
) {
    let client = Arc::new(ClientConnection::new(source).with_slot(slot.promotion()));
    let limits = &shared.backends.client_facing().limits;
    let serving = serve(tcp, client.clone(), shared.clone());
    handshake::serve_with_slot(slot, &client, limits, serving).await;
}

async fn serve(tcp: TcpStream, client: Arc<ClientConnection>, shared: Arc<SharedState>) {
    let bridge = shared.backends.client_facing().clone();
    let (tcp, source) = ((tcp, BytesMut::new()), client.source());
    let Some(TlsConnection { io, chain, is_h2 }) = accept_tls(tcp, source, &bridge).await else {
        return;
    };
    let client_cert = ClientCertState::of_client(source, chain);
    client.note_certificate(client_cert.class(&bridge.live.trust.load_full()));
    let timeouts = shared.timeouts;
    let service = SecureAdmin(Arc::new(Connection {
        limits: ClientLimits::new(client.clone(), bridge.buffers.clone()),
        client,
        client_cert,
        shared,
    }));
    if is_h2 {
        let limits = H2Limits {
            max_streams: MAX_STREAMS,
            timeouts,
        };
        h2::serve(io, service, limits, Drain::never()).await;
    } else {
        h1::serve(io, service, timeouts, Drain::never()).await;
    }
}

/// The service of one connection to the secure admin port.
#[derive(Clone)]
struct SecureAdmin(Arc<Connection>);

struct Connection {
    shared: Arc<SharedState>,
    limits: ClientLimits,
    client: Arc<ClientConnection>,
    client_cert: ClientCertState,
}

impl Service for SecureAdmin {
    type Record = ();

    const HEAD_TIMEOUT_FLAG: Option<&'static str> = Some("--read-header-timeout");

    fn limits(&self) -> &ClientLimits {
        &self.0.limits
    }

    async fn call(&self, request: Request<RequestBody>) -> ClientResponse {
        let Connection {
            shared,
            client,
            client_cert,
            ..
        } = &*self.0;
        client.note_request();
        let (head, _) = request.into_parts();
        let complete = |response: Response<_>| response.map(ResponseBody::full);
        ClientResponse::new(match Admin::reject_method(&head) {
            Some(refused) => complete(refused),
            None => match shared.access.check(client, client_cert, &head).await {
                Ok(Permission::Everything) => shared.admin.respond(&head),
                Ok(Permission::HealthStatus) => complete(shared.admin.health_status(&head)),
                Err(status) => {
                    let format = negotiate_error_format(&head.headers);
                    complete(error_response::status(&status, format))
                }
            },
        })
    }
}
