//! `/apis` of the whole cluster: what all servers serve, as one document
//! (KEP-4020, Discovery Merging). It is made when something has changed, on the
//! control thread, and requests read the last one.

use std::sync::Arc;
use std::time::Instant;

use aws_lc_rs::digest::{SHA512, digest};
use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, ETAG, IF_NONE_MATCH, VARY};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use skewbridge_api::media::parse_accept;
use skewbridge_api::version::Version;
use skewbridge_discovery::accept::{V2, V2_BETA1};
use skewbridge_discovery::document::Schema;
use skewbridge_discovery::{Document, Wanted, merge};
use skewbridge_peers::{Excluded, Identity, Peers, Served};

use crate::body::ResponseBody;

/// The document of the cluster, ready to be sent.
#[derive(Debug)]
pub struct Merged {
    v2: Written,
    v2_beta1: Written,
    /// Made of these, in the order of identities.
    sources: Vec<Arc<Document>>,
    shared: Arc<Excluded>,
    /// What the local server calls its own document.
    local_etag: Option<HeaderValue>,
    /// Which schemas clients get from it.
    local_version: Option<Version>,
}

#[derive(Debug)]
struct Written {
    bytes: Bytes,
    etag: HeaderValue,
}

/// The first servers with v2beta1, with v2, and without v2beta1.
const SINCE_BETA: (u16, u16) = (1, 26);
const SINCE_V2: (u16, u16) = (1, 30);
const WITHOUT_BETA: (u16, u16) = (1, 33);

impl Merged {
    /// Merges what is known; the document from before where that is the same.
    /// None where there are no peers that have told: the local document is all.
    pub(crate) fn of(
        own: &Identity,
        local: &Arc<Served>,
        peers: &Peers,
        shared: &Arc<Excluded>,
        before: Option<&Arc<Self>>,
    ) -> Option<Arc<Self>> {
        let told =
            (peers.peers.iter()).filter_map(|peer| Some((&peer.identity, peer.served.as_ref()?)));
        let mut servers: Vec<_> = told.chain([(own, local)]).collect();
        if servers.len() == 1 {
            return None;
        }
        servers.sort_by_key(|(identity, _)| *identity);
        let sources: Vec<_> = servers
            .iter()
            .map(|(_, served)| served.documents[1].clone())
            .collect();
        if let Some(before) = before
            && before.is_of(&sources, shared)
        {
            return Some(before.clone());
        }
        let now = Instant::now();
        let documents: Vec<_> = (servers.iter())
            .map(|(identity, served)| {
                served.documents[1].without(|group, version| {
                    // The core group is not part of `/apis`.
                    let theirs = *identity != own && shared.contains(group, version, now);
                    group.is_empty() || theirs
                })
            })
            .collect();
        let mut document = merge(&documents.iter().collect::<Vec<_>>());
        Some(Arc::new(Self {
            v2: Written::of(&document)?,
            v2_beta1: {
                document.schema = Schema::V2Beta1;
                Written::of(&document)?
            },
            sources,
            shared: shared.clone(),
            local_etag: (local.etags[1].as_ref()).and_then(|etag| HeaderValue::from_str(etag).ok()),
            local_version: local.version,
        }))
    }

    fn is_of(&self, sources: &[Arc<Document>], shared: &Arc<Excluded>) -> bool {
        let same = |(one, other): (&Arc<Document>, &Arc<Document>)| Arc::ptr_eq(one, other);
        self.sources.len() == sources.len()
            && self.sources.iter().zip(sources).all(same)
            && Arc::ptr_eq(&self.shared, shared)
    }

    /// Whether this request is to be answered with it. Then what goes to the
    /// local server is a question whether this caller may read discovery: its
    /// own request, with our knowledge of the local document as the condition.
    pub(crate) fn asked_for(self: &Arc<Self>, head: &mut Parts) -> Option<Stead> {
        let path = head.uri.path();
        if !matches!(head.method, Method::GET | Method::HEAD) || !matches!(path, "/apis" | "/apis/")
        {
            return None;
        }
        let Wanted::Merged(schema) =
            Wanted::of(parse_accept(&head.headers), |schema| self.is_spoken(schema))
        else {
            return None;
        };
        let known = head.headers.remove(IF_NONE_MATCH);
        if let Some(etag) = &self.local_etag {
            head.headers.insert(IF_NONE_MATCH, etag.clone());
        }
        Some(Stead {
            merged: self.clone(),
            schema,
            known,
            head_only: head.method == Method::HEAD,
        })
    }

    /// As the local server: a client gets no other schema through a bridge.
    fn is_spoken(&self, schema: Schema) -> bool {
        let Some(version) = &self.local_version else {
            return schema == Schema::V2;
        };
        let version = (version.major, version.minor);
        match schema {
            Schema::V2 => version >= SINCE_V2,
            Schema::V2Beta1 => (SINCE_BETA..WITHOUT_BETA).contains(&version),
        }
    }
}

