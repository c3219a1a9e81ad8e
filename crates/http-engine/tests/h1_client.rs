//! HTTP/1.1 towards a server, over streams that block and fail.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::request::Parts;
use http::{Request, StatusCode};
use skewbridge_http_engine::body::{BodySource, Frame, PollFrame, RequestBody};
use skewbridge_http_engine::client::h1::{ConnectionReturn, H1Connection};
use skewbridge_http_engine::client::{ReplayBody, RetryClass, SendError, UpstreamResponse};
use skewbridge_testkit::TEST_TIMEOUT;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::time::timeout;

/// Drops returned connections.
#[derive(Debug)]
struct DiscardConnections;

impl<Io: Send> ConnectionReturn<Io> for DiscardConnections {
    fn return_connection(&self, _: H1Connection<Io>) {}
}

fn post(length: usize) -> Parts {
    let request = Request::post("/x").header("host", "k");
    let request = request.header("content-length", length);
    request.body(()).unwrap().into_parts().0
}

fn replay(body: RequestBody) -> ReplayBody {
    ReplayBody::new(body, Arc::new(()), RetryClass::OnlyIfUnsent)
}

/// A body that is complete as soon as the response has begun.
#[derive(Debug)]
struct LateBody {
    response_begun: Arc<AtomicBool>,
    bytes: Bytes,
}

impl BodySource for LateBody {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> PollFrame {
        if !self.response_begun.load(Ordering::Relaxed) {
            // Polled again with the response.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let bytes = std::mem::take(&mut self.bytes);
        Poll::Ready((!bytes.is_empty()).then_some(Ok(Frame::Data(bytes))))
    }

    fn buffered(&mut self) -> usize {
        0
    }

    fn is_done(&self) -> bool {
        self.bytes.is_empty()
    }
}

#[tokio::test]
async fn the_end_of_a_request_body_is_sent_while_the_response_is_read() {
    const LENGTH: usize = 8 * 1024;
    // The server's receive buffer is smaller than the body.
    let (io, mut server) = tokio::io::duplex(1024);
    let response_begun = Arc::new(AtomicBool::new(false));
    let body = LateBody {
        response_begun: response_begun.clone(),
        bytes: vec![b'x'; LENGTH].into(),
    };
    let serving = tokio::spawn(async move {
        let mut received = Vec::new();
        while !received.ends_with(b"\r\n\r\n") {
            received.push(server.read_u8().await.unwrap());
        }
        let head = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n";
        server.write_all(head).await.unwrap();
        let mut body = vec![0; LENGTH];
        server.read_exact(&mut body).await.unwrap();
        server.write_all(b"done").await.unwrap();
    });
    let mut request = replay(RequestBody::Stream(Box::new(body)));
    let connection = H1Connection::new(io, None, None);
    let head = post(LENGTH);
    let sent = connection.send(&head, &mut request, Arc::new(DiscardConnections));
    let response = timeout(TEST_TIMEOUT, sent).await.unwrap().unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    response_begun.store(true, Ordering::Relaxed);
    let UpstreamResponse::Response(response) = response.into_response(request) else {
        panic!("upgraded");
    };
    let mut body = response.into_body();
    let frame = timeout(TEST_TIMEOUT, poll_fn(|cx| body.poll_frame(cx))).await;
    let Ok(Some(Ok(Frame::Data(data)))) = frame else {
        panic!("{frame:?}");
    };
    assert_eq!(data, "done");
    serving.await.unwrap();
}

/// Accepts this many bytes, then fails.
struct FailingWrites(usize);

impl AsyncRead for FailingWrites {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        _: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()))
    }
}

impl AsyncWrite for FailingWrites {
    fn poll_write(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let accepted = self.0.min(bytes.len());
        self.0 -= accepted;
        Poll::Ready(match accepted {
            0 => Err(io::ErrorKind::ConnectionReset.into()),
            accepted => Ok(accepted),
        })
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// A part of one TLS record cannot be decrypted. Of several records, the first may have arrived.
#[tokio::test]
async fn a_failed_write_may_have_been_processed_unless_it_was_a_part_of_one_tls_record() {
    for (accepted, length, is_safe) in [
        (0, 10, true),
        (0, 10_000, true),
        // More than one record was handed over at once.
        (0, 40_000, false),
        // A part was accepted.
        (1, 10, false),
        (100, 10_000, false),
        // All was accepted, and the flush failed.
        (1_000_000, 10, false),
    ] {
        let connection = H1Connection::new(FailingWrites(accepted), None, None);
        let mut body = replay(RequestBody::from(Bytes::from(vec![b'x'; length])));
        let head = post(length);
        let error = connection.send(&head, &mut body, Arc::new(DiscardConnections));
        let Err(error) = error.await else {
            panic!("a response");
        };
        assert_eq!(
            error.is_safe_to_retry(),
            is_safe,
            "{accepted} of {length}: {error}"
        );
        let expected = if is_safe {
            "NotProcessed"
        } else {
            "ConnectionLost"
        };
        assert!(
            matches!(
                (&error, expected),
                (SendError::NotProcessed(_), "NotProcessed")
                    | (SendError::ConnectionLost(_), "ConnectionLost")
            ),
            "{error:?}"
        );
    }
}
