//! Vectored writes in chunks of 2 KiB, which TLS copies fastest.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;

use tokio::io::AsyncWrite;

/// TLS copies each slice behind the head of a record. glibc copies more than this by `rep
/// movsb`, which on AMD processors is fifteen times as slow if the target starts a few bytes
/// behind the source, modulo the page size. That is the case if both are page-aligned except
/// for the record head.
pub(crate) const CHUNK_BYTES: usize = 2 * 1024;

/// Enough chunks for 120 KiB, and some for shorter ones.
const MAX_CHUNKS: usize = 60 + 4;

/// Slices for one write call.
pub(crate) struct ChunkedSlices<'a> {
    all: [IoSlice<'a>; MAX_CHUNKS],
    count: usize,
}

impl<'a> ChunkedSlices<'a> {
    /// As many bytes of these chunks as fit, from the first on.
    pub(crate) fn new(buffers: impl Iterator<Item = &'a [u8]>) -> Self {
        let mut slices = Self {
            all: [IoSlice::new(&[]); MAX_CHUNKS],
            count: 0,
        };
        let chunks = buffers.flat_map(|chunk| chunk.chunks(CHUNK_BYTES));
        for (slice, chunk) in slices.all.iter_mut().zip(chunks) {
            *slice = IoSlice::new(chunk);
            slices.count += 1;
        }
        slices
    }

    pub(crate) fn as_slice(&self) -> &[IoSlice<'a>] {
        &self.all[..self.count]
    }
}

/// Writes all bytes.
pub async fn write_chunked(to: &mut (impl AsyncWrite + Unpin), mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let slices = ChunkedSlices::new([bytes].into_iter());
        let write = poll_fn(|cx| Pin::new(&mut *to).poll_write_vectored(cx, slices.as_slice()));
        match write.await? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            written => bytes = &bytes[written..],
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;

    use super::*;

    #[test]
    fn slices_are_at_most_one_chunk_long_and_complete() {
        let (few, many) = (vec![1; 9], vec![2; 5 * CHUNK_BYTES + 1]);
        let slices = ChunkedSlices::new([&few[..], &many[..]].into_iter());
        let lengths: Vec<_> = slices.as_slice().iter().map(|it| it.len()).collect();
        assert_eq!(
            lengths,
            [
                9,
                CHUNK_BYTES,
                CHUNK_BYTES,
                CHUNK_BYTES,
                CHUNK_BYTES,
                CHUNK_BYTES,
                1
            ]
        );
        let far_more = vec![3; 2 * MAX_CHUNKS * CHUNK_BYTES];
        let slices = ChunkedSlices::new([&far_more[..]].into_iter());
        assert_eq!(
            slices.as_slice().len(),
            MAX_CHUNKS,
            "the rest needs another call"
        );
    }

    #[tokio::test]
    async fn all_bytes_are_written_in_order() {
        let bytes: Vec<u8> = (0..=250).cycle().take(300_000).collect();
        let (mut local, mut remote) = tokio::io::duplex(1000);
        let writing = async {
            write_chunked(&mut local, &bytes).await.unwrap();
            drop(local);
        };
        let mut read = Vec::new();
        let reading = remote.read_to_end(&mut read);
        let ((), _) = tokio::join!(writing, reading);
        assert!(read == bytes);
    }
}