impl Written {
    fn of(document: &Document) -> Option<Self> {
        let json = serde_json::to_vec(document).ok()?;
        let mut etag = String::with_capacity(130);
        etag.push('"');
        for byte in digest(&SHA512, &json).as_ref() {
            use std::fmt::Write as _;
            // Writing to a String does not fail.
            let _ = write!(etag, "{byte:02X}");
        }
        etag.push('"');
        Some(Self {
            bytes: json.into(),
            etag: HeaderValue::try_from(etag).ok()?,
        })
    }
}

/// What is answered in the stead of the local document.
#[derive(Debug)]
pub(crate) struct Stead {
    merged: Arc<Merged>,
    schema: Schema,
    /// What the client has already.
    known: Option<HeaderValue>,
    head_only: bool,
}

impl Stead {
    /// Takes the local server's place, if it allows the caller to read.
    pub(crate) fn take_place_of(self, answer: &mut Response<ResponseBody>) {
        if !matches!(answer.status(), StatusCode::OK | StatusCode::NOT_MODIFIED) {
            return;
        }
        let (written, content_type) = match self.schema {
            Schema::V2 => (&self.merged.v2, V2),
            Schema::V2Beta1 => (&self.merged.v2_beta1, V2_BETA1),
        };
        let is_known = (self.known.as_ref())
            .is_some_and(|known| names(known.as_bytes(), written.etag.as_bytes()));
        let headers = answer.headers_mut();
        headers.remove(CONTENT_ENCODING);
        headers.insert(ETAG, written.etag.clone());
        vary(headers);
        if is_known {
            headers.remove(CONTENT_LENGTH);
            headers.remove(CONTENT_TYPE);
            *answer.status_mut() = StatusCode::NOT_MODIFIED;
            *answer.body_mut() = ResponseBody::empty();
            return;
        }
        headers.insert(CONTENT_LENGTH, written.bytes.len().into());
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        *answer.status_mut() = StatusCode::OK;
        *answer.body_mut() = if self.head_only {
            ResponseBody::empty()
        } else {
            ResponseBody::full(written.bytes.clone())
        };
    }
}

/// Whether a list of `ETag`s has this one, or all (RFC 9110, 13.1.2).
fn names(list: &[u8], etag: &[u8]) -> bool {
    list.split(|byte| *byte == b',')
        .map(<[u8]>::trim_ascii)
        .any(|it| it == b"*" || it.strip_prefix(b"W/").unwrap_or(it) == etag)
}

fn vary(headers: &mut HeaderMap) {
    let says_accept = headers.get_all(VARY).iter().any(|value| {
        let mut words = value.as_bytes().split(|byte| *byte == b',');
        words.any(|word| word.trim_ascii().eq_ignore_ascii_case(b"accept"))
    });
    if !says_accept {
        headers.append(VARY, HeaderValue::from_static("Accept"));
    }
}

#[cfg(test)]
mod tests {
    use http::Request;
    use http::header::ACCEPT;
    use serde_json::json;
    use skewbridge_discovery::Index;
    use skewbridge_discovery::accept::{LEGACY, LOCAL_DOCUMENT, V2_NOPEER};
    use skewbridge_peers::{Exclusions, Roster, Seen};
    use std::time::SystemTime;

    use super::*;

    fn served(groups: &[&str], etag: &str, minor: u16) -> Served {
        let items: Vec<_> = groups
            .iter()
            .map(|group| {
                json!({"metadata": {"name": group}, "versions": [{"version": "v1",
                    "freshness": "Current", "resources": [{"resource": "things",
                    "scope": "Cluster", "verbs": ["list"]}]}]})
            })
            .collect();
        let text = json!({"kind": "APIGroupDiscoveryList",
            "apiVersion": "apidiscovery.k8s.io/v2", "items": items});
        let document = Arc::new(Document::parse(text.to_string().as_bytes()).unwrap());
        Served {
            index: Index::new(&[&document]),
            documents: [Arc::default(), document],
            etags: [None, Some(etag.to_owned())],
            version: Some(Version {
                major: 1,
                minor,
                patch: 0,
            }),
        }
    }

    fn identity(name: &str) -> Identity {
        Identity::named(name).unwrap()
    }

    /// A local server `m` and a peer of this name, which has told.
    fn merged(minor: u16, peer: &str, groups: &[&str]) -> Option<Arc<Merged>> {
        let now = Instant::now();
        let mut roster = Roster::new(identity("m"));
        let lease = Seen {
            identity: identity(peer),
            holder: "h".to_owned(),
            resource_version: "1".to_owned(),
        };
        roster.leases(vec![lease], now);
        roster.addresses(
            &[(identity(peer), "127.0.0.1:1".parse().unwrap())].into(),
            now,
        );
        if !groups.is_empty() {
            roster.due(now);
            let told = Ok(served(groups, "theirs", 36));
            roster.fetched(&identity(peer), told, now, SystemTime::now(), 0.0);
        }
        let local = Arc::new(served(
            &["b.example.com", "d.example.com"],
            "\"ours\"",
            minor,
        ));
        let shared = Exclusions::new().snapshot();
        Merged::of(&identity("m"), &local, &roster.snapshot(), &shared, None)
    }

