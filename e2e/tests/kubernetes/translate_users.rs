//! Which right a stream needs, by every way to a server: by WebSocket it is a GET and
//! needs `get`, by SPDY a POST and needs `create`, and no translation lets anybody in
//! who has only the lesser of them.

use std::net::SocketAddr;

use serde_json::{Value, json};
use skewbridge_e2e::{
    Bridge, ControlPlane, HttpClient, Node, Protocol, Request, ServerSpec, control_planes, is_since,
};
use skewbridge_testkit::{H1Client, PATIENCE, TlsClient, eventually};

use crate::streaming::{allow, ask, ask_spdy, path};

/// Who may do what: each is a user with a certificate, and a service account.
const RIGHTS: [(&str, &[&str]); 3] = [
    ("only-get", &["get"]),
    ("only-create", &["create"]),
    ("both", &["get", "create"]),
];

const SUBRESOURCES: [&str; 3] = ["exec", "attach", "portforward"];

/// How a stream is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Path {
    WebSocketStraight,
    WebSocketTranslated,
    WebSocketLeft,
    SpdyStraight,
    SpdyLeft,
    SpdyInverse,
}

impl Path {
    const ALL: [Self; 6] = [
        Self::WebSocketStraight,
        Self::WebSocketTranslated,
        Self::WebSocketLeft,
        Self::SpdyStraight,
        Self::SpdyLeft,
        Self::SpdyInverse,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::WebSocketStraight => "WebSocket, straight",
            Self::WebSocketTranslated => "WebSocket, --translate-streams=always",
            Self::WebSocketLeft => "WebSocket, --translate-streams=auto",
            Self::SpdyStraight => "SPDY, straight",
            Self::SpdyLeft => "SPDY, through a bridge",
            Self::SpdyInverse => "SPDY, --upstream-streams=websocket",
        }
    }

    /// What a server of this version makes of somebody with these rights.
    fn expected(self, version: &str, verbs: &[&str]) -> &'static str {
        let (get, create) = (verbs.contains(&"get"), verbs.contains(&"create"));
        // KEP-4006: from 1.31 on for all kinds of streams.
        let native = is_since(version, 31);
        match self {
            Self::WebSocketLeft if !native => Self::WebSocketTranslated.expected(version, verbs),
            Self::WebSocketStraight | Self::WebSocketLeft => match (get, create) {
                (false, _) => "403 get",
                (true, false) if is_since(version, 35) => "403 create",
                (true, _) if native => "101",
                (true, _) => "refused by the node",
            },
            Self::WebSocketTranslated | Self::SpdyStraight | Self::SpdyLeft if create => "101",
            Self::WebSocketTranslated | Self::SpdyStraight | Self::SpdyLeft => "403 create",
            Self::SpdyInverse => match (get, create) {
                (_, false) => "403 create",
                (false, true) => "403 get",
                (true, true) if native => "101",
                (true, true) => "502",
            },
        }
    }
}

#[tokio::test]
async fn every_way_needs_its_right() {
    for versions in control_planes() {
        let servers: Vec<_> = versions
            .iter()
            .map(|version| ServerSpec::of(version))
            .collect();
        let plane = ControlPlane::start(&servers).await;
        let _node = plane.start_node().await;
        let mut users = Vec::new();
        for (name, verbs) in RIGHTS {
            let token = allow(&plane, name, verbs).await;
            let bearer = format!("Authorization: Bearer {token}\r\n");
            users.push(User {
                name: format!("{name}, by certificate"),
                verbs,
                client: plane.client(name),
                more: String::new(),
            });
            users.push(User {
                name: format!("{name}, by token"),
                verbs,
                client: plane.anonymous_client(),
                more: bearer,
            });
        }
        for (server, version) in versions.iter().enumerate() {
            judge(&plane, server, version, &users).await;
        }
    }
}

struct User {
    name: String,
    verbs: &'static [&'static str],
    client: TlsClient,
    /// Headers that prove who it is.
    more: String,
}

