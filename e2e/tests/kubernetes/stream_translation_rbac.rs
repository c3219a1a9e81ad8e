//! The right that a stream needs, for every path to a server: over WebSocket it is a GET
//! and needs `get`, over SPDY a POST and needs `create`, and no translation admits a user
//! with only the `get` right.

use std::net::SocketAddr;

use serde_json::{Value, json};
use skewbridge_e2e::{
    Bridge, ControlPlane, HttpClient, Node, Protocol, Request, ServerSpec, control_planes, is_since,
};
use skewbridge_testkit::{H1Client, TEST_TIMEOUT, TlsClient, eventually};

use crate::streaming::{allow, path, request_spdy, request_websocket};

/// The rights: each name is a user with a certificate, and a service account.
const RIGHTS: [(&str, &[&str]); 3] = [
    ("only-get", &["get"]),
    ("only-create", &["create"]),
    ("both", &["get", "create"]),
];

const SUBRESOURCES: [&str; 3] = ["exec", "attach", "portforward"];

/// How a stream is requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Path {
    WebSocketDirect,
    WebSocketTranslated,
    WebSocketLeft,
    SpdyDirect,
    SpdyLeft,
    SpdyInverse,
}

impl Path {
    const ALL: [Self; 6] = [
        Self::WebSocketDirect,
        Self::WebSocketTranslated,
        Self::WebSocketLeft,
        Self::SpdyDirect,
        Self::SpdyLeft,
        Self::SpdyInverse,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::WebSocketDirect => "WebSocket, direct",
            Self::WebSocketTranslated => "WebSocket, --translate-streams=always",
            Self::WebSocketLeft => "WebSocket, --translate-streams=auto",
            Self::SpdyDirect => "SPDY, direct",
            Self::SpdyLeft => "SPDY, through a bridge",
            Self::SpdyInverse => "SPDY, --upstream-streams=websocket",
        }
    }

    /// The expected response of a server of this version to a user with these rights.
    fn expected(self, version: &str, verbs: &[&str]) -> &'static str {
        let (get, create) = (verbs.contains(&"get"), verbs.contains(&"create"));
        // KEP-4006: from 1.31 on for all kinds of streams.
        let native = is_since(version, 31);
        match self {
            Self::WebSocketLeft if !native => Self::WebSocketTranslated.expected(version, verbs),
            Self::WebSocketDirect | Self::WebSocketLeft => match (get, create) {
                (false, _) => "403 get",
                (true, false) if is_since(version, 35) => "403 create",
                (true, _) if native => "101",
                (true, _) => "refused by the node",
            },
            Self::WebSocketTranslated | Self::SpdyDirect | Self::SpdyLeft if create => "101",
            Self::WebSocketTranslated | Self::SpdyDirect | Self::SpdyLeft => "403 create",
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
async fn every_path_needs_its_right() {
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
            check_server(&plane, server, version, &users).await;
        }
    }
}

struct User {
    name: String,
    verbs: &'static [&'static str],
    client: TlsClient,
    /// The headers that authenticate the user.
    more: String,
}

async fn check_server(plane: &ControlPlane, server: usize, version: &str, users: &[User]) {
    let direct = plane.servers[server].address;
    for user in users {
        wait_until_rights_apply(user, direct).await;
    }
    let bridges = Bridges {
        direct,
        left: plane.servers[server].bridge,
        always: plane
            .start_bridge_for(direct, &["--translate-streams=always"])
            .await,
        inverse: plane
            .start_bridge_for(direct, &["--upstream-streams=websocket"])
            .await,
    };
    println!("| {version} | only get | only create | both |\n|---|---|---|---|");
    for path in Path::ALL {
        let mut row = format!("| {} |", path.name());
        for user in users {
            let expected = path.expected(version, user.verbs);
            for subresource in SUBRESOURCES {
                let answer = bridges.request_stream(path, user, subresource).await;
                let (name, path) = (&user.name, path.name());
                let what = format!("{version}, {subresource}: {path}, {name}");
                let (cell, text) = summarize_response(answer);
                assert_eq!(cell, expected, "{what}: {text}");
            }
            if user.more.is_empty() {
                row.extend([" ", expected, " |"]);
            }
        }
        println!("{row}");
    }
}

/// Waits until a server has read the rights of a user from etcd.
async fn wait_until_rights_apply(user: &User, server: SocketAddr) {
    let mut client = HttpClient::new(user.client.clone(), server, Protocol::H1);
    let verb = user.verbs[0];
    let question = json!({"spec": {"resourceAttributes": {"namespace": Node::NAMESPACE,
        "verb": verb, "version": "v1", "resource": "pods", "subresource": "portforward"}}});
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let mut request = Request::new("POST", path).body("application/json", &question.to_string());
    if let Some((name, value)) = user.more.trim().split_once(": ") {
        request = request.header(name, value);
    }
    eventually(&user.name, TEST_TIMEOUT, async || {
        let answer = client.send(&request).await.unwrap();
        let answer = serde_json::from_slice::<Value>(&answer.body).unwrap();
        answer["status"]["allowed"] == true
    })
    .await;
}

struct Bridges {
    direct: SocketAddr,
    left: SocketAddr,
    always: Bridge,
    inverse: Bridge,
}

impl Bridges {
    async fn request_stream(
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
            Path::WebSocketDirect | Path::SpdyDirect => self.direct,
            Path::WebSocketLeft | Path::SpdyLeft => self.left,
            Path::WebSocketTranslated => self.always.address,
            Path::SpdyInverse => self.inverse.address,
        };
        let (client, more) = (&user.client, &user.more);
        match by {
            Path::SpdyDirect | Path::SpdyLeft | Path::SpdyInverse => {
                request_spdy(client, address, &path, spdy, more).await
            }
            _ => request_websocket(client, address, &path, websocket, more).await,
        }
    }
}

/// A response as a word, and its text.
fn summarize_response(answer: Result<H1Client, (u16, String)>) -> (&'static str, String) {
    let Err((code, text)) = answer else {
        return ("101", String::new());
    };
    let cell = match code {
        403 if text.contains("cannot get resource") => "403 get",
        403 if text.contains("cannot create resource") => "403 create",
        // From 1.35 on kube-apiserver requires `create` as well, without saying so.
        403 if text.contains("is forbidden: \"") => "403 create",
        // A protocol, or a form of naming ports, that the server does not support.
        403 | 400 if !text.starts_with('{') => "refused by the node",
        502 => "502",
        _ => "something else",
    };
    (cell, format!("{code} {text}"))
}
