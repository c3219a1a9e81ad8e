use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use h2::client::{ResponseFuture, SendRequest};
use h2::{Reason, RecvStream, SendStream};
use http::Request;

use super::Response;
use crate::task::Owned;
use crate::{Connection, h2io};

/// A thin wrapper of `h2`'s client that drives its connection.
#[derive(Debug)]
pub struct H2Client {
    requests: SendRequest<Bytes>,
    driver: Owned<()>,
    /// Held by each open stream, and so counts them.
    open: Arc<()>,
}

/// One stream, sent and read piece by piece. Dropping it before its end resets it.
#[derive(Debug)]
pub struct H2Stream {
    sending: SendStream<Bytes>,
    answer: Option<ResponseFuture>,
    receiving: Option<RecvStream>,
    _open: Arc<()>,
}

impl H2Client {
    /// Speaks over a connection that is open already.
    pub async fn over(io: Connection) -> Result<Self, h2::Error> {
        Self::with(&h2::client::Builder::new(), io).await
    }

    /// The same with windows and limits of the caller's choice.
    pub async fn with(builder: &h2::client::Builder, io: Connection) -> Result<Self, h2::Error> {
        let (requests, connection) = builder.handshake(io).await?;
        let driver = Owned::spawn(async {
            // Its error reaches each stream as well; that is where tests look.
            let _ = connection.await;
        });
        Ok(Self {
            requests,
            driver,
            open: Arc::default(),
        })
    }

    /// Sends a whole request and reads the whole answer.
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
            let mut answer = stream
                .answer
                .take()
                .expect("a new stream has no answer yet");
            // A server may answer before it has read everything; what it says counts then.
            tokio::select! {
                head = &mut answer => head?,
                sent = sending => match sent {
                    Ok(()) => answer.await?,
                    Err(error) => answer.await.map_err(|_| error)?,
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

    /// Opens a stream with these headers and leaves its body open; [`H2Stream::finish`] ends
    /// it. Waits while the server allows no more streams.
    pub async fn stream(&self, request: Request<()>) -> Result<H2Stream, h2::Error> {
        self.open(request, false).await
    }

    /// Streams of this client that were opened and not dropped yet.
    pub fn open_streams(&self) -> usize {
        Arc::strong_count(&self.open) - 1
    }

    /// How many streams the server allows, as far as its SETTINGS have come.
    pub fn allowed_streams(&self) -> usize {
        self.requests.current_max_send_streams()
    }

    /// Whether the connection is over, after a GOAWAY and the last stream for instance.
    pub fn is_closed(&self) -> bool {
        self.driver.is_finished()
    }

    async fn open(&self, request: Request<()>, end: bool) -> Result<H2Stream, h2::Error> {
        let mut requests = self.requests.clone().ready().await?;
        let (answer, sending) = requests.send_request(request, end)?;
        Ok(H2Stream {
            sending,
            answer: Some(answer),
            receiving: None,
            _open: Arc::clone(&self.open),
        })
    }
}

impl H2Stream {
    /// Sends a piece of the body as the server's windows allow.
    pub async fn send(&mut self, piece: impl Into<Bytes>) -> Result<(), h2::Error> {
        h2io::send_body(&mut self.sending, piece.into()).await
    }

    /// Ends the body.
    pub fn finish(&mut self) -> Result<(), h2::Error> {
        self.sending.send_data(Bytes::new(), true)
    }

    /// Ends the body with trailers.
    pub fn finish_with(&mut self, trailers: &[(String, String)]) -> Result<(), h2::Error> {
        self.sending.send_trailers(h2io::header_map(trailers))
    }

    /// Waits for the head of the answer.
    ///
    /// # Panics
    /// When it was read before.
    pub async fn head(&mut self) -> Result<http::response::Parts, h2::Error> {
        let answer = self.answer.take().expect("the head was read before");
        let (head, receiving) = answer.await?.into_parts();
        self.receiving = Some(receiving);
        Ok(head)
    }

    /// Waits for the next DATA; `None` at the end of the body. The head comes first.
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

    /// The stream's number on its connection.
    pub fn id(&self) -> u32 {
        self.sending.stream_id().as_u32()
    }

    fn receiving(&mut self) -> &mut RecvStream {
        self.receiving.as_mut().expect("the head comes first")
    }
}