async fn judge(plane: &ControlPlane, server: usize, version: &str, users: &[User]) {
    let straight = plane.servers[server].address;
    for user in users {
        is_known(user, straight).await;
    }
    let bridges = Bridges {
        straight,
        left: plane.servers[server].bridge,
        always: plane
            .start_bridge_for(straight, &["--translate-streams=always"])
            .await,
        inverse: plane
            .start_bridge_for(straight, &["--upstream-streams=websocket"])
            .await,
    };
    println!("| {version} | only get | only create | both |\n|---|---|---|---|");
    for path in Path::ALL {
        let mut row = format!("| {} |", path.name());
        for user in users {
            let expected = path.expected(version, user.verbs);
            for subresource in SUBRESOURCES {
                let answer = bridges.ask(path, user, subresource).await;
                let (name, path) = (&user.name, path.name());
                let what = format!("{version}, {subresource}: {path}, {name}");
                let (cell, text) = cell(answer);
                assert_eq!(cell, expected, "{what}: {text}");
            }
            if user.more.is_empty() {
                row.extend([" ", expected, " |"]);
            }
        }
        println!("{row}");
    }
}

/// Waits until a server knows what a user may do, which it hears from etcd.
async fn is_known(user: &User, server: SocketAddr) {
    let mut client = HttpClient::new(user.client.clone(), server, Protocol::H1);
    let verb = user.verbs[0];
    let question = json!({"spec": {"resourceAttributes": {"namespace": Node::NAMESPACE,
        "verb": verb, "version": "v1", "resource": "pods", "subresource": "portforward"}}});
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let mut request = Request::new("POST", path).body("application/json", &question.to_string());
    if let Some((name, value)) = user.more.trim().split_once(": ") {
        request = request.header(name, value);
    }
    eventually(&user.name, PATIENCE, async || {
        let answer = client.send(&request).await.unwrap();
        let answer = serde_json::from_slice::<Value>(&answer.body).unwrap();
        answer["status"]["allowed"] == true
    })
    .await;
}

struct Bridges {
    straight: SocketAddr,
    left: SocketAddr,
    always: Bridge,
    inverse: Bridge,
}

impl Bridges {
    async fn ask(
        &self,
        by: Path,
        user: &User,
        subresource: &str,
    ) -> Result<H1Client, (u16, String)> {
        let path = match subresource {
            "exec" => path(subresource, "command=true&stdout=true"),
            "attach" => path(subresource, "stdin=true&stdout=true"),
            _ => path(subresource, ""),
        };
        let (websocket, spdy) = match subresource {
            "portforward" => ("SPDY/3.1+portforward.k8s.io", "portforward.k8s.io"),
            _ => ("v5.channel.k8s.io", "v4.channel.k8s.io"),
        };
        let address = match by {
            Path::WebSocketStraight | Path::SpdyStraight => self.straight,
            Path::WebSocketLeft | Path::SpdyLeft => self.left,
            Path::WebSocketTranslated => self.always.address,
            Path::SpdyInverse => self.inverse.address,
        };
        let (client, more) = (&user.client, &user.more);
        match by {
            Path::SpdyStraight | Path::SpdyLeft | Path::SpdyInverse => {
                ask_spdy(client, address, &path, spdy, more).await
            }
            _ => ask(client, address, &path, websocket, more).await,
        }
    }
}

/// An answer in a word, and all of it.
fn cell(answer: Result<H1Client, (u16, String)>) -> (&'static str, String) {
    let Err((code, text)) = answer else {
        return ("101", String::new());
    };
    let cell = match code {
        403 if text.contains("cannot get resource") => "403 get",
        403 if text.contains("cannot create resource") => "403 create",
        // From 1.35 on kube-apiserver asks for `create` as well, and does not say so.
        403 if text.contains("is forbidden: \"") => "403 create",
        // A protocol that it does not speak, or a way to name ports that it does not know.
        403 | 400 if !text.starts_with('{') => "refused by the node",
        502 => "502",
        _ => "something else",
    };
    (cell, format!("{code} {text}"))
}
