//! The fake API server: HTTP/2 over TLS, watches that stay open.
//!
//! Every line on its input is one more event on every open watch; it exits at the end of its
//! input.

use std::future::poll_fn;
use std::io::{BufRead, Write};
use std::sync::Arc;
use std::thread;

use anyhow::{Context, Result};
use bytes::Bytes;
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::{Request, Response};
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use super::event;
use crate::args::FakeApiServer;
use crate::child_messages::ChildMessage;
use crate::pki;
use crate::proxies::loopback;

/// The default of kube-apiserver's `--http2-max-streams-per-connection`.
const MAX_STREAMS: u32 = 100;

pub(crate) async fn run(args: FakeApiServer) -> Result<()> {
    let config = pki::h2_server(&args.certificate, &args.key)?;
    let listener = TcpListener::bind(loopback(0)).await?;
    let (events, mut latest) = watch::channel(0);
    thread::spawn(move || count_lines(&events));
    let listening = ChildMessage::Listening(listener.local_addr()?.port());
    writeln!(std::io::stdout(), "{listening}").context("the output is closed")?;
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let (tcp, _) = accepted?;
                tokio::spawn(serve(tcp, config.clone(), latest.clone()));
            }
            // Fails when the input has ended; returning ends every task.
            changed = latest.changed() => if changed.is_err() {
                return Ok(());
            },
        }
    }
}

fn count_lines(events: &watch::Sender<u32>) {
    for _ in std::io::stdin().lock().lines().map_while(Result::ok) {
        events.send_modify(|latest| *latest += 1);
    }
}

async fn serve(tcp: TcpStream, config: Arc<ServerConfig>, latest: watch::Receiver<u32>) {
    if let Err(error) = connection(tcp, config, latest).await {
        eprintln!("connection: {error:#}");
    }
}

async fn connection(
    tcp: TcpStream,
    config: Arc<ServerConfig>,
    latest: watch::Receiver<u32>,
) -> Result<()> {
    tcp.set_nodelay(true)?;
    let tls = TlsAcceptor::from(config).accept(tcp).await?;
    let mut connection = h2::server::Builder::new()
        .max_concurrent_streams(MAX_STREAMS)
        .handshake::<_, Bytes>(tls)
        .await?;
    while let Some(accepted) = connection.accept().await {
        let (request, respond) = accepted?;
        let latest = latest.clone();
        tokio::spawn(async move {
            // A client may disconnect; a watcher detects a watch that ends unexpectedly.
            let _ = serve_request(&request, respond, latest).await;
        });
    }
    Ok(())
}

async fn serve_request(
    request: &Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    latest: watch::Receiver<u32>,
) -> Result<()> {
    if is_watch(request.uri().query().unwrap_or_default()) {
        let head = Response::builder()
            .header("content-type", "application/json")
            .body(())?;
        events(respond.send_response(head, false)?, latest).await
    } else {
        let head = Response::builder()
            .header("content-type", "text/plain")
            .body(())?;
        let mut stream = respond.send_response(head, false)?;
        stream.send_data(Bytes::from_static(b"ok"), true)?;
        Ok(())
    }
}

fn is_watch(query: &str) -> bool {
    query.split('&').any(|pair| pair == "watch=true")
}

async fn events(mut stream: SendStream<Bytes>, mut latest: watch::Receiver<u32>) -> Result<()> {
    let mut sent = *latest.borrow_and_update();
    loop {
        tokio::select! {
            changed = latest.changed() => changed?,
            reset = poll_fn(|cx| stream.poll_reset(cx)) => {
                reset?;
                return Ok(());
            }
        }
        // The channel keeps only the newest number, but numbers have no gaps.
        let newest = *latest.borrow_and_update();
        while sent < newest {
            sent += 1;
            send(&mut stream, event::line(sent)).await?;
        }
    }
}

async fn send(stream: &mut SendStream<Bytes>, mut data: Bytes) -> Result<()> {
    while !data.is_empty() {
        stream.reserve_capacity(data.len());
        let granted = poll_fn(|cx| stream.poll_capacity(cx))
            .await
            .context("the stream is closed")??;
        let length = granted.min(data.len());
        stream.send_data(data.split_to(length), false)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_watch_is_a_watch() {
        assert!(is_watch("watch=true"));
        assert!(is_watch("resourceVersion=0&watch=true&timeoutSeconds=300"));
        assert!(!is_watch("watch=false"));
        assert!(!is_watch("notwatch=true"));
        assert!(!is_watch(""));
    }
}
