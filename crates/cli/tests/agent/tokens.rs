//! A key that exists only in a token, where `SoftHSM2` is installed.

use skewbridge_testkit::{SoftToken, eventually};

use crate::agent_fixture::{AgentFixture, Client, Plugin, TEST_TIMEOUT};
use crate::secrets::inspect;

#[tokio::test]
async fn the_key_in_the_token_authenticates_the_user() {
    let Some(token) = SoftToken::new("jane", "246810") else {
        return;
    };
    let fixture = AgentFixture::new();
    let key = token.generate("rsa:2048", "kubernetes", "01");
    let certificate = fixture
        .ca
        .client_with_key(&key, "token-jane", &["developers"]);
    token.store(&certificate, "kubernetes", "01");
    fixture.dir.write("pin", "246810\n");
    fixture.dir.write("wrong", "111111\n");
    let server = fixture.server().await;
    let client = Client::start(&fixture);
    let info = fixture.info(&format!("https://{}", server.addr()), Some(&client.lock));
    let agent = |args: &[&str]| {
        let module = format!("--pkcs11-module={}", token.library().display());
        let uri = "--pkcs11-uri=pkcs11:token=jane;object=kubernetes";
        let args = [&["--signer=pkcs11", &module, uri], args].concat();
        let mut command = fixture.agent(&info, &args);
        command.env("SOFTHSM2_CONF", token.configuration());
        command
    };
    let rows: [(&[&str], &str); 2] = [
        (&["--pkcs11-pin-file=wrong"], "the PIN is wrong"),
        // The client is not interactive: there is no prompt.
        (
            &[],
            "a PIN is needed, and the client has passed no terminal",
        ),
    ];
    for (args, expected) in rows {
        let output = agent(args).output().unwrap();
        let printed = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1));
        assert!(
            printed.contains(&format!("token \"jane\": {expected}")),
            "{printed}"
        );
    }
    let plugin = Plugin::start(agent(&["--pkcs11-pin-file=pin"]));
    let is_jane = || async { plugin.get("/").await.unwrap().contains("\ntoken-jane\r\n") };
    assert!(is_jane().await);
    // The connection is lost while the token is removed.
    token.remove();
    server.kill_connections().await;
    // Requests before the loss is detected fail differently.
    eventually("an error about the token", TEST_TIMEOUT, async || {
        let answer = plugin.get("/").await.unwrap();
        answer.contains("it is not present; insert it")
    })
    .await;
    token.insert_again();
    eventually("the token's key", TEST_TIMEOUT, async || is_jane().await).await;
}

#[tokio::test]
async fn the_pin_of_the_askpass_program_is_not_exposed() {
    let Some(token) = SoftToken::new("jane", "24681012") else {
        return;
    };
    let fixture = AgentFixture::new();
    let key = token.generate("EC:secp384r1", "kubernetes", "01");
    let certificate = fixture.ca.client_with_key(&key, "token-jane", &[]);
    token.store(&certificate, "kubernetes", "01");
    let program = fixture.dir.write_program(
        "askpass",
        "#!/bin/sh\necho \"$1\" >> prompt\necho 24681012\n",
    );
    let server = fixture.server().await;
    let client = Client::start(&fixture);
    let info = fixture.info(&format!("https://{}", server.addr()), Some(&client.lock));
    let module = format!("--pkcs11-module={}", token.library().display());
    let mut command = fixture.agent(
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
    let plugin = Plugin::start(command);
    assert!(plugin.get("/").await.unwrap().contains("\ntoken-jane\r\n"));
    let prompt = std::fs::read_to_string(fixture.dir.path().join("prompt")).unwrap();
    assert!(prompt.contains("jane"), "{prompt}");
    let exposed = inspect(plugin).await;
    assert!(exposed.arguments.contains("--pkcs11-askpass="));
    let all = format!(
        "{} {} {}",
        exposed.arguments, exposed.environment, exposed.log
    );
    assert!(!all.contains("24681012"), "{all}");
}
