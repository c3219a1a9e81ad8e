//! What is answered in the stead of the local server, once that has said that
//! the caller may read.

use std::sync::{Arc, TryLockError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{
    CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, DATE, ETAG, IF_NONE_MATCH,
    LAST_MODIFIED, VARY,
};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use skewbridge_discovery::lists::{ApiGroup, ApiGroupList, ApiResourceList};
use skewbridge_discovery::{Document, DocumentEncoding, Object};
use skewbridge_k8s_api::cbor;
use skewbridge_k8s_api::content_negotiation::{Format, content_type};
use skewbridge_k8s_api::status::Status;
use tokio::time::timeout;

use crate::authn::Caller;
use crate::cluster_state::{ClusterHandle, ResyncHint};
use crate::discovery_view::discovery_request::Form;
use crate::discovery_view::encoded_document::Sent;
use crate::discovery_view::{Complete, Credential, Question, View, Which};
use crate::gzip;
use crate::metrics::discovery::{DiscoveryMetrics, Fallback};
use crate::openapi::Published;
use skewbridge_http_engine::body::ResponseBody;

/// A document of a cluster with very many custom resources has some 2 MiB.
const MAX_ANSWER: usize = 32 * 1024 * 1024;

/// How long the local server may take to send it.
const PATIENCE: Duration = Duration::from_secs(30);

/// A request that is answered from the view.
#[derive(Debug)]
pub(crate) struct MergedResponse {
    pub(super) view: Arc<View>,
    question: Question,
    credential: Option<Credential>,
    /// What the client has already.
    pub(super) known: Option<HeaderValue>,
    pub(super) may_gzip: bool,
    pub(super) head_only: bool,
    /// Of OpenAPI, the hash under which the client expects to find it.
    pub(super) hash: Option<String>,
    /// And what is on the shelf.
    pub(super) before: Option<Arc<Published>>,
}

/// What became of the local server's answer.
pub(crate) type Replaced = Result<Response<ResponseBody>, Status>;

impl MergedResponse {
    /// Whether a request is to be answered from the view.
    pub(crate) fn of(
        head: &Parts,
        path: &str,
        caller: &Caller,
        view: &Arc<View>,
        complete: Complete,
    ) -> Option<Self> {
        let question = Question::of(head, path, view, complete)?;
        Some(Self {
            view: view.clone(),
            question,
            credential: Credential::of(caller, head),
            known: head.headers.get(IF_NONE_MATCH).cloned(),
            may_gzip: gzip::is_accepted(&head.headers),
            head_only: head.method == Method::HEAD,
            hash: hash(head.uri.query()),
            before: None,
        })
    }

    /// Makes the request one to the local server.
    pub(crate) fn ask_local(&mut self, head: &mut Parts, cluster_handle: &ClusterHandle) {
        self.question.ask_local(head, &self.view);
        if let Question::OpenApi(page, format) = &self.question {
            self.before = cluster_handle.openapi.cache.get(page, *format);
            let before = self.before.as_ref();
            if let Some(etag) = before.and_then(|before| before.local_etag.clone()) {
                head.headers.insert(IF_NONE_MATCH, etag);
            }
        }
    }

    /// Whether the local server has lately let this caller read this.
    pub(crate) fn is_permitted(&self, cluster_handle: &ClusterHandle) -> bool {
        let Some(credential) = &self.credential else {
            return false;
        };
        matches!(self.question, Question::Document(..))
            && cluster_handle
                .discovery_authz
                .is_given(credential, Instant::now())
    }

    /// The answer to one who may read. The local server is not asked in the caller's
    /// name, but what it serves is looked at, for all who ask at that moment: what was
    /// made a moment ago is there.
    pub(crate) async fn recall(
        &self,
        cluster_handle: &ClusterHandle,
    ) -> Option<Response<ResponseBody>> {
        let Question::Document(which, wish) = self.question else {
            return None;
        };
        let cluster = cluster_handle.refresh_local().await;
        let view = cluster.view.as_ref().unwrap_or(&self.view);
        let mut answer = Response::new(ResponseBody::empty());
        answer
            .headers_mut()
            .insert(DATE, skewbridge_http_engine::http_date::now());
        self.document(view, which, wish, &mut answer);
        Some(answer)
    }

    /// Takes the local server's place, if it lets the caller read.
    pub(crate) async fn take_place_of(
        self,
        answer: Response<ResponseBody>,
        cluster_handle: &ClusterHandle,
        metrics: &DiscoveryMetrics,
    ) -> Replaced {
        let allowed = matches!(
            answer.status(),
            StatusCode::OK
                | StatusCode::NOT_MODIFIED
                | StatusCode::NOT_FOUND
                // A document of OpenAPI that has another hash here.
                | StatusCode::MOVED_PERMANENTLY
        );
        if let (Question::Document(..), Some(credential)) = (&self.question, self.credential) {
            match answer.status() {
                StatusCode::OK | StatusCode::NOT_MODIFIED => {
                    cluster_handle
                        .discovery_authz
                        .give(credential, Instant::now());
                }
                _ => cluster_handle.discovery_authz.withdraw(&credential),
            }
        }
        if !allowed {
            return Ok(answer);
        }
        match &self.question {
            Question::OpenApiIndex => self.replace_index(answer, cluster_handle, metrics).await,
            Question::OpenApi(page, format) => {
                let (page, format) = (page.clone(), *format);
                self.replace_openapi(page, format, answer, cluster_handle, metrics)
                    .await
            }
            Question::Document(which, wish) => {
                let (which, wish) = (*which, *wish);
                self.replace_document(which, wish, answer, cluster_handle, metrics)
                    .await
            }
            Question::Groups(form) => {
                let (form, view) = (*form, self.view.clone());
                self.replace_list(answer, form, metrics, |said| {
                    let said = ApiGroupList::parse(said?).ok()?;
                    Some(complete_groups(&view, said))
                })
                .await
            }
            Question::Group(name, form) => {
                let (form, view, name) = (*form, self.view.clone(), name.clone());
                self.replace_list(answer, form, metrics, |said| {
                    let said = said.map(ApiGroup::parse).transpose().ok()?;
                    complete_group(&view, &name, said)
                })
                .await
            }
            Question::Resources(group, version, form) => {
                let (form, view) = (*form, self.view.clone());
                let (group, version) = (group.clone(), version.clone());
                self.replace_list(answer, form, metrics, |said| {
                    let whole = view.version(&group, &version).0?;
                    let Some(said) = said else {
                        return Some(ApiResourceList::from_version(&group, whole));
                    };
                    let mut list = ApiResourceList::parse(said).ok()?;
                    list.merge_version(whole);
                    Some(list)
                })
                .await
            }
        }
    }

    async fn replace_document(
        self,
        which: Which,
        wish: DocumentEncoding,
        mut answer: Response<ResponseBody>,
        cluster_handle: &ClusterHandle,
        metrics: &DiscoveryMetrics,
    ) -> Replaced {
        if answer.status() == StatusCode::NOT_FOUND {
            return Ok(answer);
        }
        if is_longer(&answer, MAX_ANSWER) {
            metrics.fallback(Fallback::NotMerged);
            return Ok(answer);
        }
        let etag = answer.headers().get(ETAG).cloned();
        let is_news = answer.status() == StatusCode::OK
            && !self.head_only
            && etag.is_some()
            && etag.as_ref() != self.view.local_etag(which);
        if is_news {
            // Something was made or deleted a moment ago, and whoever did it may be
            // the one who asks.
            cluster_handle.hint(ResyncHint::LocalChanged);
            let said = take_whole(&mut answer).await?;
            let Some(view) = self.renewed(which, &said, etag, cluster_handle, metrics) else {
                // What the server says, and no more.
                metrics.fallback(Fallback::NotMerged);
                *answer.body_mut() = ResponseBody::full(said);
                return Ok(answer);
            };
            self.document(&view, which, wish, &mut answer);
        } else {
            metrics.hit();
            self.document(&self.view, which, wish, &mut answer);
        }
        Ok(answer)
    }

    /// The view with what the local server has just said. It is made once, however
    /// many ask at that moment; meanwhile the others get the one from before.
    fn renewed(
        &self,
        which: Which,
        said: &[u8],
        etag: Option<HeaderValue>,
        cluster_handle: &ClusterHandle,
        metrics: &DiscoveryMetrics,
    ) -> Option<Arc<View>> {
        let mut renewed = match cluster_handle.renewed.try_lock() {
            Ok(renewed) => renewed,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Some(self.view.clone()),
        };
        if let Some((of, view)) = &*renewed
            && Arc::ptr_eq(of, &self.view)
            && view.local_etag(which) == etag.as_ref()
        {
            metrics.hit();
            return Some(view.clone());
        }
        metrics.miss();
        let document = Document::parse(said).ok()?;
        let view = Arc::new(self.view.renewed(which, document, etag));
        *renewed = Some((self.view.clone(), view.clone()));
        Some(view)
    }

    fn document(
        &self,
        view: &View,
        which: Which,
        wish: DocumentEncoding,
        answer: &mut Response<ResponseBody>,
    ) {
        let page = view.page(which);
        let is_known = (self.known.as_ref())
            .is_some_and(|known| names(known.as_bytes(), page.etag.as_bytes()));
        let headers = answer.headers_mut();
        headers.insert(ETAG, page.etag.clone());
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("public"));
        headers.insert(VARY, HeaderValue::from_static("Accept"));
        if is_known {
            for name in [CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE] {
                headers.remove(name);
            }
            *answer.status_mut() = StatusCode::NOT_MODIFIED;
            *answer.body_mut() = ResponseBody::empty();
            return;
        }
        let content_type = HeaderValue::from_static(wish.content_type());
        self.send(page.written(wish, self.may_gzip), content_type, answer);
    }

    /// A list, of what the local server says (nothing, where it does not know the
    /// path) and of what the view has besides.
    async fn replace_list<T: Object>(
        self,
        answer: Response<ResponseBody>,
        form: Form,
        metrics: &DiscoveryMetrics,
        make: impl FnOnce(Option<&[u8]>) -> Option<T>,
    ) -> Replaced {
        let (head, body) = answer.into_parts();
        let answer = Response::from_parts(head, body);
        if self.head_only || is_longer(&answer, MAX_ANSWER) {
            return Ok(answer);
        }
        let (head, body) = answer.into_parts();
        let said = whole(body, MAX_ANSWER).await?;
        let is_cbor = is_cbor(&head.headers);
        let read = match (head.status, is_cbor) {
            (StatusCode::NOT_FOUND, _) => Ok(make(None)),
            (_, false) => Ok(make(Some(&said))),
            (_, true) => cbor::read(&said).map(|value| make(Some(value.to_string().as_bytes()))),
        };
        let mut answer = Response::from_parts(head, ResponseBody::empty());
        let Some(list) = read.ok().flatten() else {
            // What the server says, and no more.
            if answer.status() == StatusCode::OK {
                metrics.fallback(Fallback::NotMerged);
            }
            *answer.body_mut() = ResponseBody::full(said);
            return Ok(answer);
        };
        // In CBOR only where the server has said it so.
        let format = match form.format {
            Format::Cbor if !is_cbor => Format::Json,
            format => format,
        };
        for name in [LAST_MODIFIED, ETAG] {
            answer.headers_mut().remove(name);
        }
        let bytes: Bytes = list.write(format, form.layout).into();
        let sent = Sent::of(&bytes, self.may_gzip);
        *answer.status_mut() = StatusCode::OK;
        self.send(sent, content_type(format), &mut answer);
        Ok(answer)
    }

    pub(super) fn send(
        &self,
        sent: Sent,
        content_type: HeaderValue,
        answer: &mut Response<ResponseBody>,
    ) {
        let headers = answer.headers_mut();
        headers.insert(CONTENT_TYPE, content_type);
        headers.insert(CONTENT_LENGTH, sent.bytes.len().into());
        headers.remove(CONTENT_ENCODING);
        if sent.gzipped {
            headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            headers.append(VARY, HeaderValue::from_static("Accept-Encoding"));
        }
        *answer.status_mut() = StatusCode::OK;
        *answer.body_mut() = if self.head_only {
            ResponseBody::empty()
        } else {
            ResponseBody::full(sent.bytes)
        };
    }
}

