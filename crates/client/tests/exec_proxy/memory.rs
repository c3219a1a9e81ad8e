//! What is left in the memory of a client that needs its plugin no more.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use skewbridge_testkit::{PATIENCE, eventually, occurrences};

use crate::client_process;
use crate::stage::{Kind, Stage, is_gone};

#[tokio::test]
async fn nothing_is_left_of_a_key_that_was_let_go() {
    let stage = Stage::new(Kind::Itself).await;
    let pem = stage.told("client.key");
    let lines: Vec<_> = pem.lines().filter(|line| !line.contains("-----")).collect();
    let der = STANDARD.decode(lines.concat()).unwrap();
    // Of PKCS#8 with a key of P-256 this is the number itself.
    let begin = der.windows(2).position(|it| it == [0x04, 0x20]).unwrap() + 2;
    let number = &der[begin..begin + 32];
    for lets_go in [false, true] {
        let variables: &[_] = if lets_go {
            &[("CLIENT_LETS_GO", "1")]
        } else {
            &[]
        };
        let _ = std::fs::remove_file(stage.dir.path().join("client-said"));
        let mut client = client_process::start(&stage, variables);
        eventually("an answer", PATIENCE * 2, async || {
            stage.told("client-said").ends_with('\n')
        })
        .await;
        let found = [lines[0].as_bytes(), number].map(|it| occurrences(client.id(), it));
        let proxy = stage.proxy();
        client.kill().unwrap();
        client.wait().unwrap();
        match (found, lets_go) {
            // Not everybody may look into other processes.
            ([None, _] | [_, None], _) => return,
            (found, false) => assert!(found[0] >= Some(1), "{found:?}"),
            (found, true) => assert_eq!(found, [Some(0); 2]),
        }
        eventually("the end of the proxy", PATIENCE, async || is_gone(proxy)).await;
    }
}
