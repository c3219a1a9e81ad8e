//! The configuration that changes while the bridge runs: certificates, keys and CA bundles.
//!
//! Files are checked once a second. This costs a few `stat` calls and, unlike notifications, detects
//! every way of replacing a file, including Kubernetes' symlink swaps and network file systems. If
//! a new file is not valid, the old one stays in use.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use arc_swap::{ArcSwap, ArcSwapOption};
use rustls::{ClientConfig, ServerConfig};
use rustls_pki_types::{CertificateDer, ServerName};
use skewbridge_http_engine::client::Keepalive;
use skewbridge_peer_directory::KeyDigest;

use crate::authn::TrustConfig;
use crate::config::{Config, Egress, KeyPairFiles, ProxyTransport, UpstreamServer};
use crate::metrics::Metrics;
use crate::signatures::keys::SignatureKeys;
use crate::tls::ca_conflict::{
    CaConflict, Conflicts, front_proxy_conflict, request_header_conflict,
};
use crate::tls::files::{CaBundle, FileError, Fingerprint, KeyPair, load_ca};
use crate::tls::own_certificates::{
    CaFile, FlagCertificate, FrontProxy, OwnCertificates, warnings,
};
use crate::tls::serving_key::{key_digest, rotated};
use crate::tls::{ca_overlap, client_config, server_config};

use crate::upstream::{
    Dialer, PeerTarget, PresentedCertificates, Proxy, Role, Target, UpstreamTargets, authority,
    replaceable_server_keepalive,
};
use crate::upstream_error_hint::UpstreamFlags;

const SIGNATURE_KEYS_FLAG: &str = "--http-signature-keys";

/// The interval between two checks of the files.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Files are read at this interval even if they seem unchanged, for file systems with coarse
/// timestamps.
const READ_INTERVAL: Duration = Duration::from_mins(1);

/// The interval between two warnings about certificates while the files do not change.
const WARNING_INTERVAL: Duration = Duration::from_hours(24);

/// A server behind the bridge, and how it is reached.
type ServerTargets = (UpstreamServer, Arc<ArcSwap<UpstreamTargets>>);

/// The configuration of the running bridge. Each field is replaced as a whole.
#[derive(Debug)]
pub struct LiveConfig {
    /// For new client connections; open connections keep theirs.
    pub server: ArcSwap<ServerConfig>,
    /// For authenticating requests.
    pub trust: ArcSwap<TrustConfig>,
    /// For new connections to upstream and to peers: one for each server behind the bridge.
    targets: Mutex<Vec<ServerTargets>>,
    /// For new connections to etcd, if they use TLS.
    pub etcd: ArcSwapOption<ClientConfig>,
    /// For signed requests, with `--http-signature-keys`.
    pub signature_keys: ArcSwapOption<SignatureKeys>,
    /// For the self-test.
    pub own: ArcSwap<OwnCertificates>,
    /// Digests of the serving keys of the bridge. The first one is the current key, or the next
    /// one.
    pub serving_keys: ArcSwap<Vec<KeyDigest>>,
    /// Why reloaded files are not used.
    pub conflicts: Conflicts,
    /// Until when the files are valid.
    pub(crate) expiries: ArcSwap<Vec<FileExpiry>>,
    /// Until when the certificates of other servers are valid.
    pub(crate) presented: PresentedCertificates,
}

/// Until when the certificates of a file are valid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileExpiry {
    pub(crate) flag: &'static str,
    /// Seconds since 1970.
    pub(crate) not_after: u64,
}

impl LiveConfig {
    /// The targets of a server behind the bridge. Those of a new one have the files of the others.
    pub(crate) fn targets_of(
        &self,
        server: &UpstreamServer,
    ) -> Option<Arc<ArcSwap<UpstreamTargets>>> {
        let mut all = self.targets.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, known)) = all.iter().find(|(known, _)| known == server) {
            return Some(known.clone());
        }
        let (_, model) = all.first()?;
        let targets = Arc::new(ArcSwap::from_pointee(model.load().at(server)));
        all.push((server.clone(), targets.clone()));
        Some(targets)
    }

    /// A server is not behind the bridge any more. The last one stays, as the model of later ones.
    pub(crate) fn remove_targets(&self, server: &UpstreamServer) {
        let mut all = self.targets.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() > 1 {
            all.retain(|(known, _)| known != server);
        }
    }
}

