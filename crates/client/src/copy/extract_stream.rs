//! Extracts the archive that a command prints: reads here, and writes on a thread that may block on
//! the disk.

use std::io;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::error::Error;
use super::extract::Extractor;
use super::progress::Progress;
use super::tar::Reader;

/// How much is read at once.
const CHUNK_BYTES: usize = 64 << 10;

/// How many chunks wait for the disk.
const MAX_QUEUED_CHUNKS: usize = 4;

/// The state that moves to the writing thread and back.
pub(super) struct Extraction {
    pub(super) reader: Reader,
    pub(super) extractor: Extractor,
}

impl Extraction {
    /// Discards incomplete files, and resets the counters.
    pub(super) fn restart(&mut self, progress: &Progress) {
        self.reader = Reader::new();
        self.extractor.restart();
        progress.restart();
    }
}

/// The result of extracting an archive.
pub(super) enum ExtractOutcome {
    Eof,
    ReadError,
    /// The archive's prefix has changed.
    PrefixChanged,
    Failed(Error),
}

/// Reads here, and writes on a thread that may block on the disk.
pub(super) async fn extract(
    mut stdout: impl AsyncRead + Unpin,
    state: Box<Extraction>,
) -> (Box<Extraction>, ExtractOutcome) {
    let (chunks, mut queue) = mpsc::channel::<Bytes>(MAX_QUEUED_CHUNKS);
    let writing: JoinHandle<(Box<Extraction>, Result<(), Error>)> =
        tokio::task::spawn_blocking(move || {
            let mut state = state;
            let Extraction { reader, extractor } = &mut *state;
            while let Some(chunk) = queue.blocking_recv() {
                if let Err(error) = extractor.push(reader, &chunk) {
                    return (state, Err(error));
                }
            }
            (state, Ok(()))
        });
    let mut buffer = BytesMut::new();
    let outcome = loop {
        match read_available(&mut stdout, &mut buffer).await {
            Ok(ReadResult::Data) => {
                if chunks.send(buffer.split().freeze()).await.is_err() {
                    // The writing thread returns the error.
                    break ExtractOutcome::Eof;
                }
            }
            Ok(ReadResult::Eof) => break ExtractOutcome::Eof,
            // The command's exit status has the cause.
            Err(_) => break ExtractOutcome::ReadError,
        }
    };
    drop(chunks);
    match writing.await {
        Ok((state, Ok(()))) => (state, outcome),
        Ok((state, Err(error))) => (state, ExtractOutcome::Failed(error)),
        Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
    }
}

enum ReadResult {
    Data,
    Eof,
}

/// Waits for data, and takes all that is available.
async fn read_available(
    stdout: &mut (impl AsyncRead + Unpin),
    buffer: &mut BytesMut,
) -> io::Result<ReadResult> {
    buffer.reserve(CHUNK_BYTES);
    if stdout.read_buf(buffer).await? == 0 {
        return Ok(ReadResult::Eof);
    }
    while buffer.len() < CHUNK_BYTES {
        let more = stdout.read_buf(buffer);
        tokio::pin!(more);
        // Polled once: does not wait for data that has not arrived yet.
        let once = std::future::poll_fn(|cx| {
            use std::future::Future as _;
            std::task::Poll::Ready(more.as_mut().poll(cx))
        });
        match once.await {
            std::task::Poll::Ready(Ok(0) | Err(_)) | std::task::Poll::Pending => break,
            std::task::Poll::Ready(Ok(_)) => {}
        }
    }
    Ok(ReadResult::Data)
}