/// All that the view has, and of what the local server says besides that which it
/// serves itself and which is too new to be known here.
fn complete_groups(view: &View, said: ApiGroupList) -> ApiGroupList {
    let mut list = ApiGroupList::from_document(&view.page(Which::Apis).document);
    // What all servers share is gone when the local one says so.
    list.groups.retain_mut(|group| {
        let listed = said.groups.iter().find(|it| it.name == group.name);
        view.leave_out_gone(group, listed);
        !group.versions.is_empty()
    });
    for mut group in said.groups {
        let may_list = |version: &str| view.may_list(&group.name, version);
        let mut versions = std::mem::take(&mut group.versions);
        versions.retain(|it| may_list(&it.version));
        match list.groups.iter_mut().find(|it| it.name == group.name) {
            Some(known) => known.add(versions),
            None if versions.is_empty() => {}
            None => {
                group.versions = versions;
                list.groups.push(group);
            }
        }
    }
    list
}

fn complete_group(view: &View, name: &str, said: Option<ApiGroup>) -> Option<ApiGroup> {
    let mut group = ApiGroup::from_group(view.group(name).0?);
    view.leave_out_gone(&mut group, said.as_ref());
    let mut versions = said.map(|said| said.versions).unwrap_or_default();
    versions.retain(|it| view.may_list(name, &it.version));
    group.add(versions);
    (!group.versions.is_empty()).then_some(group)
}

