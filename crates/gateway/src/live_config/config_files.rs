//! The files of the flags, and what the bridge makes of them: when one changes, the parts of the
//! live configuration that depend on it are replaced.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use arc_swap::{ArcSwap, ArcSwapOption};
use rustls::{ClientConfig, ServerConfig};
use skewbridge_http_engine::client::Keepalive;
use skewbridge_peer_directory::KeyDigest;

use super::egress_route::EgressRoute;
use super::watched_files::{WatchedFiles, refresh};
use super::{FileExpiry, LiveConfig, LoadError, ServerTargets, log_peering_conflict};
use crate::authn::TrustConfig;
use crate::config::{Config, UpstreamServer};
use crate::metrics::Metrics;
use crate::signatures::keys::SignatureKeys;
use crate::tls::ca_conflict::{
    CaConflict, Conflicts, front_proxy_conflict, request_header_conflict,
};
use crate::tls::files::{CaBundle, KeyPair};
use crate::tls::own_certificates::{
    CaFile, FlagCertificate, FrontProxy, OwnCertificates, warnings,
};
use crate::tls::serving_key::{key_digest, rotated};
use crate::tls::{client_config, server_config};
use crate::upstream::{
    Dialer, PeerTarget, PresentedCertificates, Role, Target, UpstreamTargets, authority,
    replaceable_server_keepalive,
};
use crate::upstream_error_hint::UpstreamFlags;

const SIGNATURE_KEYS_FLAG: &str = "--http-signature-keys";

/// The interval between two checks of the files.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The interval between two warnings about certificates while the files do not change.
const WARNING_INTERVAL: Duration = Duration::from_hours(24);

/// How long a new serving key is published before it is used. Peers pin the published keys; with a
/// working registry they get a change within milliseconds.
const KEY_ANNOUNCEMENT_PERIOD: Duration = Duration::from_secs(3);

/// All watched files.
pub struct ConfigFiles {
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

impl ConfigFiles {
    /// Reads all files.
    #[allow(clippy::too_many_lines)] // one entry for each file
    pub fn load(config: &Config, metrics: Metrics) -> Result<(Self, LiveConfig), LoadError> {
        let callers = &config.callers;
        let files = Self {
            serving: WatchedFiles::key_pair("--tls-cert-file", &config.serving.key_pair)?,
            client_ca: callers
                .client_ca
                .as_ref()
                .map(|path| WatchedFiles::ca("--client-ca-file", path))
                .transpose()?,
            request_header_ca: callers
                .request_header
                .as_ref()
                .map(|it| WatchedFiles::ca("--requestheader-client-ca-file", &it.ca))
                .transpose()?,
            upstream_ca: WatchedFiles::ca("--upstream-ca-file", &config.upstream.ca)?,
            front_proxy: config
                .upstream
                .front_proxy
                .as_ref()
                .map(|it| WatchedFiles::key_pair("--proxy-client-cert-file", it))
                .transpose()?,
            peer_ca: (config.peers.ca.as_ref())
                .map(|path| WatchedFiles::ca("--peer-ca-file", path))
                .transpose()?,
            etcd_ca: (config.peers.etcd.ca.as_ref())
                .map(|path| WatchedFiles::ca("--etcd-cafile", path))
                .transpose()?,
            etcd_pair: (config.peers.etcd.key_pair.as_ref())
                .map(|it| WatchedFiles::key_pair("--etcd-certfile", it))
                .transpose()?,
            signature_keys: (callers.signatures.as_ref())
                .map(|it| {
                    let (path, headers) = (it.keys.clone(), callers.headers.clone());
                    WatchedFiles::new(SIGNATURE_KEYS_FLAG, vec![path.clone()], move || {
                        SignatureKeys::load(&path, &headers).map(Arc::new)
                    })
                })
                .transpose()?,
            egress: EgressRoute::load(&config.peers.egress)?,
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
                path: watched.first_path()?.to_owned(),
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
                .and_then(|it| Some(FrontProxy::new(it.first_path()?, &it.value))),
        }
    }

    /// Logs warnings about certificates.
    fn log_warnings(&self) {
        fn flag_certificate(watched: &WatchedFiles<KeyPair>) -> Option<FlagCertificate<'_>> {
            Some(FlagCertificate {
                flag: watched.flag,
                path: watched.first_path()?,
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
