//! Pairs of SPDY streams, one pair a connection to a port.

use super::{Port, PortError, Stream};
use crate::channel::STREAM_TYPE;

/// Header names as they stand on the wire, where SPDY/3 has no upper case.
pub const PORT: &str = "port";
/// Joins the two streams of a pair; Kubernetes writes `requestID`.
pub const REQUEST_ID: &str = "requestid";

/// What the headers of a stream say. A client opens the error stream first,
/// and closes its own side of it at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Headers {
    /// Which one of its pair.
    pub stream: Stream,
    /// Where the connection goes.
    pub port: Port,
    /// The same for both streams of a pair, and for no other.
    pub request: String,
}

/// Why a stream is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HeadersError {
    /// Neither data nor error.
    #[error("a stream that is neither for data nor for errors")]
    StreamType,
    /// No port, or none that there can be.
    #[error(transparent)]
    Port(#[from] PortError),
}

impl Headers {
    /// As they are written.
    pub fn fields(&self) -> [(&'static str, String); 3] {
        let stream = match self.stream {
            Stream::Data => "data",
            Stream::Error => "error",
        };
        [
            (STREAM_TYPE, stream.to_owned()),
            (PORT, self.port.number().to_string()),
            (REQUEST_ID, self.request.clone()),
        ]
    }

    /// From the headers of the stream with this number. Clients that name no
    /// request open the data stream right after the error stream, whose number
    /// then stands for it.
    pub fn parse<'a>(
        header: impl Fn(&str) -> Option<&'a str>,
        number: u32,
    ) -> Result<Self, HeadersError> {
        let port = header(PORT).unwrap_or_default().parse()?;
        let stream = match header(STREAM_TYPE) {
            Some("data") => Stream::Data,
            Some("error") => Stream::Error,
            _ => return Err(HeadersError::StreamType),
        };
        let request = match (header(REQUEST_ID), stream) {
            (Some(request), _) if !request.is_empty() => request.to_owned(),
            (_, Stream::Error) => number.to_string(),
            (_, Stream::Data) => (i64::from(number) - 2).to_string(),
        };
        Ok(Self {
            stream,
            port,
            request,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(fields: &[(&str, &str)], number: u32) -> Result<Headers, HeadersError> {
        let header = |name: &str| {
            let mut fields = fields.iter();
            fields.find(|field| field.0 == name).map(|field| field.1)
        };
        Headers::parse(header, number)
    }

    #[test]
    fn what_is_written_is_read() {
        for stream in [Stream::Error, Stream::Data] {
            let headers = Headers {
                stream,
                port: Port::new(8080).unwrap(),
                request: "7".to_owned(),
            };
            let fields = headers.fields();
            let fields = fields.each_ref().map(|(name, value)| (*name, &**value));
            assert_eq!(parse(&fields, 1), Ok(headers));
        }
    }

    #[test]
    fn older_clients_name_no_request() {
        let request = |kind, number| {
            let headers = parse(&[("streamtype", kind), ("port", "80")], number);
            headers.unwrap().request
        };
        assert_eq!(request("error", 5), "5");
        assert_eq!(request("data", 7), "5");
        assert_eq!(request("data", 1), "-1");
    }

    #[test]
    fn other_streams_are_refused() {
        let rows: &[(&[(&str, &str)], HeadersError)] = &[
            (&[("streamtype", "data")], PortError.into()),
            (&[("streamtype", "data"), ("port", "0")], PortError.into()),
            (
                &[("streamtype", "data"), ("port", "65536")],
                PortError.into(),
            ),
            (&[("port", "80")], HeadersError::StreamType),
            (
                &[("port", "80"), ("streamtype", "stdin")],
                HeadersError::StreamType,
            ),
        ];
        for (fields, error) in rows {
            assert_eq!(parse(fields, 1), Err(*error), "{fields:?}");
        }
    }
}
