//! Fetches the discovery of one server, or of all servers of a cluster from its bridge.

use http::StatusCode;
use serde::Deserialize;
use skewbridge_client::{Connection, Endpoint, Error, Request, Response};
use skewbridge_discovery::document::Group;
use skewbridge_discovery::{
    DiscoveryFormat, Document, LegacyDiscovery, ServerDiscoveryList, accept, servers,
};

/// A document of a cluster with very many custom resources has some 2 MiB.
const MAX_DOCUMENT_BYTES: usize = 8 * 1024 * 1024;

/// The list of a bridge has one document per server.
const MAX_LIST_BYTES: usize = 64 * 1024 * 1024;

/// Maximum number of group-versions that are fetched one by one: servers before 1.26 have 30.
const MAX_LISTS: usize = 1_000;

/// How much of a server's message is repeated.
const MAX_MESSAGE_CHARS: usize = 300;

/// The version and discovery of a server.
#[derive(Debug)]
pub(crate) struct Fetched {
    pub(crate) version: Option<String>,
    pub(crate) groups: Vec<Group>,
    /// The list of the bridge in front of it, if there is one.
    pub(crate) bridge: Option<ServerDiscoveryList>,
}

/// The response to a request for a bridge's list.
#[derive(Debug)]
pub(crate) enum FetchResult {
    Bridge(ServerDiscoveryList),
    NoBridge,
}

/// Fetches the discovery of a server: aggregated documents where it has them, else one list
/// after the other (before 1.26).
pub(crate) async fn server(endpoint: Endpoint) -> Result<Fetched, String> {
    served(&mut ServerClient::new(endpoint)).await
}

/// The same, on a connection that can be used further.
pub(super) async fn served(client: &mut ServerClient) -> Result<Fetched, String> {
    let version = client.version().await?;
    // One request if there is no bridge: the fallback is the server's own document.
    let (bridge, apis) = match client.bridge_or_document().await? {
        DiscoveryAnswer::Bridge(list) => (Some(list), client.document("/apis").await?),
        apis => (None, apis),
    };
    let mut groups = match apis {
        DiscoveryAnswer::Document(apis) => match client.document("/api").await? {
            DiscoveryAnswer::Document(api) => [api.items, apis.items].concat(),
            _ => return Err("/api: not aggregated, although /apis is".to_owned()),
        },
        DiscoveryAnswer::Legacy(apis) => client.legacy(&apis).await?,
        DiscoveryAnswer::Bridge(_) => {
            return Err("/apis: the response is not a discovery document".to_owned());
        }
    };
    // A group without resources is left out.
    groups.retain(|group| !group.versions.is_empty());
    Ok(Fetched {
        version,
        groups,
        bridge,
    })
}

/// Fetches the list of all servers of a cluster.
pub(crate) async fn bridge(endpoint: Endpoint) -> Result<FetchResult, String> {
    let answer = ServerClient::new(endpoint).servers().await?;
    match list_in(&answer)? {
        Some(list) => Ok(FetchResult::Bridge(list)),
        None => Ok(FetchResult::NoBridge),
    }
}

enum DiscoveryAnswer {
    Bridge(ServerDiscoveryList),
    Document(Document),
    Legacy(Response),
}

/// The servers of a cluster, if it is a bridge that answered.
fn list_in(answer: &Response) -> Result<Option<ServerDiscoveryList>, String> {
    if !servers::is_content_type(answer.content_type()) {
        return Ok(None);
    }
    ServerDiscoveryList::parse(&answer.body)
        .map(Some)
        .map_err(|error| format!("/apis: {error}"))
}

/// A server, and the current connection to it.
pub(super) struct ServerClient {
    endpoint: Endpoint,
    connection: Option<Connection>,
}

impl ServerClient {
    pub(super) fn new(endpoint: Endpoint) -> Self {
        Self {
            endpoint,
            connection: None,
        }
    }

    pub(super) async fn send(&mut self, request: &Request) -> Result<Response, String> {
        if let Some(mut connection) = self.connection.take().filter(Connection::is_ready) {
            match connection.send(request).await {
                Ok(answer) => {
                    self.connection = Some(connection);
                    return Ok(answer);
                }
                // Servers and load balancers close idle connections; a GET can be repeated.
                Err(Error::ConnectionLost { .. }) => {}
                Err(error) => return Err(error.to_string()),
            }
        }
        let connection = self.endpoint.connect().await;
        let mut connection = connection.map_err(|error| error.to_string())?;
        let answer = connection.send(request).await;
        self.connection = Some(connection);
        answer.map_err(|error| error.to_string())
    }

