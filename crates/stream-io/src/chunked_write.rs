//! Bytes in slices, as TLS takes them best.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;

use tokio::io::AsyncWrite;

/// TLS copies each slice behind the head of a record. glibc copies more than this by `rep
/// movsb`, and on AMD's processors that is fifteen times as slow where the target begins a
/// few bytes behind the source, counted within a page: so it does when both are pages but
/// for that head.
pub(crate) const CHUNK_BYTES: usize = 2 * 1024;

/// As many slices as there are in 120 KiB, and some for what is shorter.
const MAX_CHUNKS: usize = 60 + 4;

/// ChunkedSlices for one call.
pub(crate) struct ChunkedSlices<'a> {
    all: [IoSlice<'a>; MAX_CHUNKS],
    count: usize,
}

impl<'a> ChunkedSlices<'a> {
    /// Of these chunks, from the first on, as many bytes as fit.
    pub(crate) fn new(chunks: impl Iterator<Item = &'a [u8]>) -> Self {
        let mut slices = Self {
            all: [IoSlice::new(&[]); MAX_CHUNKS],
            count: 0,
        };
        let chunks = chunks.flat_map(|chunk| chunk.chunks(CHUNK_BYTES));
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

/// Writes all of these bytes.
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
    fn no_slice_is_long_and_none_is_lost() {
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
            "the rest is for another call"
        );
    }

    #[tokio::test]
    async fn all_is_written_in_its_order() {
        let bytes: Vec<u8> = (0..=250).cycle().take(300_000).collect();
        let (mut here, mut there) = tokio::io::duplex(1000);
        let writing = async {
            write_chunked(&mut here, &bytes).await.unwrap();
            drop(here);
        };
        let mut read = Vec::new();
        let reading = there.read_to_end(&mut read);
        let ((), _) = tokio::join!(writing, reading);
        assert!(read == bytes);
    }
}
