//! A 401 that may be a workload's own: who says it is in its body.

use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::BytesMut;
use http::{HeaderMap, StatusCode};
use skewbridge_client::ErrorResponse;

use super::body::{AnyBody, Body, Frame, PollFrame};
use super::dial::Standing;

/// More than any Status that says who nobody is.
const MAX_STATUS: usize = 16 * 1024;

/// The body of a 401 on its way to the client. If it turns out to be upstream's own, what
/// the request was sent with is told so before the client has its end.
pub(super) struct Overheard {
    body: AnyBody,
    listening: Option<Listening>,
}

struct Listening {
    heard: BytesMut,
    standing: Arc<dyn Standing>,
    /// With which the request was sent.
    headers: HeaderMap,
}

impl Overheard {
    pub(super) fn new(body: AnyBody, standing: Arc<dyn Standing>, headers: HeaderMap) -> Self {
        Self {
            body,
            listening: Some(Listening {
                heard: BytesMut::new(),
                standing,
                headers,
            }),
        }
    }

    fn judge(&mut self) {
        if let Some(listening) = self.listening.take()
            && ErrorResponse::parse(StatusCode::UNAUTHORIZED.as_u16(), &listening.heard)
                .is_unauthorized()
        {
            listening.standing.refused(&listening.headers);
        }
    }
}

impl Body for Overheard {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> PollFrame {
        let frame = self.body.poll_frame(cx);
        match &frame {
            Poll::Ready(Some(Ok(Frame::Data(data)))) => {
                let listening = self.listening.as_mut();
                match listening.filter(|it| it.heard.len() + data.len() <= MAX_STATUS) {
                    Some(listening) => listening.heard.extend_from_slice(data),
                    None => self.listening = None,
                }
                if self.body.is_done() {
                    self.judge();
                }
            }
            Poll::Ready(Some(Ok(Frame::Trailers(_))) | None) => self.judge(),
            Poll::Ready(Some(Err(_))) | Poll::Pending => {}
        }
        frame
    }

    fn is_done(&self) -> bool {
        self.body.is_done()
    }
}
