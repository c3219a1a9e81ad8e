//! Inspects the body of a 401 to distinguish a response of the API server from one of a workload.

use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::BytesMut;
use http::{HeaderMap, StatusCode};
use skewbridge_client::ErrorResponse;
use skewbridge_http_engine::body::{BodySource, Frame, PollFrame, ResponseBody};

use super::credential_state::CredentialState;

/// More than the Status of any 401.
const MAX_STATUS_BYTES: usize = 16 * 1024;

/// Forwards the body of a 401 to the client. If the API server itself sent it, the credential of
/// the request is marked unauthorized before the client receives the end of the body.
pub(super) fn inspect_unauthorized(
    body: ResponseBody,
    credential: Arc<dyn CredentialState>,
    request_headers: HeaderMap,
) -> ResponseBody {
    ResponseBody::stream(UnauthorizedBodyInspector {
        body,
        inspection: Some(Inspection {
            received: BytesMut::new(),
            credential,
            request_headers,
        }),
    })
}

#[derive(Debug)]
struct UnauthorizedBodyInspector {
    body: ResponseBody,
    inspection: Option<Inspection>,
}

struct Inspection {
    received: BytesMut,
    credential: Arc<dyn CredentialState>,
    /// The headers of the request.
    request_headers: HeaderMap,
}

/// The headers contain credentials.
impl std::fmt::Debug for Inspection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inspection").finish_non_exhaustive()
    }
}

impl UnauthorizedBodyInspector {
    fn finish(&mut self) {
        if let Some(inspection) = self.inspection.take()
            && ErrorResponse::parse(StatusCode::UNAUTHORIZED.as_u16(), &inspection.received)
                .is_unauthorized()
        {
            inspection
                .credential
                .mark_unauthorized(&inspection.request_headers);
        }
    }
}

impl BodySource for UnauthorizedBodyInspector {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> PollFrame {
        let frame = self.body.poll_frame(cx);
        match &frame {
            Poll::Ready(Some(Ok(Frame::Data(data)))) => {
                let inspection = self.inspection.as_mut();
                let fits =
                    |it: &&mut Inspection| it.received.len() + data.len() <= MAX_STATUS_BYTES;
                match inspection.filter(fits) {
                    Some(inspection) => inspection.received.extend_from_slice(data),
                    None => self.inspection = None,
                }
                if self.body.is_done() {
                    self.finish();
                }
            }
            Poll::Ready(Some(Ok(Frame::Trailers(_))) | None) => self.finish(),
            Poll::Ready(Some(Err(_))) | Poll::Pending => {}
        }
        frame
    }

    fn buffered(&mut self) -> usize {
        self.body.buffered()
    }

    fn is_done(&self) -> bool {
        self.body.is_done()
    }

    fn poll_request(&mut self, cx: &mut Context<'_>) {
        self.body.poll_request(cx);
    }
}
