//! What remains in a client's memory after its plugin was dropped.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use skewbridge_testkit::{TEST_TIMEOUT, count_in_memory, eventually};

use crate::client_process;
use crate::fixture::{Fixture, PluginKind, is_gone};

#[tokio::test]
async fn a_dropped_private_key_is_not_left_in_memory() {
    let fixture = Fixture::new(PluginKind::Itself).await;
    let pem = fixture.recorded("client.key");
    let lines: Vec<_> = pem.lines().filter(|line| !line.contains("-----")).collect();
    let der = STANDARD.decode(lines.concat()).unwrap();
    // In PKCS#8 with a P-256 key this is the private scalar.
    let begin = der.windows(2).position(|it| it == [0x04, 0x20]).unwrap() + 2;
    let number = &der[begin..begin + 32];
    for lets_go in [false, true] {
        let variables: &[_] = if lets_go {
            &[("CLIENT_LETS_GO", "1")]
        } else {
            &[]
        };
        let _ = std::fs::remove_file(fixture.dir.path().join("client-output"));
        let mut client = client_process::start(&fixture, variables);
        eventually("an answer", TEST_TIMEOUT * 2, async || {
            fixture.recorded("client-output").ends_with('\n')
        })
        .await;
        let found = [lines[0].as_bytes(), number].map(|it| count_in_memory(client.id(), it));
        let proxy = fixture.proxy();
        client.kill().unwrap();
        client.wait().unwrap();
        match (found, lets_go) {
            // Reading the memory of other processes may not be permitted.
            ([None, _] | [_, None], _) => return,
            (found, false) => assert!(found[0] >= Some(1), "{found:?}"),
            (found, true) => assert_eq!(found, [Some(0); 2]),
        }
        eventually("the end of the proxy", TEST_TIMEOUT, async || {
            is_gone(proxy)
        })
        .await;
    }
}
