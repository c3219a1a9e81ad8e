//! Bytes in slices, as TLS takes them best.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;

use tokio::io::AsyncWrite;

/// TLS copies each slice behind the head of a record. glibc copies more than this by `rep
/// movsb`, and on AMD's processors that is fifteen times as slow where the target begins a
/// few bytes behind the source, counted within a page: so it does when both are pages but
/// for that head.
pub(crate) const SLICE: usize = 2 * 1024;

/// As many slices as there are in 120 KiB, and some for what is shorter.
const MOST: usize = 60 + 4;

/// Slices for one call.
pub(crate) struct Slices<'a> {
    all: [IoSlice<'a>; MOST],
    count: usize,
}

impl<'a> Slices<'a> {
    /// Of these pieces, from the first on, as many bytes as fit.
    pub(crate) fn of(pieces: impl Iterator<Item = &'a [u8]>) -> Self {
        let mut slices = Self {
            all: [IoSlice::new(&[]); MOST],
            count: 0,
        };
        let pieces = pieces.flat_map(|piece| piece.chunks(SLICE));
        for (slice, piece) in slices.all.iter_mut().zip(pieces) {
            *slice = IoSlice::new(piece);
            slices.count += 1;
        }
        slices
    }

    pub(crate) fn as_slice(&self) -> &[IoSlice<'a>] {
        &self.all[..self.count]
    }
}

/// Writes all of these bytes.
pub async fn write_sliced(to: &mut (impl AsyncWrite + Unpin), mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let slices = Slices::of([bytes].into_iter());
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
        let (few, many) = (vec![1; 9], vec![2; 5 * SLICE + 1]);
        let slices = Slices::of([&few[..], &many[..]].into_iter());
        let lengths: Vec<_> = slices.as_slice().iter().map(|it| it.len()).collect();
        assert_eq!(lengths, [9, SLICE, SLICE, SLICE, SLICE, SLICE, 1]);
        let far_more = vec![3; 2 * MOST * SLICE];
        let slices = Slices::of([&far_more[..]].into_iter());
        assert_eq!(
            slices.as_slice().len(),
            MOST,
            "the rest is for another call"
        );
    }

    #[tokio::test]
    async fn all_is_written_in_its_order() {
        let bytes: Vec<u8> = (0..=250).cycle().take(300_000).collect();
        let (mut here, mut there) = tokio::io::duplex(1000);
        let writing = async {
            write_sliced(&mut here, &bytes).await.unwrap();
            drop(here);
        };
        let mut read = Vec::new();
        let reading = there.read_to_end(&mut read);
        let ((), _) = tokio::join!(writing, reading);
        assert!(read == bytes);
    }
}