pub(super) async fn whole(body: ResponseBody, limit: usize) -> Result<Bytes, Status> {
    let read = timeout(PATIENCE, body.collect(limit)).await;
    match read {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(error)) => Err(Status::bad_gateway(error.to_string())),
        Err(_) => Err(Status::timeout(
            "the local kube-apiserver did not send discovery whole in time",
        )),
    }
}

async fn take_whole(answer: &mut Response<ResponseBody>) -> Result<Bytes, Status> {
    let body = std::mem::replace(answer.body_mut(), ResponseBody::empty());
    whole(body, MAX_ANSWER).await
}

/// Whether an answer says that it is longer than can be dealt with: then it is passed
/// on as it comes.
pub(super) fn is_longer(answer: &Response<ResponseBody>, limit: usize) -> bool {
    let length = answer.headers().get(CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    length.is_some_and(|length| length > limit)
}

fn hash(query: Option<&str>) -> Option<String> {
    let mut pairs = query?.split('&');
    let hash = pairs.find_map(|pair| pair.strip_prefix("hash="))?;
    (!hash.is_empty()).then(|| hash.to_owned())
}

fn is_cbor(headers: &HeaderMap) -> bool {
    let said = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    said.is_some_and(|it| it.starts_with(b"application/cbor"))
}

/// Whether a list of `ETag`s has this one, or all (RFC 9110, 13.1.2).
pub(super) fn names(list: &[u8], etag: &[u8]) -> bool {
    list.split(|byte| *byte == b',')
        .map(<[u8]>::trim_ascii)
        .any(|it| it == b"*" || it.strip_prefix(b"W/").unwrap_or(it) == etag)
}
