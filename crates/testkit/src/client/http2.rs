use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use h2::client::{ResponseFuture, SendRequest};
use h2::{Reason, RecvStream, SendStream};
use http::Request;

use super::Response;
use crate::task::OwnedTask;
use crate::{Connection, h2io};

/// A thin wrapper around `h2`'s client that drives its connection.
#[derive(Debug)]
pub struct H2Client {
    requests: SendRequest<Bytes>,
    driver: OwnedTask<()>,
    /// Cloned by each open stream, so its count is the number of open streams.
    open: Arc<()>,
}

/// One stream, sent and read in parts. Dropping it early resets it.
#[derive(Debug)]
pub struct H2Stream {
    sending: SendStream<Bytes>,
    response: Option<ResponseFuture>,
    receiving: Option<RecvStream>,
    _open: Arc<()>,
}

impl H2Client {
    /// Uses a connection that is already open.
    pub async fn over(io: Connection) -> Result<Self, h2::Error> {
        Self::with(&h2::client::Builder::new(), io).await
    }

    /// The same with the given windows and limits.
    pub async fn with(builder: &h2::client::Builder, io: Connection) -> Result<Self, h2::Error> {
        let (requests, connection) = builder.handshake(io).await?;
        let driver = OwnedTask::spawn(async {
            // Each stream reports the error as well, where tests check it.
            let _ = connection.await;
        });
        Ok(Self {
            requests,
            driver,
            open: Arc::default(),
        })
    }

    /// Sends a complete request and reads the complete response.
    pub async fn request(
        &self,
        request: Request<()>,
        body: impl Into<Bytes>,
    ) -> Result<Response, h2::Error> {
        let body = body.into();
        let bodiless = body.is_empty();
        let mut stream = self.open(request, bodiless).await?;
        let head = {
            let sending = async {
                h2io::send_body(&mut stream.sending, body).await?;
                if bodiless {
                    return Ok(());
                }
                stream.sending.send_data(Bytes::new(), true)
            };
            let mut response = stream
                .response
                .take()
                .expect("a new stream has no response yet");
            // A server may respond before it has read the whole request; its response
            // counts then.
            tokio::select! {
                head = &mut response => head?,
                sent = sending => match sent {
                    Ok(()) => response.await?,
                    Err(error) => response.await.map_err(|_| error)?,
                },
            }
        };
        let (head, receiving) = head.into_parts();
        stream.receiving = Some(receiving);
        let mut body = BytesMut::new();
        while let Some(chunk) = stream.chunk().await {
            body.extend_from_slice(&chunk?);
        }
        Ok(Response {
            version: http::Version::HTTP_2,
            status: head.status.as_u16(),
            headers: h2io::fields(&head.headers),
            body: body.freeze(),
            trailers: stream.trailers().await?,
        })
    }

    /// A GET without a body.
    pub async fn get(&self, path: &str) -> Result<Response, h2::Error> {
        let uri = format!("https://localhost{path}");
        let request = Request::get(uri).body(()).expect("a path makes a URI");
        self.request(request, Bytes::new()).await
    }

    /// Opens a stream with these headers and an open body; [`H2Stream::finish`] ends it.
    /// Waits while the server allows no more streams.
    pub async fn stream(&self, request: Request<()>) -> Result<H2Stream, h2::Error> {
        self.open(request, false).await
    }

    /// The number of streams of this client that were opened and not dropped yet.
    pub fn open_streams(&self) -> usize {
        Arc::strong_count(&self.open) - 1
    }

    /// How many streams the server allows, according to the SETTINGS received so far.
    pub fn allowed_streams(&self) -> usize {
        self.requests.current_max_send_streams()
    }

    /// Whether the connection has ended, for example after a GOAWAY and the last stream.
    pub fn is_closed(&self) -> bool {
        self.driver.is_finished()
    }

    async fn open(&self, request: Request<()>, end: bool) -> Result<H2Stream, h2::Error> {
        let mut requests = self.requests.clone().ready().await?;
        let (response, sending) = requests.send_request(request, end)?;
        Ok(H2Stream {
            sending,
            response: Some(response),
            receiving: None,
            _open: Arc::clone(&self.open),
        })
    }
}

impl H2Stream {
    /// Sends a part of the body as the server's windows allow.
    pub async fn send(&mut self, part: impl Into<Bytes>) -> Result<(), h2::Error> {
        h2io::send_body(&mut self.sending, part.into()).await
    }

    /// Ends the body.
    pub fn finish(&mut self) -> Result<(), h2::Error> {
        self.sending.send_data(Bytes::new(), true)
    }

    /// Ends the body with trailers.
    pub fn finish_with(&mut self, trailers: &[(String, String)]) -> Result<(), h2::Error> {
        self.sending.send_trailers(h2io::header_map(trailers))
    }

    /// Waits for the head of the response.
    ///
    /// # Panics
    /// When it was read before.
    pub async fn head(&mut self) -> Result<http::response::Parts, h2::Error> {
        let response = self.response.take().expect("the head was read before");
        let (head, receiving) = response.await?.into_parts();
        self.receiving = Some(receiving);
        Ok(head)
    }

    /// Waits for the next DATA; `None` at the end of the body. The head must be read first.
    ///
    /// # Panics
    /// When the head was not read.
    pub async fn chunk(&mut self) -> Option<Result<Bytes, h2::Error>> {
        h2io::next_data(self.receiving()).await
    }

    /// The trailers, once the body has ended.
    ///
    /// # Panics
    /// When the head was not read.
    pub async fn trailers(&mut self) -> Result<Vec<(String, String)>, h2::Error> {
        h2io::trailers(self.receiving()).await
    }

    /// Resets the stream.
    pub fn reset(mut self, reason: Reason) {
        self.sending.send_reset(reason);
    }

    /// Waits until the server resets the stream.
    pub async fn was_reset(&mut self) -> Result<Reason, h2::Error> {
        h2io::reset(&mut self.sending).await
    }

    /// The stream ID.
    pub fn id(&self) -> u32 {
        self.sending.stream_id().as_u32()
    }

    fn receiving(&mut self) -> &mut RecvStream {
        self.receiving.as_mut().expect("the head is read first")
    }
}
