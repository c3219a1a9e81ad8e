//! A TCP connection with a TLS handshake: whether a server is reachable, and its certificate valid.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustls::{AlertDescription, CertificateError, ClientConfig, Error as TlsError, InvalidMessage};
use rustls_pki_types::{CertificateDer, ServerName};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

/// The time limit of a handshake, and of each request.
pub(crate) const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// Why a TCP connection or a TLS handshake failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ConnectProblem {
    #[error("the connection is refused: nothing listens there")]
    Refused,
    #[error("it cannot be connected to: {0}")]
    Unreachable(String),
    #[error("it accepts the connection, and does not answer: {0}")]
    NoAnswer(String),
    #[error("it does not answer within {} s", PROBE_TIMEOUT.as_secs())]
    Timeout,
    #[error("its certificate is not signed by the given CAs")]
    UnknownIssuer,
    #[error("its certificate is for another name: {0}")]
    WrongName(String),
    #[error("its certificate has expired")]
    Expired,
    #[error("its certificate is not valid yet")]
    NotYetValid,
    #[error("it does not use TLS")]
    NotTls,
    #[error("it rejects the client certificate: {0}")]
    RejectsClient(String),
    #[error("TLS: {0}")]
    Other(String),
}

/// The certificate that the server presents.
pub(crate) type ServerCertificate = Option<CertificateDer<'static>>;

/// Connects, and verifies the server.
pub(crate) async fn handshake(
    host: &str,
    port: u16,
    name: &ServerName<'static>,
    config: Arc<ClientConfig>,
) -> Result<ServerCertificate, ConnectProblem> {
    let attempt = async {
        let tcp = TcpStream::connect((host, port))
            .await
            .map_err(|error| of_tcp(&error))?;
        let tls = TlsConnector::from(config).connect(name.clone(), tcp).await;
        let tls = tls.map_err(|error| of_tls(&error))?;
        let certificates = tls.get_ref().1.peer_certificates();
        Ok(certificates
            .and_then(|it| it.first())
            .cloned()
            .map(CertificateDer::into_owned))
    };
    timeout(PROBE_TIMEOUT, attempt)
        .await
        .unwrap_or(Err(ConnectProblem::Timeout))
}

/// The same at an address.
pub(crate) async fn handshake_at(
    address: SocketAddr,
    name: &ServerName<'static>,
    config: Arc<ClientConfig>,
) -> Result<ServerCertificate, ConnectProblem> {
    handshake(&address.ip().to_string(), address.port(), name, config).await
}

fn of_tcp(error: &io::Error) -> ConnectProblem {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => ConnectProblem::Refused,
        _ => ConnectProblem::Unreachable(error.to_string()),
    }
}

fn of_tls(error: &io::Error) -> ConnectProblem {
    match error.get_ref().and_then(|it| it.downcast_ref()) {
        Some(error) => of_rustls(error),
        None => ConnectProblem::Unreachable(error.to_string()),
    }
}

fn of_rustls(error: &TlsError) -> ConnectProblem {
    use CertificateError as Certificate;
    match error {
        TlsError::InvalidCertificate(cause) => match cause {
            Certificate::UnknownIssuer | Certificate::BadSignature => ConnectProblem::UnknownIssuer,
            Certificate::Expired | Certificate::ExpiredContext { .. } => ConnectProblem::Expired,
            Certificate::NotValidYet | Certificate::NotValidYetContext { .. } => {
                ConnectProblem::NotYetValid
            }
            Certificate::NotValidForName | Certificate::NotValidForNameContext { .. } => {
                ConnectProblem::WrongName(cause.to_string())
            }
            cause => ConnectProblem::Other(cause.to_string()),
        },
        TlsError::InvalidMessage(InvalidMessage::InvalidContentType) => ConnectProblem::NotTls,
        TlsError::AlertReceived(
            alert @ (AlertDescription::BadCertificate
            | AlertDescription::UnknownCA
            | AlertDescription::CertificateRequired
            | AlertDescription::CertificateUnknown),
        ) => ConnectProblem::RejectsClient(format!("{alert:?}")),
        error => ConnectProblem::Other(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_with_different_remedies_are_distinguished() {
        let certificate = TlsError::InvalidCertificate;
        let rows = [
            (
                certificate(CertificateError::UnknownIssuer),
                ConnectProblem::UnknownIssuer,
            ),
            (
                certificate(CertificateError::Expired),
                ConnectProblem::Expired,
            ),
            (
                certificate(CertificateError::NotValidYet),
                ConnectProblem::NotYetValid,
            ),
            (
                TlsError::InvalidMessage(InvalidMessage::InvalidContentType),
                ConnectProblem::NotTls,
            ),
            (
                TlsError::AlertReceived(AlertDescription::UnknownCA),
                ConnectProblem::RejectsClient("UnknownCA".to_owned()),
            ),
        ];
        for (error, expected) in rows {
            assert_eq!(of_rustls(&error), expected);
        }
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        assert_eq!(of_tcp(&refused), ConnectProblem::Refused);
    }
}
