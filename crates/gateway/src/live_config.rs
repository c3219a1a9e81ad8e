//! The configuration that changes while the bridge runs: certificates, keys and CA bundles.
//!
//! Files are looked at once a second: it costs a handful of `stat` calls, and
//! unlike notifications it sees every way in which files are replaced,
//! Kubernetes' symlink swaps and network file systems included. A new file that
//! is not good leaves the old one in use.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use arc_swap::{ArcSwap, ArcSwapOption};
use rustls::{ClientConfig, ServerConfig};
use rustls_pki_types::{CertificateDer, ServerName};
use skewbridge_http_engine::client::Keepalive;
use skewbridge_peer_directory::KeyDigest;

use crate::authn::TrustConfig;
use crate::config::{Config, Egress, KeyPairFiles, ProxyTransport};
use crate::metrics::Metrics;
use crate::signatures::keys::SignatureKeys;
use crate::tls::ca_conflict::{
    CaConflict, Conflicts, front_proxy_conflict, request_header_conflict,
};
use crate::tls::files::{CaBundle, FileProblem, Fingerprint, KeyPair, load_ca};
use crate::tls::own_certificates::{CaFile, Flagged, FrontProxy, OwnCertificates, warnings};
use crate::tls::serving_key::{key_digest, rotated};
use crate::tls::{ca_overlap, client_config, server_config};

use crate::upstream::{Dialer, PeerTarget, Proxy, Role, Target, UpstreamTargets, authority};
use crate::upstream_problem::UpstreamFlags;

const SIGNATURE_KEYS: &str = "--http-signature-keys";

const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Files are read even if nothing seems to have changed, for file systems
/// whose clocks are too coarse.
const READ_EVERY: Duration = Duration::from_mins(1);

/// How often warnings about certificates are repeated while the files stay as they are.
const WARN_EVERY: Duration = Duration::from_hours(24);

/// What the running bridge uses. Each part is replaced as a whole.
#[derive(Debug)]
pub struct LiveConfig {
    /// For new connections; those that are open keep theirs.
    pub server: ArcSwap<ServerConfig>,
    /// For every request.
    pub trust: ArcSwap<TrustConfig>,
    /// For new connections to upstream and to peers.
    pub targets: ArcSwap<UpstreamTargets>,
    /// For new connections to etcd, where they are encrypted.
    pub etcd: ArcSwapOption<ClientConfig>,
    /// For every signed request, where signatures are believed.
    pub signature_keys: ArcSwapOption<SignatureKeys>,
    /// For the self-test.
    pub own: ArcSwap<OwnCertificates>,
    /// Digests of the keys with which the bridge serves: the current one, or the one that
    /// is about to be, first.
    pub serving_keys: ArcSwap<Vec<KeyDigest>>,
    /// Why files that were read again are not used as they are, where that is so.
    pub conflicts: Conflicts,
}

/// Judges the front-proxy certificate by the client CA that upstream publishes.
pub(crate) fn judge_published(
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
        log_peering(conflict.as_ref());
        live.conflicts.published.store(conflict.map(Arc::new));
        let metrics = metrics.peers();
        metrics.in_conflict(live.conflicts.of_peering().is_some());
    }
}

fn log_peering(conflict: Option<&CaConflict>) {
    if let Some(conflict) = conflict {
        tracing::error!(%conflict, "peering is disabled: requests for APIs of other servers get 503");
    } else {
        tracing::info!("the front-proxy certificate is not that of a user any more");
    }
}

/// How long a new serving key is announced to peers before it is used: they pin the keys
/// that are published, and hear of a change within milliseconds where the registry works.
const KEY_ANNOUNCEMENT: Duration = Duration::from_secs(3);

