//! A key that exists only in a token, where `SoftHSM2` is installed.

use skewbridge_testkit::{SoftToken, eventually};

use crate::rig::{Bench, Client, PATIENCE, Plugin};
use crate::secrets::told_by;

#[tokio::test]
async fn the_key_in_the_token_is_the_users() {
    let Some(token) = SoftToken::new("jane", "246810") else {
        return;
    };
    let bench = Bench::new();
    let key = token.generate("rsa:2048", "kubernetes", "01");
    let certificate = bench
        .ca
        .client_with_key(&key, "token-jane", &["developers"]);
    token.store(&certificate, "kubernetes", "01");
    bench.dir.write("pin", "246810\n");
    bench.dir.write("wrong", "111111\n");
    let server = bench.server().await;
    let client = Client::start(&bench);
    let info = bench.info(&format!("https://{}", server.addr()), Some(&client.lock));
    let agent = |words: &[&str]| {
        let module = format!("--pkcs11-module={}", token.library().display());
        let uri = "--pkcs11-uri=pkcs11:token=jane;object=kubernetes";
        let words = [&["--signer=pkcs11", &module, uri], words].concat();
        let mut command = bench.agent(&info, &words);
        command.env("SOFTHSM2_CONF", token.configuration());
        command
    };
    let rows: [(&[&str], &str); 2] = [
        (&["--pkcs11-pin-file=wrong"], "the PIN is wrong"),
        // The client is not interactive: nobody is asked.
        (
            &[],
            "a PIN is needed, and the client has passed no terminal",
        ),
    ];
    for (words, expected) in rows {
        let output = agent(words).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1));
        assert!(
            said.contains(&format!("token \"jane\": {expected}")),
            "{said}"
        );
    }
    let plugin = Plugin::of(agent(&["--pkcs11-pin-file=pin"]));
    let is_jane = || async { plugin.get("/").await.unwrap().contains("\ntoken-jane\r\n") };
    assert!(is_jane().await);
    // The connection is lost while the token is away.
    token.remove();
    server.kill_connections().await;
    // What goes out before the loss is noticed fails otherwise.
    eventually("a word about the token", PATIENCE, async || {
        let answer = plugin.get("/").await.unwrap();
        answer.contains("it is not present; insert it")
    })
    .await;
    token.insert_again();
    eventually("the token's key", PATIENCE, async || is_jane().await).await;
}

#[tokio::test]
async fn a_program_is_asked_for_the_pin_which_is_told_to_nobody_else() {
    let Some(token) = SoftToken::new("jane", "24681012") else {
        return;
    };
    let bench = Bench::new();
    let key = token.generate("EC:secp384r1", "kubernetes", "01");
    let certificate = bench.ca.client_with_key(&key, "token-jane", &[]);
    token.store(&certificate, "kubernetes", "01");
    let program = bench.dir.write_program(
        "askpass",
        "#!/bin/sh\necho \"$1\" >> asked\necho 24681012\n",
    );
    let server = bench.server().await;
    let client = Client::start(&bench);
    let info = bench.info(&format!("https://{}", server.addr()), Some(&client.lock));
    let module = format!("--pkcs11-module={}", token.library().display());
    let mut command = bench.agent(
        &info,
        &[
            "--v=10",
            "--signer=pkcs11",
            &module,
            "--pkcs11-uri=pkcs11:token=jane;object=kubernetes",
            &format!("--pkcs11-askpass={}", program.display()),
        ],
    );
    command.env("SOFTHSM2_CONF", token.configuration());
    let plugin = Plugin::of(command);
    assert!(plugin.get("/").await.unwrap().contains("\ntoken-jane\r\n"));
    let asked = std::fs::read_to_string(bench.dir.path().join("asked")).unwrap();
    assert!(asked.contains("jane"), "{asked}");
    let told = told_by(plugin).await;
    assert!(told.arguments.contains("--pkcs11-askpass="));
    let all = format!("{} {} {}", told.arguments, told.environment, told.log);
    assert!(!all.contains("24681012"), "{all}");
}
