//! Responses from merged discovery: their freshness, their encodings, and who may read them.

use super::*;

#[tokio::test]
async fn a_matching_etag_gets_304() {
    let view = mixed();
    let etag = view
        .document(DiscoveryRoot::Apis)
        .etag
        .to_str()
        .unwrap()
        .to_owned();
    assert_eq!(etag.len(), 130);
    for (known, status) in [
        (etag.clone(), 304),
        (format!("\"other\", W/{etag}"), 304),
        ("*".to_owned(), 304),
        ("\"ours\"".to_owned(), 200),
    ] {
        let mut head = get("/apis", V2);
        head.headers.insert(IF_NONE_MATCH, known.parse().unwrap());
        let response = response(&view, head, not_modified()).await;
        assert_eq!(response.status.as_u16(), status);
        assert_eq!(response.headers[ETAG], etag);
        assert_eq!(response.body.is_empty(), status == 304);
    }
}

/// The document of the local server is newer than the view: the peer controller reads it again.
#[tokio::test]
async fn new_apis_of_the_local_server_are_visible_at_once() {
    let before = mixed();
    let apis = [&LOCAL[..], &["new.example.com/v1:things"]].concat();
    let etag: HeaderValue = "\"news\"".parse().unwrap();
    let newer = Document::clone(&document(&apis, false));
    let after = before.with_local_document(DiscoveryRoot::Apis, newer, Some(etag.clone()));
    let after = Arc::new(after);
    let mut local = local_response(200, V2, "its document");
    local.headers_mut().insert(ETAG, etag);
    let (cluster_handle, mut requests) = ClusterHandle::new(own());
    let controller = async {
        let reply = requests.refreshes.recv().await.unwrap();
        cluster_handle.cluster.store(Arc::new(Cluster {
            view: Some(after.clone()),
            ..Cluster::default()
        }));
        reply.send(()).unwrap();
    };
    let response = response_of(&cluster_handle, &before, get("/apis", V2), local);
    let (response, ()) = tokio::join!(response, controller);
    let text = String::from_utf8_lossy(&response.body);
    for group in ["a.example.com", "b.example.com", "new.example.com"] {
        assert!(text.contains(group), "{text}");
    }
    assert_eq!(
        response.headers[ETAG],
        after.document(DiscoveryRoot::Apis).etag
    );
}

/// The peer controller has ended, because the bridge leaves.
#[tokio::test]
async fn new_apis_are_merged_without_the_peer_controller_too() {
    let view = mixed();
    let apis = [&LOCAL[..], &["new.example.com/v1:things"]].concat();
    let now = document(&apis, false).write(Format::Json, Layout::Compact);
    let mut local = local_response(200, V2, now);
    local
        .headers_mut()
        .insert(ETAG, "\"news\"".parse().unwrap());
    let response = response(&view, get("/apis", V2), local).await;
    let text = String::from_utf8_lossy(&response.body);
    for group in ["a.example.com", "b.example.com", "new.example.com"] {
        assert!(text.contains(group), "{text}");
    }
}

#[tokio::test]
async fn a_document_is_served_in_all_formats_and_long_documents_are_compressed() {
    let view = mixed();
    for (format, media) in [
        (Format::Json, "application/json"),
        (Format::Yaml, "application/yaml"),
        (Format::Protobuf, "application/vnd.kubernetes.protobuf"),
    ] {
        let accept = V2.replace("application/json", media);
        let response = response(&view, get("/apis", &accept), not_modified()).await;
        assert_eq!(response.content_type(), accept);
        let expected = view
            .document(DiscoveryRoot::Apis)
            .document
            .write(format, Layout::Compact);
        assert_eq!(response.body, expected, "{media}");
    }

    let many: Vec<_> = (0..2_000)
        .map(|number| format!("a.example.com/v1:things-with-a-long-name-{number}"))
        .collect();
    let many: Vec<_> = many.iter().map(String::as_str).collect();
    let long = self::view(36, "a", &many).unwrap();
    for (view, compressed) in [(&view, false), (&long, true)] {
        let mut head = get("/apis", V2);
        let encodings = "deflate, gzip;q=1.0";
        head.headers
            .insert(ACCEPT_ENCODING, encodings.parse().unwrap());
        let response = response(view, head, not_modified()).await;
        assert_eq!(response.headers.contains_key(CONTENT_ENCODING), compressed);
        if compressed {
            use std::io::Read as _;
            let mut text = Vec::new();
            let mut decoder = flate2::read::GzDecoder::new(&*response.body);
            decoder.read_to_end(&mut text).unwrap();
            assert_eq!(text, view.document(DiscoveryRoot::Apis).json);
            assert!(response.body.len() < text.len() / 4);
        }
    }
}

#[tokio::test]
async fn permissions_of_the_local_server_are_cached() {
    let view = mixed();
    let (cluster_handle, _) = ClusterHandle::new(own());
    let metrics = DiscoveryMetrics::register(&mut Registry::default());
    let merged = |path: &str, caller: &Caller| {
        MergedResponse::of(
            &get(path, V2),
            path,
            caller,
            &view,
            CompleteDiscovery::Enabled,
        )
        .unwrap()
    };
    let anonymous = || merged("/apis", &Caller::Anonymous);
    assert!(!anonymous().is_permitted(&cluster_handle));
    let refused = local_response(403, "text/plain", "no");
    let _ = anonymous()
        .replace(refused, &cluster_handle, &metrics)
        .await;
    assert!(!anonymous().is_permitted(&cluster_handle));
    let allowed = anonymous().replace(not_modified(), &cluster_handle, &metrics);
    let _ = allowed.await;
    assert!(anonymous().is_permitted(&cluster_handle));
    // Discovery of the local server cannot be read, so the permission alone is not enough.
    let cached = anonymous();
    let cached = cached.cached_response(&cluster_handle, &metrics);
    assert!(cached.await.is_none());
    let now = Some(Instant::now());
    let cluster = Cluster {
        view: Some(view.clone()),
        local_discovery: LocalDiscoveryState {
            polled_at: now,
            watched_since: now,
            ..LocalDiscoveryState::default()
        },
        ..Cluster::default()
    };
    let confirmation = &cluster.local_health.confirmation;
    confirmation.refute(confirmation.doubts());
    cluster_handle.cluster.store(Arc::new(cluster));
    let response = anonymous()
        .cached_response(&cluster_handle, &metrics)
        .await
        .unwrap();
    assert_eq!(
        response.headers()[ETAG],
        view.document(DiscoveryRoot::Apis).etag
    );
    assert!(response.headers().contains_key("date"));
    // Not for another caller, and not for another path.
    assert!(!merged("/api", &Caller::Anonymous).is_permitted(&cluster_handle));
    assert!(!merged("/apis", &Caller::Bearer).is_permitted(&cluster_handle));
    // A denial revokes the permission.
    let refused = local_response(403, "text/plain", "no");
    let _ = anonymous()
        .replace(refused, &cluster_handle, &metrics)
        .await;
    assert!(!anonymous().is_permitted(&cluster_handle));
}
