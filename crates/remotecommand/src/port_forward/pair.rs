//! Pairs of SPDY streams, one pair per connection to a port.

use super::{Port, PortError, Stream};
use crate::channel::STREAM_TYPE;

/// Header names as on the wire: SPDY/3 header names are lower case.
pub const PORT: &str = "port";
/// Links the two streams of a pair; Kubernetes writes `requestID`.
pub const REQUEST_ID: &str = "requestid";

/// The headers of a stream. A client opens the error stream first, and closes its own side of
/// it at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Headers {
    /// Which stream of the pair.
    pub stream: Stream,
    /// The target port.
    pub port: Port,
    /// The same for both streams of a pair, and for no other.
    pub request: String,
}

/// Why a stream is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HeadersError {
    /// Neither data nor error.
    #[error("the stream type is neither data nor error")]
    StreamType,
    /// The port is missing or invalid.
    #[error(transparent)]
    Port(#[from] PortError),
}

impl Headers {
    /// The headers as name and value.
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

    /// Parses the headers of the stream with this number. Clients that send no request id open
    /// the data stream right after the error stream, whose number is then used as the id.
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
    fn encoded_headers_are_parsed_to_the_same_headers() {
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
    fn streams_of_older_clients_are_paired_by_stream_id() {
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