/// Checks the front-proxy certificate against the client CA that upstream publishes.
pub(crate) fn check_published_ca(
    live: &LiveConfig,
    front_proxy: &FrontProxy,
    client_ca: Option<&[CertificateDer<'static>]>,
    metrics: &Metrics,
) {
    let is_user = client_ca.is_some_and(|cas| ca_overlap::authenticates(cas, &front_proxy.chain));
    let conflict = is_user.then(|| CaConflict::FrontProxyIsUpstreamUser {
        front_proxy: front_proxy.path.clone(),
    });
    let before = live.conflicts.published.load_full();
    if before.as_deref() != conflict.as_ref() {
        log_peering_conflict(conflict.as_ref());
        live.conflicts.published.store(conflict.map(Arc::new));
        let metrics = metrics.peers();
        metrics.in_conflict(live.conflicts.of_peering().is_some());
    }
}

fn log_peering_conflict(conflict: Option<&CaConflict>) {
    if let Some(conflict) = conflict {
        tracing::error!(%conflict, "peering is disabled: requests for APIs of other servers get 503");
    } else {
        tracing::info!(
            "peering is enabled again: the front-proxy certificate does not authenticate as a user"
        );
    }
}

/// How long a new serving key is published before it is used. Peers pin the published keys; with a
/// working registry they get a change within milliseconds.
const KEY_ANNOUNCEMENT_PERIOD: Duration = Duration::from_secs(3);

/// Why files cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A file is not valid.
    #[error("{flag} {problem}")]
    File {
        /// The flag of the file.
        flag: &'static str,
        /// What is wrong with it.
        problem: FileError,
    },
    /// rustls rejects the files.
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
    /// Two files cannot be used together.
    #[error(transparent)]
    Conflict(#[from] CaConflict),
    /// A CA bundle has no usable trust anchor.
    #[error("CA bundle: {0}")]
    Ca(#[from] rustls::server::VerifierBuilderError),
}

/// All watched files.
pub struct Files {
    config: Config,
    serving: WatchedFiles<KeyPair>,
    client_ca: Option<WatchedFiles<CaBundle>>,
    request_header_ca: Option<WatchedFiles<CaBundle>>,
    upstream_ca: WatchedFiles<CaBundle>,
    front_proxy: Option<WatchedFiles<KeyPair>>,
    peer_ca: Option<WatchedFiles<CaBundle>>,
    etcd_ca: Option<WatchedFiles<CaBundle>>,
    etcd_pair: Option<WatchedFiles<KeyPair>>,
    signature_keys: Option<WatchedFiles<Arc<SignatureKeys>>>,
    egress: EgressRoute,
    metrics: Metrics,
    presented: PresentedCertificates,
    warned_at: Instant,
    /// When the new serving key, which has been published, will be used.
    serve_with_new_key_at: Option<Instant>,
}

/// How connections to peers are opened, with the files that this needs.
enum EgressRoute {
    /// Needs no files.
    Plain(Dialer),
    /// Through a proxy that uses TLS.
    Tls(Box<TlsProxy>),
}

struct TlsProxy {
    host: String,
    port: u16,
    server_name: ServerName<'static>,
    ca: WatchedFiles<CaBundle>,
    pair: WatchedFiles<KeyPair>,
}

impl EgressRoute {
    fn dialer(&self) -> Result<Dialer, LoadError> {
        let proxy = match self {
            Self::Plain(dialer) => return Ok(dialer.clone()),
            Self::Tls(proxy) => proxy,
        };
        Ok(Dialer::HttpConnect(Arc::new(Proxy::Tls {
            host: proxy.host.clone(),
            port: proxy.port,
            server_name: proxy.server_name.clone(),
            tls: Arc::new(client_config(&proxy.ca.value, Some(&proxy.pair.value))?),
        })))
    }

    /// Reloads the files. Returns whether one has changed.
    fn refresh(&mut self, metrics: &Metrics) -> bool {
        match self {
            Self::Plain(_) => false,
            Self::Tls(proxy) => {
                let ca = proxy.ca.refresh(metrics);
                proxy.pair.refresh(metrics) || ca
            }
        }
    }

    fn tls(&self) -> Option<&TlsProxy> {
        match self {
            Self::Plain(_) => None,
            Self::Tls(proxy) => Some(proxy),
        }
    }
}

impl Files {
    /// Reads all files.
    #[allow(clippy::too_many_lines)] // one entry for each file
    pub fn load(config: &Config, metrics: Metrics) -> Result<(Self, LiveConfig), LoadError> {
        let ca = |flag, path: &PathBuf| {
            let path = path.clone();
            WatchedFiles::new(flag, vec![path.clone()], move || load_ca(&path))
        };
        let pair = |flag, files: &KeyPairFiles| {
            let files = files.clone();
            WatchedFiles::new(
                flag,
                vec![files.cert.clone(), files.key.clone()],
                move || files.load(),
            )
        };
        let callers = &config.callers;
        let files = Self {
            serving: pair("--tls-cert-file", &config.serving.key_pair)?,
            client_ca: callers
                .client_ca
                .as_ref()
                .map(|path| ca("--client-ca-file", path))
                .transpose()?,
            request_header_ca: callers
                .request_header
                .as_ref()
                .map(|it| ca("--requestheader-client-ca-file", &it.ca))
                .transpose()?,
            upstream_ca: ca("--upstream-ca-file", &config.upstream.ca)?,
            front_proxy: config
                .upstream
                .front_proxy
                .as_ref()
                .map(|it| pair("--proxy-client-cert-file", it))
                .transpose()?,
            peer_ca: (config.peers.ca.as_ref())
                .map(|path| ca("--peer-ca-file", path))
                .transpose()?,
            etcd_ca: (config.peers.etcd.ca.as_ref())
                .map(|path| ca("--etcd-cafile", path))
                .transpose()?,
            etcd_pair: (config.peers.etcd.key_pair.as_ref())
                .map(|it| pair("--etcd-certfile", it))
                .transpose()?,
            signature_keys: (callers.signatures.as_ref())
                .map(|it| {
                    let (path, headers) = (it.keys.clone(), callers.headers.clone());
                    WatchedFiles::new(SIGNATURE_KEYS_FLAG, vec![path.clone()], move || {
                        SignatureKeys::load(&path, &headers).map(Arc::new)
                    })
                })
                .transpose()?,
            egress: match &config.peers.egress {
                Egress::Direct => EgressRoute::Plain(Dialer::Direct),
                Egress::HttpConnect(ProxyTransport::Tcp { host, port }) => {
                    EgressRoute::Plain(Dialer::HttpConnect(Arc::new(Proxy::Tcp {
                        host: host.clone(),
                        port: *port,
                    })))
                }
                Egress::HttpConnect(ProxyTransport::Uds(path)) => {
                    EgressRoute::Plain(Dialer::HttpConnect(Arc::new(Proxy::Uds(path.clone()))))
                }
                Egress::HttpConnect(ProxyTransport::Tls {
                    host,
                    port,
                    server_name,
                    ca: bundle,
                    key_pair,
                }) => EgressRoute::Tls(Box::new(TlsProxy {
                    host: host.clone(),
                    port: *port,
                    server_name: server_name.clone(),
                    ca: ca("--egress-selector-config-file caBundle", bundle)?,
                    pair: pair("--egress-selector-config-file clientCert", key_pair)?,
                })),
            },
            config: config.clone(),
            metrics,
            presented: PresentedCertificates::default(),
            warned_at: Instant::now(),
            serve_with_new_key_at: None,
        };
        if let Some(conflict) = files.peering_conflict() {
            return Err(conflict.into());
        }
        let live = LiveConfig {
            conflicts: Conflicts::default(),
            server: ArcSwap::from_pointee(files.server()?),
            trust: ArcSwap::from_pointee(files.trust()?),
            targets: Mutex::new(files.targets()?),
            etcd: ArcSwapOption::from(files.etcd()?.map(Arc::new)),
            signature_keys: ArcSwapOption::from(files.signature_keys()),
            own: ArcSwap::from_pointee(files.own_certificates()),
            serving_keys: ArcSwap::from_pointee(files.serving_key().into_iter().collect()),
            expiries: ArcSwap::default(),
            presented: files.presented.clone(),
        };
        if files.signature_keys.is_some() {
            files.metrics.will_reload(SIGNATURE_KEYS_FLAG);
        }
        files.report_expiry(&live);
        files.log_warnings();
        Ok((files, live))
    }

    fn server(&self) -> Result<ServerConfig, LoadError> {
        let requested_cas: Vec<_> = [&self.client_ca, &self.request_header_ca]
            .into_iter()
            .flatten()
            .map(|ca| &ca.value)
            .collect();
        let min_version = self.config.serving.min_version;
        Ok(server_config(
            &self.serving.value,
            &requested_cas,
            min_version,
        )?)
    }

    fn peering_conflict(&self) -> Option<CaConflict> {
        let (pair, ca) = (self.front_proxy.as_ref()?, self.client_ca.as_ref()?);
        front_proxy_conflict(&self.config, &pair.value, &ca.value)
    }

    fn callers_conflict(&self) -> Option<CaConflict> {
        let (proxies, users) = (self.request_header_ca.as_ref()?, self.client_ca.as_ref()?);
        request_header_conflict(&self.config.callers, &proxies.value, &users.value)
    }

    fn trust(&self) -> Result<TrustConfig, LoadError> {
        if let Some(conflict) = self.callers_conflict() {
            return Err(conflict.into());
        }
        let names = self.config.callers.request_header.as_ref();
        let names = names.map_or(&[][..], |it| &it.allowed_names);
        Ok(TrustConfig::new(
            self.client_ca.as_ref().map(|ca| &ca.value),
            self.request_header_ca.as_ref().map(|ca| (&ca.value, names)),
            self.config.callers.headers.clone(),
        )?)
    }

    /// The targets of each `--upstream`.
    fn targets(&self) -> Result<Vec<ServerTargets>, LoadError> {
        let servers = self.config.upstream.servers().into_iter();
        let targets = servers.map(|server| {
            let targets = ArcSwap::from_pointee(self.targets_of(&server)?);
            Ok((server, Arc::new(targets)))
        });
        targets.collect()
    }

    fn targets_of(&self, server: &UpstreamServer) -> Result<UpstreamTargets, LoadError> {
        let ping = self.config.limits.upstream_ping;
        let is_balanced = self.config.upstream.is_balanced();
        let target = |identity| -> Result<Target, LoadError> {
            Ok(Target {
                host: server.host.clone(),
                port: server.port,
                dialer: Dialer::Direct,
                server_name: server.server_name.clone(),
                tls: Arc::new(client_config(&self.upstream_ca.value, identity)?),
                keepalive: if is_balanced {
                    replaceable_server_keepalive(ping)
                } else {
                    Keepalive {
                        ping_interval: ping,
                        ping_timeout: ping,
                    }
                },
                pins: Vec::new(),
                role: if is_balanced {
                    Role::Backend
                } else {
                    Role::Upstream
                },
                presented: self.presented.clone(),
            })
        };
        let peer = match (&self.front_proxy, self.peer_ca_bundle()) {
            (Some(pair), Some(ca)) if self.peering_conflict().is_none() => Some(PeerTarget::new(
                self.egress.dialer()?,
                client_config(ca, Some(&pair.value))?,
                client_config(ca, None)?,
                ping,
                &self.presented,
            )),
            _ => None,
        };
        Ok(UpstreamTargets {
            plain: target(None)?,
            front_proxy: match &self.front_proxy {
                None => None,
                Some(pair) => Some(target(Some(&pair.value))?),
            },
            peer,
        })
    }

    /// The CAs of peers: `--peer-ca-file`. With several upstreams the peers are these upstreams.
    fn peer_ca_bundle(&self) -> Option<&CaBundle> {
        if self.config.upstream.is_balanced() {
            return Some(&self.upstream_ca.value);
        }
        self.peer_ca.as_ref().map(|it| &it.value)
    }

    fn etcd(&self) -> Result<Option<ClientConfig>, LoadError> {
        let Some(ca) = &self.etcd_ca else {
            return Ok(None);
        };
        let identity = self.etcd_pair.as_ref().map(|pair| &pair.value);
        Ok(Some(client_config(&ca.value, identity)?))
    }

    fn signature_keys(&self) -> Option<Arc<SignatureKeys>> {
        self.signature_keys.as_ref().map(|it| it.value.clone())
    }

    /// Watches the files until `stop` is dropped.
    pub fn watch(mut self, live: &LiveConfig, stop: &Receiver<()>) {
        while stop.recv_timeout(CHECK_INTERVAL) == Err(RecvTimeoutError::Timeout) {
            self.refresh(live);
        }
    }

    fn refresh(&mut self, live: &LiveConfig) {
        let metrics = &self.metrics;
        let serving = self.serving.refresh(metrics);
        let client_ca = refresh(&mut self.client_ca, metrics);
        let request_header_ca = refresh(&mut self.request_header_ca, metrics);
        let upstream_ca = self.upstream_ca.refresh(metrics);
        let front_proxy = refresh(&mut self.front_proxy, metrics);
        let peer_ca = refresh(&mut self.peer_ca, metrics);
        let etcd_ca = refresh(&mut self.etcd_ca, metrics);
        let etcd_pair = refresh(&mut self.etcd_pair, metrics);
        let egress = self.egress.refresh(metrics);
        let signature_keys = refresh(&mut self.signature_keys, metrics);
        let callers = client_ca || request_header_ca;
        let targets = upstream_ca || front_proxy || peer_ca || egress;
        let etcd = etcd_ca || etcd_pair;
        if serving && self.announce_key(live) {
            self.serve_with_new_key_at = Some(Instant::now() + KEY_ANNOUNCEMENT_PERIOD);
        }
        let server = serving || callers;
        if is_server_due(server, self.serve_with_new_key_at, Instant::now()) {
            self.serve_with_new_key_at = None;
            self.swap("server", self.server(), &live.server);
        }
        if callers {
            live.conflicts
                .callers
                .store(self.callers_conflict().map(Arc::new));
            self.swap("callers", self.trust(), &live.trust);
        }
        // Before the new files are used, so that no connection with them goes to a peer.
        let peering_changed = (client_ca || front_proxy) && self.update_peering_conflict(live);
        if targets || peering_changed {
            self.swap_targets(live);
        }
        if etcd && let Ok(config) = self.etcd() {
            live.etcd.store(config.map(Arc::new));
        }
        if signature_keys {
            live.signature_keys.store(self.signature_keys());
        }
        if serving || callers || targets || etcd {
            live.own.store(Arc::new(self.own_certificates()));
            self.report_expiry(live);
        }
        let changed = serving || front_proxy || etcd_pair || egress;
        if changed || self.warned_at.elapsed() >= WARNING_INTERVAL {
            self.warned_at = Instant::now();
            self.log_warnings();
        }
    }

    fn serving_key(&self) -> Option<KeyDigest> {
        key_digest(self.serving.value.certified.cert.first()?)
    }

    /// Publishes a new serving key. Returns whether the bridge has to wait before it uses the key.
    fn announce_key(&self, live: &LiveConfig) -> bool {
        let Some(new) = self.serving_key() else {
            return false;
        };
        let before = live.serving_keys.load();
        let is_new = before.first() != Some(&new);
        if is_new {
            live.serving_keys.store(Arc::new(rotated(&before, new)));
        }
        is_new && self.peer_ca.is_some()
    }

    /// Disables peering if the new files conflict, and enables it again if they do not. Returns
    /// whether that has changed.
    fn update_peering_conflict(&self, live: &LiveConfig) -> bool {
        let conflict = self.peering_conflict();
        let before = live.conflicts.peering.load_full();
        if before.as_deref() == conflict.as_ref() {
            return false;
        }
        if conflict.is_some() {
            self.metrics.reload_failed("peering");
        }
        log_peering_conflict(conflict.as_ref());
        live.conflicts.peering.store(conflict.map(Arc::new));
        let metrics = self.metrics.peers();
        metrics.in_conflict(live.conflicts.of_peering().is_some());
        true
    }

    fn swap<T>(&self, part: &'static str, new: Result<T, LoadError>, live: &ArcSwap<T>) {
        match new {
            Ok(new) => live.store(Arc::new(new)),
            Err(error) => self.report_unusable(part, &error),
        }
    }

    fn report_unusable(&self, part: &'static str, error: &LoadError) {
        self.metrics.reload_failed(part);
        tracing::error!(%error, part, "new files cannot be used; the old ones stay in use");
    }

    fn swap_targets(&self, live: &LiveConfig) {
        let all = live.targets.lock().unwrap_or_else(PoisonError::into_inner);
        for (server, targets) in all.iter() {
            match self.targets_of(server) {
                Ok(new) => targets.store(Arc::new(new)),
                Err(error) => return self.report_unusable("upstream", &error),
            }
        }
    }

    fn own_certificates(&self) -> OwnCertificates {
        let ca = |watched: &Option<WatchedFiles<CaBundle>>| {
            let watched = watched.as_ref()?;
            Some(CaFile {
                path: watched.paths.first()?.clone(),
                certificates: watched.value.certificates.clone(),
            })
        };
        let upstream = &self.config.upstream;
        OwnCertificates {
            upstream: UpstreamFlags {
                url: format!("https://{}", authority(&upstream.host, upstream.port)),
                ca: upstream.ca.clone(),
            },
            client_ca: ca(&self.client_ca),
            request_header_ca: ca(&self.request_header_ca),
            front_proxy: (self.front_proxy.as_ref())
                .and_then(|it| Some(FrontProxy::new(it.paths.first()?, &it.value))),
        }
    }

    /// Logs warnings about certificates.
    fn log_warnings(&self) {
        fn flag_certificate(watched: &WatchedFiles<KeyPair>) -> Option<FlagCertificate<'_>> {
            Some(FlagCertificate {
                flag: watched.flag,
                path: watched.paths.first()?,
                pair: &watched.value,
            })
        }
        let Some(serving) = flag_certificate(&self.serving) else {
            return;
        };
        let others: Vec<_> = [
            self.etcd_pair.as_ref(),
            self.egress.tls().map(|proxy| &proxy.pair),
        ]
        .into_iter()
        .flatten()
        .filter_map(flag_certificate)
        .collect();
        let names = self.config.callers.request_header.as_ref();
        let names = names.map_or(&[][..], |it| &it.allowed_names);
        let front_proxy = self.front_proxy.as_ref().and_then(flag_certificate);
        for it in warnings(serving, front_proxy, &others, names, SystemTime::now()) {
            tracing::warn!("{} {}: {}", it.flag, it.path.display(), it.message);
        }
    }

    fn report_expiry(&self, live: &LiveConfig) {
        let seconds = |at: SystemTime| {
            at.duration_since(UNIX_EPOCH)
                .map_or(0, |since| since.as_secs())
        };
        let pairs = [
            Some(&self.serving),
            self.front_proxy.as_ref(),
            self.etcd_pair.as_ref(),
            self.egress.tls().map(|proxy| &proxy.pair),
        ];
        let pairs = (pairs.into_iter().flatten()).map(|it| (it.flag, it.value.not_after));
        let bundles = [
            self.client_ca.as_ref(),
            self.request_header_ca.as_ref(),
            Some(&self.upstream_ca),
            self.peer_ca.as_ref(),
            self.etcd_ca.as_ref(),
            self.egress.tls().map(|proxy| &proxy.ca),
        ];
        let bundles = (bundles.into_iter().flatten()).map(|it| (it.flag, it.value.not_after));
        let files = pairs.chain(bundles).map(|(flag, not_after)| FileExpiry {
            flag,
            not_after: seconds(not_after),
        });
        let files: Vec<_> = files.collect();
        for file in &files {
            self.metrics.will_reload(file.flag);
            self.metrics.certificate_expires(file.flag, file.not_after);
        }
        live.expiries.store(Arc::new(files));
    }
}

fn refresh<T: Reloadable>(watched: &mut Option<WatchedFiles<T>>, metrics: &Metrics) -> bool {
    watched
        .as_mut()
        .is_some_and(|watched| watched.refresh(metrics))
}

/// The value of one file, or of two files that belong together.
struct WatchedFiles<T> {
    flag: &'static str,
    paths: Vec<PathBuf>,
    load: Box<dyn Fn() -> Result<T, FileError> + Send>,
    value: T,
    stamp: Stamp,
    read_at: Instant,
    /// The last failure, so that each is logged once.
    last_problem: Option<FileError>,
}

/// Detects a change of a file: device, inode, size and modification time, after resolving symlinks.
type Stamp = Vec<Option<(u64, u64, u64, i64, i64)>>;

trait Reloadable {
    fn fingerprint(&self) -> Fingerprint;
}

impl Reloadable for KeyPair {
    fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }
}

