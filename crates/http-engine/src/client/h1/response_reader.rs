//! Reads the head of the response to one request.

use std::task::{Context, Poll};

use http::{Method, StatusCode};
use skewbridge_stream_io::Buffered;
use tokio::io::{AsyncRead, AsyncWrite};

use super::request_sender::RequestSender;
use crate::client::{RetryClass, SendError};
use crate::http1::{HeadTerminator, ResponseHead, parse_response};

/// Interim responses (such as 100 Continue) before the final one.
const MAX_INTERIM_RESPONSES: usize = 16;

/// The start of every response. A server that speaks another protocol is detected at once, not after a
/// blank line that may never arrive.
const RESPONSE_BEGINNING: &[u8] = b"HTTP/1.";

/// Reads until the head of the final response.
#[derive(Default)]
pub(super) struct ResponseReader {
    end: HeadTerminator,
    interim: usize,
}

impl ResponseReader {
    /// Waits for the head of the final response. Interim responses are acted on.
    pub(super) fn poll<Io: AsyncRead + AsyncWrite + Unpin>(
        &mut self,
        stream: &mut Buffered<Io>,
        sender: &mut RequestSender,
        method: &Method,
        cx: &mut Context<'_>,
    ) -> Poll<Result<ResponseHead, H1Failure>> {
        let not_http = |cause: String| Poll::Ready(Err(H1Failure::NotHttp(cause)));
        loop {
            if let Some(cause) = sender.client.take() {
                return Poll::Ready(Err(H1Failure::Client(cause)));
            }
            while self.end.reached(&stream.input) {
                self.end = HeadTerminator::default();
                match parse_response(&mut stream.input, method) {
                    Ok(None) => break,
                    Ok(Some(head)) if head.status == StatusCode::SWITCHING_PROTOCOLS => {
                        return Poll::Ready(Ok(head));
                    }
                    Ok(Some(head)) if head.status.is_informational() => {
                        self.interim += 1;
                        if self.interim > MAX_INTERIM_RESPONSES {
                            return not_http("too many interim responses".to_owned());
                        }
                        if head.status == StatusCode::CONTINUE
                            && sender.awaiting_continue.take().is_some()
                        {
                            // The body may be sent now, at the caller's next poll.
                            cx.waker().wake_by_ref();
                        }
                    }
                    Ok(Some(head)) => return Poll::Ready(Ok(head)),
                    Err(error) => return not_http(error.to_string()),
                }
            }
            let beginning = RESPONSE_BEGINNING.iter().zip(&stream.input);
            if beginning
                .into_iter()
                .any(|(expected, byte)| expected != byte)
            {
                return not_http("the response does not begin with HTTP/1.".to_owned());
            }
            match stream.poll_fill(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(0)) => {
                    let cause = sender.failed.take();
                    let cause = cause.unwrap_or_else(|| "no response came".to_owned());
                    return Poll::Ready(Err(H1Failure::Closed(cause)));
                }
                Poll::Ready(Ok(_)) => sender.response_begun = true,
                Poll::Ready(Err(error)) => {
                    return Poll::Ready(Err(H1Failure::Closed(error.to_string())));
                }
            }
        }
    }
}

/// Why there is no response.
pub(super) enum H1Failure {
    Closed(String),
    NotHttp(String),
    Client(String),
}

impl H1Failure {
    pub(super) fn into_error(
        self,
        used: bool,
        retry_class: RetryClass,
        sender: &RequestSender,
    ) -> SendError {
        match self {
            Self::Client(cause) => SendError::Client(cause),
            Self::NotHttp(cause) => SendError::InvalidResponse(cause),
            Self::Closed(cause) if !sender.started => SendError::NotProcessed(cause),
            // A reused connection that ends without a byte of a response was most likely closed while the
            // request was in transit. That is uncertain, so only idempotent requests are retried (RFC 9112,
            // 9.3.1).
            Self::Closed(cause)
                if used && !sender.response_begun && retry_class == RetryClass::Idempotent =>
            {
                SendError::NotProcessed(cause)
            }
            Self::Closed(cause) => SendError::ConnectionLost(cause),
        }
    }
}