    fn groups(merged: &Merged) -> Vec<String> {
        let document = Document::parse(&merged.v2.bytes).unwrap();
        document
            .items
            .iter()
            .map(|group| group.name().to_owned())
            .collect()
    }

    fn head(method: &Method, path: &str, accept: &str) -> Parts {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(ACCEPT, accept);
        request.body(()).unwrap().into_parts().0
    }

    fn answer(status: StatusCode) -> Response<ResponseBody> {
        let mut answer = Response::new(ResponseBody::full("local".into()));
        *answer.status_mut() = status;
        answer
    }

    #[test]
    fn every_server_makes_the_same_of_it() {
        for peer in ["a", "z"] {
            let merged = merged(36, peer, &["a.example.com", "d.example.com"]).unwrap();
            let expected = ["a.example.com", "b.example.com", "d.example.com"];
            assert_eq!(groups(&merged), expected, "{peer}");
        }
    }

    #[test]
    fn without_a_peer_that_has_told_the_local_document_is_all() {
        assert!(merged(36, "a", &[]).is_none());
    }

    #[test]
    fn only_who_wants_the_merged_document_gets_it() {
        let beta_first = format!("{V2_BETA1},{V2}");
        let rows = [
            (36, Method::GET, "/apis", V2, Some(Schema::V2)),
            (36, Method::HEAD, "/apis/", V2, Some(Schema::V2)),
            (36, Method::GET, "/apis", &beta_first, Some(Schema::V2)),
            (28, Method::GET, "/apis", &beta_first, Some(Schema::V2Beta1)),
            (28, Method::GET, "/apis", V2, None),
            (25, Method::GET, "/apis", &beta_first, None),
            (31, Method::GET, "/apis", &beta_first, Some(Schema::V2Beta1)),
            (36, Method::GET, "/apis", V2_NOPEER, None),
            (36, Method::GET, "/apis", LEGACY, None),
            (36, Method::GET, "/apis/b.example.com", V2, None),
            (36, Method::GET, "/api", V2, None),
            (36, Method::POST, "/apis", V2, None),
        ];
        for (minor, method, path, accept, expected) in rows {
            let merged = merged(minor, "a", &["a.example.com"]).unwrap();
            let mut head = head(&method, path, accept);
            let stead = merged.asked_for(&mut head);
            let schema = stead.as_ref().map(|it| it.schema);
            assert_eq!(schema, expected, "{minor} {method} {path} {accept}");
            let condition = head.headers.get(IF_NONE_MATCH);
            assert_eq!(condition.is_some(), stead.is_some());
        }
    }

    /// Or two of them could keep telling each other of an API that neither has.
    #[test]
    fn a_peer_is_always_told_of_the_local_server_alone() {
        for minor in 24..40 {
            let merged = merged(minor, "a", &["a.example.com"]).unwrap();
            let mut head = head(&Method::GET, "/apis", LOCAL_DOCUMENT);
            assert!(merged.asked_for(&mut head).is_none(), "1.{minor}");
        }
    }

    #[test]
    fn the_local_server_says_who_may_read_it() {
        let merged = merged(36, "a", &["a.example.com"]).unwrap();
        for (status, replaced) in [
            (StatusCode::OK, true),
            (StatusCode::NOT_MODIFIED, true),
            (StatusCode::UNAUTHORIZED, false),
            (StatusCode::FORBIDDEN, false),
            (StatusCode::SERVICE_UNAVAILABLE, false),
        ] {
            let mut head = head(&Method::GET, "/apis", V2);
            let stead = merged.asked_for(&mut head).unwrap();
            assert_eq!(head.headers[IF_NONE_MATCH], "\"ours\"");
            let mut answer = answer(status);
            stead.take_place_of(&mut answer);
            let expected = if replaced { StatusCode::OK } else { status };
            assert_eq!(answer.status(), expected);
            assert_eq!(answer.headers().contains_key(ETAG), replaced);
        }
    }

    #[test]
    fn who_has_it_already_is_told_so() {
        let merged = merged(36, "a", &["a.example.com"]).unwrap();
        let etag = merged.v2.etag.to_str().unwrap().to_owned();
        assert_eq!(etag.len(), 130);
        for (known, status) in [
            (etag.clone(), 304),
            (format!("\"other\", W/{etag}"), 304),
            ("*".to_owned(), 304),
            ("\"ours\"".to_owned(), 200),
        ] {
            let mut head = head(&Method::GET, "/apis", V2);
            head.headers.insert(IF_NONE_MATCH, known.parse().unwrap());
            let stead = merged.asked_for(&mut head).unwrap();
            assert_eq!(head.headers[IF_NONE_MATCH], "\"ours\"");
            let mut answer = answer(StatusCode::NOT_MODIFIED);
            stead.take_place_of(&mut answer);
            assert_eq!(answer.status().as_u16(), status, "{known}");
            assert_eq!(answer.headers()[ETAG].to_str().unwrap(), etag);
            assert_eq!(answer.headers()[VARY], "Accept");
        }
    }
}
