//! Messages that say why a connection ended.

use std::io;

use skewbridge_spdy::{Closed, Error};

/// For the transport of a stream. A missing TLS `close_notify` is not worth mentioning.
pub(crate) fn of_io(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => "the server closed the connection abruptly".to_owned(),
        _ => error.to_string(),
    }
}

/// For an SPDY connection.
pub(crate) fn of_spdy(error: &Error) -> String {
    match error {
        Error::Io(error) => of_io(error),
        error => error.to_string(),
    }
}

/// For an SPDY connection, as its streams see it.
pub(crate) fn of_closed(closed: &Closed) -> String {
    match closed {
        Closed::Failed(error) => of_spdy(error),
        closed => closed.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_abrupt_end_is_described_in_plain_words() {
        let plain = "the server closed the connection abruptly";
        let eof = || io::Error::new(io::ErrorKind::UnexpectedEof, "close_notify: see https://x");
        assert_eq!(of_io(&eof()), plain);
        assert_eq!(of_closed(&Closed::Failed(eof().into())), plain);
        let reset = || io::Error::new(io::ErrorKind::ConnectionReset, "reset");
        assert_eq!(of_spdy(&reset().into()), "reset");
        assert_eq!(
            of_closed(&Closed::Remote),
            "the other side ended the connection"
        );
    }
}
