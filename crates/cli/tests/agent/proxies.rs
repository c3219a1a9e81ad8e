//! HTTPS proxies between the plugin and the cluster.

use skewbridge_testkit::ScriptedServer;
use tokio::io::copy_bidirectional;
use tokio::net::TcpStream;

use crate::agent_fixture::{AgentFixture, Client, FILE, Plugin};

#[tokio::test]
async fn an_https_proxy_of_the_environment_may_have_a_certificate_of_the_clusters_ca() {
    let fixture = AgentFixture::new();
    let server = fixture.server().await;
    let client = Client::start(&fixture);
    let (leaf, to) = (fixture.ca.server(&["127.0.0.1"]), server.addr());
    let proxy = ScriptedServer::start(&leaf, None, &["http/1.1"], move |mut conn| async move {
        let request = conn.read_head().await;
        assert!(
            request.starts_with("CONNECT cluster.example:6443 "),
            "{request}"
        );
        conn.write("HTTP/1.1 200 OK\r\n\r\n").await;
        let mut upstream = TcpStream::connect(to).await.unwrap();
        let _ = copy_bidirectional(&mut conn.io, &mut upstream).await;
    })
    .await;
    let info = fixture.info("https://cluster.example:6443", Some(&client.lock));
    let mut command = fixture.agent(&info, &FILE);
    command.env("HTTPS_PROXY", format!("https://{}", proxy.addr()));
    let plugin = Plugin::start(command);
    assert!(plugin.get("/").await.unwrap().contains("\njane\r\n"));
    assert_eq!(proxy.connections(), 1);
}