impl Reloadable for CaBundle {
    fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }
}

impl Reloadable for Arc<SignatureKeys> {
    fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }
}

impl<T: Reloadable> WatchedFiles<T> {
    fn new(
        flag: &'static str,
        paths: Vec<PathBuf>,
        load: impl Fn() -> Result<T, FileError> + Send + 'static,
    ) -> Result<Self, LoadError> {
        // Before reading, so that the next check detects a change in between.
        let stamp = stamp(&paths);
        Ok(Self {
            value: load().map_err(|problem| LoadError::File { flag, problem })?,
            load: Box::new(load),
            flag,
            paths,
            stamp,
            read_at: Instant::now(),
            last_problem: None,
        })
    }

    /// Reloads the value. Returns whether it has changed.
    fn refresh(&mut self, metrics: &Metrics) -> bool {
        let stamp = stamp(&self.paths);
        if stamp == self.stamp && self.read_at.elapsed() < READ_INTERVAL {
            return false;
        }
        self.stamp = stamp;
        self.read_at = Instant::now();
        match (self.load)() {
            Ok(value) => {
                let was_invalid = self.last_problem.take().is_some();
                let changed = value.fingerprint() != self.value.fingerprint();
                self.value = value;
                if was_invalid && !changed {
                    tracing::info!(flag = self.flag, paths = ?self.paths, "the file is valid again and unchanged");
                }
                if changed {
                    metrics.reloaded(self.flag);
                    tracing::info!(flag = self.flag, paths = ?self.paths, "file reloaded");
                }
                changed
            }
            Err(problem) => {
                if self.last_problem.as_ref() != Some(&problem) {
                    metrics.reload_failed(self.flag);
                    tracing::error!(flag = self.flag, %problem, "the new file cannot be used; the old one stays in use");
                    self.last_problem = Some(problem);
                }
                false
            }
        }
    }
}

fn stamp(paths: &[PathBuf]) -> Stamp {
    paths
        .iter()
        .map(|path| {
            let meta = std::fs::metadata(path).ok()?;
            Some((
                meta.dev(),
                meta.ino(),
                meta.size(),
                meta.mtime(),
                meta.mtime_nsec(),
            ))
        })
        .collect()
}

/// Whether the listener uses its new files now. It waits until a new key has been announced, also
/// if other files change meanwhile: peers reject a key that was not announced.
fn is_server_due(changed: bool, serve_with_new_key_at: Option<Instant>, now: Instant) -> bool {
    match serve_with_new_key_at {
        Some(at) => at <= now,
        None => changed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_key_is_not_used_before_it_has_been_announced() {
        let now = Instant::now();
        let (past, later) = (Some(now), Some(now + KEY_ANNOUNCEMENT_PERIOD));
        for (changed, serve_with_new_key_at, due) in [
            (false, None, false),
            (true, None, true),
            (false, later, false),
            // A CA file changes during the announcement period.
            (true, later, false),
            (false, past, true),
            (true, past, true),
        ] {
            assert_eq!(is_server_due(changed, serve_with_new_key_at, now), due);
        }
    }
}