    async fn ok(&mut self, path: &str, request: Request) -> Result<Response, String> {
        let answer = self.send(&request).await?;
        match answer.status {
            StatusCode::OK => Ok(answer),
            _ => Err(refusal(path, &answer)),
        }
    }

    async fn get(&mut self, path: &str) -> Result<Response, String> {
        let request = Request::get(path).header("accept", accept::LEGACY_NOPEER);
        self.send(&request.limit(MAX_DOCUMENT_BYTES)).await
    }

    /// The version of the server, if it is readable.
    async fn version(&mut self) -> Result<Option<String>, String> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Info {
            git_version: String,
        }
        let answer = self.get("/version").await?;
        match answer.status {
            StatusCode::OK => {
                let info: Option<Info> = serde_json::from_slice(&answer.body).ok();
                Ok(info.map(|info| info.git_version))
            }
            StatusCode::FORBIDDEN => Ok(None),
            _ => Err(refusal("/version", &answer)),
        }
    }

    /// Requests the list of all servers, with the server's own document as fallback.
    async fn servers(&mut self) -> Result<Response, String> {
        let request = Request::get("/apis").header("accept", servers::ACCEPT);
        self.ok("/apis", request.limit(MAX_LIST_BYTES)).await
    }

    async fn bridge_or_document(&mut self) -> Result<DiscoveryAnswer, String> {
        let answer = self.servers().await?;
        match list_in(&answer)? {
            Some(list) => Ok(DiscoveryAnswer::Bridge(list)),
            None => Self::read("/apis", answer),
        }
    }

    async fn document(&mut self, path: &str) -> Result<DiscoveryAnswer, String> {
        let request = Request::get(path).header("accept", accept::LOCAL_DOCUMENT);
        let answer = self.ok(path, request.limit(MAX_DOCUMENT_BYTES)).await?;
        Self::read(path, answer)
    }

    fn read(path: &str, answer: Response) -> Result<DiscoveryAnswer, String> {
        match DiscoveryFormat::from_content_type(answer.content_type()) {
            Some(DiscoveryFormat::V2 | DiscoveryFormat::V2Beta1) => Document::parse(&answer.body)
                .map(DiscoveryAnswer::Document)
                .map_err(|error| format!("{path}: {error}")),
            Some(DiscoveryFormat::Legacy) => Ok(DiscoveryAnswer::Legacy(answer)),
            None => Err(format!("{path}: the response is not a discovery document")),
        }
    }

    async fn legacy(&mut self, apis: &Response) -> Result<Vec<Group>, String> {
        let api = self.get("/api").await?;
        if api.status != StatusCode::OK {
            return Err(refusal("/api", &api));
        }
        let mut legacy = LegacyDiscovery::from_groups(&api.body, &apis.body)
            .map_err(|error| error.to_string())?;
        let paths: Vec<_> = legacy.paths().collect();
        if paths.len() > MAX_LISTS {
            return Err(format!("/apis: more than {MAX_LISTS} group-versions"));
        }
        for path in paths {
            let answer = self.get(&path).await?;
            match answer.status {
                StatusCode::OK => legacy
                    .add(&path, &answer.body)
                    .map_err(|error| format!("{path}: {error}"))?,
                // Registered by another server, or by one that is not available: not served by
                // this one.
                StatusCode::NOT_FOUND | StatusCode::SERVICE_UNAVAILABLE => {}
                _ => return Err(refusal(&path, &answer)),
            }
        }
        Ok(legacy.into_document().items)
    }
}

/// With kubectl's message where it has one.
pub(crate) fn refusal(path: &str, answer: &Response) -> String {
    #[derive(Deserialize)]
    struct Status {
        message: String,
    }
    let status: Option<Status> = serde_json::from_slice(&answer.body).ok();
    let words = match &status {
        Some(status) => status.message.clone(),
        None => String::from_utf8_lossy(&answer.body).trim().to_owned(),
    };
    let words: String = words.chars().take(MAX_MESSAGE_CHARS).collect();
    match answer.status {
        StatusCode::UNAUTHORIZED => {
            "you must be logged in to the server (Unauthorized); has the token or certificate \
             expired?"
                .to_owned()
        }
        StatusCode::FORBIDDEN => format!("you are not allowed to read {path}: {words}"),
        status if words.is_empty() => format!("the server answered {status} to {path}"),
        status => format!("the server answered {status} to {path}: {words}"),
    }
}
