//! Throughput of a stream, in memory and over loopback TCP, each with one thread and with one
//! per end: `cargo run --release -p skewbridge-spdy --example throughput`.
#![allow(clippy::unwrap_used)] // a measurement that fails has no result

use std::time::Instant;

use bytes::Bytes;
use skewbridge_spdy::connection::{self, Receiver, Sender};
use skewbridge_spdy::{Config, FlowControl, Headers};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;

const TOTAL_BYTES: usize = 4 << 30;
const CHUNK_BYTES: usize = 32 * 1024;
/// Capacity of the in-memory pipe.
const PIPE_BYTES: usize = 256 * 1024;

fn main() {
    let one = Builder::new_current_thread().enable_all().build().unwrap();
    let two = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    for (threads, runtime) in [("one thread", &one), ("two threads", &two)] {
        for flow in [FlowControl::Never, FlowControl::Auto] {
            runtime.block_on(async {
                let (here, there) = tokio::io::duplex(PIPE_BYTES);
                measure(&format!("memory, {threads}, {flow:?}"), flow, here, there).await;
                let (here, there) = loopback().await;
                measure(&format!("TCP, {threads}, {flow:?}"), flow, here, there).await;
            });
        }
    }
}

async fn loopback() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let here = TcpStream::connect(listener.local_addr().unwrap());
    let (here, there) = tokio::join!(here, listener.accept());
    (here.unwrap(), there.unwrap().0)
}

async fn measure<T>(name: &str, flow_control: FlowControl, here: T, there: T)
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let config = Config {
        flow_control,
        ..Config::default()
    };
    let (client, _, driver) = connection::client(here, config.clone());
    let client_driver = tokio::spawn(driver);
    let (_server, mut incoming, driver) = connection::server(there, config);
    let server_driver = tokio::spawn(driver);
    let mut sending = client.open(Headers::new()).unwrap();
    let receiving = incoming.next().await.unwrap();
    let receiving = receiving.accept(Headers::new()).unwrap();
    sending.accepted().await.unwrap();
    let start = Instant::now();
    let writer = tokio::spawn(write(sending.sender));
    let reader = tokio::spawn(read(receiving.receiver));
    writer.await.unwrap();
    let bytes = reader.await.unwrap();
    let micros = start.elapsed().as_micros().max(1);
    assert_eq!(bytes, TOTAL_BYTES);
    println!("{name}: {} MB/s", TOTAL_BYTES as u128 / micros);
    client_driver.abort();
    server_driver.abort();
}

async fn write(mut sender: Sender) {
    let piece = Bytes::from(vec![b'x'; CHUNK_BYTES]);
    for _ in 0..TOTAL_BYTES / CHUNK_BYTES {
        sender.write(piece.clone()).await.unwrap();
    }
    sender.finish().unwrap();
}

async fn read(mut receiver: Receiver) -> usize {
    let mut bytes = 0;
    while let Some(piece) = receiver.read().await.unwrap() {
        bytes += piece.len();
    }
    bytes
}