/// Why files cannot be used together or alone.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// One is not good.
    #[error("{flag} {problem}")]
    File {
        /// Which flag named it.
        flag: &'static str,
        /// What is wrong with it.
        problem: FileProblem,
    },
    /// rustls does not take them.
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
    /// Two files cannot be used together.
    #[error(transparent)]
    Conflict(#[from] CaConflict),
    /// No certificate of a CA bundle can be an anchor.
    #[error("CA bundle: {0}")]
    Ca(#[from] rustls::server::VerifierBuilderError),
}

/// All files, as last read.
pub struct Files {
    config: Config,
    serving: Watched<KeyPair>,
    client_ca: Option<Watched<CaBundle>>,
    request_header_ca: Option<Watched<CaBundle>>,
    upstream_ca: Watched<CaBundle>,
    front_proxy: Option<Watched<KeyPair>>,
    peer_ca: Option<Watched<CaBundle>>,
    etcd_ca: Option<Watched<CaBundle>>,
    etcd_pair: Option<Watched<KeyPair>>,
    signature_keys: Option<Watched<Arc<SignatureKeys>>>,
    egress: Way,
    metrics: Metrics,
    warned_at: Instant,
    /// A new serving key has been announced to peers, and is used from then on.
    serve_with_new_key_at: Option<Instant>,
}

/// By which way peers are reached, with the files that it takes.
enum Way {
    /// It takes none.
    Plain(Dialer),
    /// Through a proxy that is met with TLS.
    Tls(Box<TlsProxy>),
}

struct TlsProxy {
    host: String,
    port: u16,
    server_name: ServerName<'static>,
    ca: Watched<CaBundle>,
    pair: Watched<KeyPair>,
}

impl Way {
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

    /// Whether it is another now.
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
    /// Reads them all.
    pub fn load(config: &Config, metrics: Metrics) -> Result<(Self, LiveConfig), LoadError> {
        let ca = |flag, path: &PathBuf| {
            let path = path.clone();
            Watched::new(flag, vec![path.clone()], move || load_ca(&path))
        };
        let pair = |flag, files: &KeyPairFiles| {
            let files = files.clone();
            Watched::new(
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
                    Watched::new(SIGNATURE_KEYS, vec![path.clone()], move || {
                        SignatureKeys::load(&path, &headers).map(Arc::new)
                    })
                })
                .transpose()?,
            egress: match &config.peers.egress {
                Egress::Direct => Way::Plain(Dialer::Direct),
                Egress::HttpConnect(ProxyTransport::Tcp { host, port }) => {
                    Way::Plain(Dialer::HttpConnect(Arc::new(Proxy::Tcp {
                        host: host.clone(),
                        port: *port,
                    })))
                }
                Egress::HttpConnect(ProxyTransport::Uds(path)) => {
                    Way::Plain(Dialer::HttpConnect(Arc::new(Proxy::Uds(path.clone()))))
                }
                Egress::HttpConnect(ProxyTransport::Tls {
                    host,
                    port,
                    server_name,
                    ca: bundle,
                    key_pair,
                }) => Way::Tls(Box::new(TlsProxy {
                    host: host.clone(),
                    port: *port,
                    server_name: server_name.clone(),
                    ca: ca("--egress-selector-config-file caBundle", bundle)?,
                    pair: pair("--egress-selector-config-file clientCert", key_pair)?,
                })),
            },
            config: config.clone(),
            metrics,
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
            targets: ArcSwap::from_pointee(files.targets()?),
            etcd: ArcSwapOption::from(files.etcd()?.map(Arc::new)),
            signature_keys: ArcSwapOption::from(files.signature_keys()),
            own: ArcSwap::from_pointee(files.own_certificates()),
            serving_keys: ArcSwap::from_pointee(files.serving_key().into_iter().collect()),
        };
        if files.signature_keys.is_some() {
            files.metrics.will_reload(SIGNATURE_KEYS);
        }
        files.report_expiry();
        files.warn();
        Ok((files, live))
    }

    fn server(&self) -> Result<ServerConfig, LoadError> {
        let asked: Vec<_> = [&self.client_ca, &self.request_header_ca]
            .into_iter()
            .flatten()
            .map(|ca| &ca.value)
            .collect();
        let min_version = self.config.serving.min_version;
        Ok(server_config(&self.serving.value, &asked, min_version)?)
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

    fn targets(&self) -> Result<UpstreamTargets, LoadError> {
        let upstream = &self.config.upstream;
        let target = |identity| -> Result<Target, LoadError> {
            Ok(Target {
                host: upstream.host.clone(),
                port: upstream.port,
                dialer: Dialer::Direct,
                server_name: upstream.server_name.clone(),
                tls: Arc::new(client_config(&self.upstream_ca.value, identity)?),
                keepalive: Keepalive {
                    ping_interval: self.config.limits.upstream_ping,
                    ping_timeout: self.config.limits.upstream_ping,
                },
                pins: Vec::new(),
                role: Role::Upstream,
            })
        };
        let peer = match (&self.front_proxy, &self.peer_ca) {
            (Some(pair), Some(ca)) if self.peering_conflict().is_none() => Some(PeerTarget::new(
                self.egress.dialer()?,
                client_config(&ca.value, Some(&pair.value))?,
                client_config(&ca.value, None)?,
                self.config.limits.upstream_ping,
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

    /// Looks at the files until `stop` is dropped.
    pub fn keep_fresh(mut self, live: &LiveConfig, stop: &Receiver<()>) {
        while stop.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
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
            self.serve_with_new_key_at = Some(Instant::now() + KEY_ANNOUNCEMENT);
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
        // Before connections with the new files: none of them may go to a peer.
        let peering_changed = (client_ca || front_proxy) && self.judge_peering(live);
        if targets || peering_changed {
            self.swap("upstream", self.targets(), &live.targets);
        }
        if etcd && let Ok(config) = self.etcd() {
            live.etcd.store(config.map(Arc::new));
        }
        if signature_keys {
            live.signature_keys.store(self.signature_keys());
        }
        if serving || callers || targets || etcd {
            live.own.store(Arc::new(self.own_certificates()));
            self.report_expiry();
        }
        let changed = serving || front_proxy || etcd_pair || egress;
        if changed || self.warned_at.elapsed() >= WARN_EVERY {
            self.warned_at = Instant::now();
            self.warn();
        }
    }

    fn serving_key(&self) -> Option<KeyDigest> {
        key_digest(self.serving.value.certified.cert.first()?)
    }

    /// Tells peers of a new serving key. Whether they have to be given time to hear of it.
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

    /// Switches peering off where the new files do not permit it, and on again where they
    /// do. Whether that has changed.
    fn judge_peering(&self, live: &LiveConfig) -> bool {
        let conflict = self.peering_conflict();
        let before = live.conflicts.peering.load_full();
        if before.as_deref() == conflict.as_ref() {
            return false;
        }
        if conflict.is_some() {
            self.metrics.reload_failed("peering");
        }
        log_peering(conflict.as_ref());
        live.conflicts.peering.store(conflict.map(Arc::new));
        let metrics = self.metrics.peers();
        metrics.in_conflict(live.conflicts.of_peering().is_some());
        true
    }

    fn swap<T>(&self, part: &'static str, new: Result<T, LoadError>, live: &ArcSwap<T>) {
        match new {
            Ok(new) => live.store(Arc::new(new)),
            Err(error) => {
                self.metrics.reload_failed(part);
                tracing::error!(%error, part, "new files cannot be used; the old ones stay");
            }
        }
    }

    fn own_certificates(&self) -> OwnCertificates {
        let ca = |watched: &Option<Watched<CaBundle>>| {
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

    /// Logs what an administrator should change in time.
    fn warn(&self) {
        fn flagged(watched: &Watched<KeyPair>) -> Option<Flagged<'_>> {
            Some(Flagged {
                flag: watched.flag,
                path: watched.paths.first()?,
                pair: &watched.value,
            })
        }
        let Some(serving) = flagged(&self.serving) else {
            return;
        };
        let others: Vec<_> = [
            self.etcd_pair.as_ref(),
            self.egress.tls().map(|proxy| &proxy.pair),
        ]
        .into_iter()
        .flatten()
        .filter_map(flagged)
        .collect();
        let names = self.config.callers.request_header.as_ref();
        let names = names.map_or(&[][..], |it| &it.allowed_names);
        let front_proxy = self.front_proxy.as_ref().and_then(flagged);
        for it in warnings(serving, front_proxy, &others, names, SystemTime::now()) {
            tracing::warn!("{} {}: {}", it.flag, it.path.display(), it.message);
        }
    }

    fn report_expiry(&self) {
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
        for pair in pairs.into_iter().flatten() {
            self.metrics.will_reload(pair.flag);
            self.metrics
                .certificate_expires(pair.flag, seconds(pair.value.not_after));
        }
        let bundles = [
            self.client_ca.as_ref(),
            self.request_header_ca.as_ref(),
            Some(&self.upstream_ca),
            self.peer_ca.as_ref(),
            self.etcd_ca.as_ref(),
            self.egress.tls().map(|proxy| &proxy.ca),
        ];
        for ca in bundles.into_iter().flatten() {
            self.metrics.will_reload(ca.flag);
            self.metrics
                .certificate_expires(ca.flag, seconds(ca.value.not_after));
        }
    }
}

fn refresh<T: Read>(watched: &mut Option<Watched<T>>, metrics: &Metrics) -> bool {
    watched
        .as_mut()
        .is_some_and(|watched| watched.refresh(metrics))
}

/// What was read from one or two files that belong together.
struct Watched<T> {
    flag: &'static str,
    paths: Vec<PathBuf>,
    load: Box<dyn Fn() -> Result<T, FileProblem> + Send>,
    value: T,
    stamp: Stamp,
    read_at: Instant,
    /// Said once, not every second.
    last_problem: Option<FileProblem>,
}

/// Tells whether a file may have changed: device, inode, size, time, through
/// all symlinks.
type Stamp = Vec<Option<(u64, u64, u64, i64, i64)>>;

trait Read {
    fn fingerprint(&self) -> Fingerprint;
}

impl Read for KeyPair {
    fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }
}

impl Read for CaBundle {
    fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }
}

impl Read for Arc<SignatureKeys> {
    fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }
}

impl<T: Read> Watched<T> {
    fn new(
        flag: &'static str,
        paths: Vec<PathBuf>,
        load: impl Fn() -> Result<T, FileProblem> + Send + 'static,
    ) -> Result<Self, LoadError> {
        // Before reading: a change in between is then seen at the next look.
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

    /// Whether there is a new value.
    fn refresh(&mut self, metrics: &Metrics) -> bool {
        let stamp = stamp(&self.paths);
        if stamp == self.stamp && self.read_at.elapsed() < READ_EVERY {
            return false;
        }
        self.stamp = stamp;
        self.read_at = Instant::now();
        match (self.load)() {
            Ok(value) => {
                let was_bad = self.last_problem.take().is_some();
                let changed = value.fingerprint() != self.value.fingerprint();
                self.value = value;
                if was_bad && !changed {
                    tracing::info!(flag = self.flag, paths = ?self.paths, "good again, and as before");
                }
                if changed {
                    metrics.reloaded(self.flag);
                    tracing::info!(flag = self.flag, paths = ?self.paths, "read again");
                }
                changed
            }
            Err(problem) => {
                if self.last_problem.as_ref() != Some(&problem) {
                    metrics.reload_failed(self.flag);
                    tracing::error!(flag = self.flag, %problem, "the new file cannot be used; the old one stays");
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
/// Whether the listener takes its new files now. It waits for peers to learn a new key,
/// whatever else has changed meanwhile: they refuse a key that was not announced.
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
    fn a_new_key_is_not_served_before_it_was_announced() {
        let now = Instant::now();
        let (past, later) = (Some(now), Some(now + KEY_ANNOUNCEMENT));
        for (changed, serve_with_new_key_at, due) in [
            (false, None, false),
            (true, None, true),
            (false, later, false),
            // A CA file changes while the announcement lasts.
            (true, later, false),
            (false, past, true),
            (true, past, true),
        ] {
            assert_eq!(is_server_due(changed, serve_with_new_key_at, now), due);
        }
    }
}
