//! Finds a pod by its name or by its owner.

use std::time::Duration;

use serde::de::DeserializeOwned;
use skewbridge_client::{Endpoint, Error, ErrorResponse, Request};
use tokio::time::{Instant, sleep};

use super::object::{List, NamedObject, Pod, Service, Workload};
use super::reference::{Kind, Reference};
use crate::client_command::Failure;
use crate::similar_names::similar_names;

/// Interval between lists while waiting for a pod.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Maximum number of pods that are listed, to choose one of a workload or to suggest names.
const MAX_LISTED_PODS: usize = 500;

/// The pods of a namespace.
#[derive(Debug, Clone)]
pub(crate) struct Pods {
    pub(crate) endpoint: Endpoint,
    pub(crate) namespace: String,
}

/// A pod that was found.
#[derive(Debug, Clone)]
pub(crate) struct FoundPod {
    pub(crate) pod: Pod,
    /// The service that selected it.
    pub(crate) service: Option<Service>,
}

impl Pods {
    /// The pod of a reference: the pod itself, or the best one of its owner. Waits up to
    /// `max_wait` if there is none yet.
    pub(crate) async fn find(
        &self,
        to: &Reference,
        max_wait: Duration,
    ) -> Result<FoundPod, Failure> {
        if to.kind == Kind::Pod {
            let pod = self.pod(&to.name).await?;
            return Ok(FoundPod { pod, service: None });
        }
        let path = format!("{}/{}", to.kind.path(&self.namespace), escaped(&to.name));
        let body = match self.body(&path).await {
            Ok(body) => body,
            Err(error) => return Err(self.not_found_failure(error, to.kind, &to.name).await),
        };
        let workload: Workload = read(&body, &path)?;
        let Some(selector) = workload.selector() else {
            let (kind, name) = (to.kind.singular(), &to.name);
            let what = match to.kind {
                Kind::Service => "Service is defined without a selector".to_owned(),
                _ => format!("{kind} is defined without a selector"),
            };
            return Err(Failure::new(format!("invalid {kind} '{name}': {what}")));
        };
        let service = match to.kind {
            Kind::Service => Some(read(&body, &path)?),
            _ => None,
        };
        let pod = self.best_of(&selector, max_wait).await?;
        let Some(pod) = pod else {
            return Err(
                Failure::new("timed out waiting for the condition").hint(format!(
                    "no pod in namespace {:?} has the labels of {}/{}: {selector}",
                    self.namespace,
                    to.kind.singular(),
                    to.name
                )),
            );
        };
        Ok(FoundPod { pod, service })
    }

    /// A pod by its name.
    pub(crate) async fn pod(&self, name: &str) -> Result<Pod, Failure> {
        let path = format!("{}/{}", Kind::Pod.path(&self.namespace), escaped(name));
        match self.body(&path).await {
            Ok(body) => read(&body, &path),
            Err(error) => Err(self.not_found_failure(error, Kind::Pod, name).await),
        }
    }

    /// A service by its name.
    pub(crate) async fn service(&self, name: &str) -> Result<Service, Failure> {
        let path = format!("{}/{}", Kind::Service.path(&self.namespace), escaped(name));
        match self.body(&path).await {
            Ok(body) => read(&body, &path),
            Err(error) => Err(self.explain(error, "get", Kind::Service)),
        }
    }

    async fn best_of(&self, selector: &str, max_wait: Duration) -> Result<Option<Pod>, Failure> {
        let query = format!(
            "labelSelector={}&limit={MAX_LISTED_PODS}",
            escaped(selector)
        );
        let path = format!("{}?{query}", Kind::Pod.path(&self.namespace));
        let until = Instant::now() + max_wait;
        loop {
            let body = self.body(&path).await;
            let body = body.map_err(|error| self.explain(error, "list", Kind::Pod))?;
            let list: List<Pod> = read(&body, &path)?;
            let best = list.items.into_iter().max_by_key(Pod::fitness);
            if best.is_some() || Instant::now() + POLL_INTERVAL >= until {
                return Ok(best);
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// The failure to get an object by name; if it does not exist, with similar names.
    async fn not_found_failure(&self, error: Error, kind: Kind, name: &str) -> Failure {
        match error {
            Error::Api { response, .. } if response.code == 404 => {
                self.suggest(Failure::refused(&response), kind, name).await
            }
            error => self.explain(error, "get", kind),
        }
    }

    async fn suggest(&self, failure: Failure, kind: Kind, name: &str) -> Failure {
        let path = format!("{}?limit={MAX_LISTED_PODS}", kind.path(&self.namespace));
        // Without permission to list, there are no suggestions.
        let Ok(body) = self.body(&path).await else {
            return failure;
        };
        let Ok(list) = read::<List<NamedObject>>(&body, &path) else {
            return failure;
        };
        let names = list.items.iter().map(|it| it.metadata.name.as_str());
        let similar = similar_names(name, names);
        let (namespace, kinds) = (&self.namespace, kind.plural());
        if similar.is_empty() {
            let known = match list.items.len() {
                0 => format!("has no {kinds}"),
                _ => format!("has {kinds}, but none with a name like it"),
            };
            return failure.hint(format!(
                "namespace {namespace:?} {known}; see kubectl get {kinds} -A"
            ));
        }
        failure.hint(format!(
            "did you mean {}? (namespace {namespace:?})",
            similar.join(", ")
        ))
    }

    fn explain(&self, error: Error, verb: &str, kind: Kind) -> Failure {
        match error {
            Error::Api { response, .. } => {
                explain_refusal(&response, verb, kind.plural(), &self.namespace)
            }
            error => error.into(),
        }
    }

    async fn body(&self, path: &str) -> Result<bytes::Bytes, Error> {
        let request = Request::get(path).header("accept", "application/json");
        let answer = self.endpoint.send(&request).await?;
        if answer.status.as_u16() == 200 {
            return Ok(answer.body);
        }
        let response = Box::new(ErrorResponse::parse(answer.status.as_u16(), &answer.body));
        let server = self.endpoint.server();
        Err(Error::Api { server, response })
    }
}

/// A refusal, with advice where there is some.
pub(crate) fn explain_refusal(
    response: &ErrorResponse,
    verb: &str,
    resource: &str,
    namespace: &str,
) -> Failure {
    let failure = Failure::refused(response);
    match response.code {
        401 => {
            failure.hint("the server did not accept the credentials: log in again, or give --token")
        }
        403 if response.is_status() => failure.hint(format!(
            "the request needs the verb {verb} on {resource} in namespace {namespace:?}; \
             see kubectl auth can-i {verb} {resource} -n {namespace}"
        )),
        _ => failure,
    }
}

fn read<T: DeserializeOwned>(body: &[u8], path: &str) -> Result<T, Failure> {
    serde_json::from_slice(body).map_err(|error| {
        Failure::new(format!(
            "the server's answer to {path} cannot be read: {error}"
        ))
    })
}

fn escaped(text: &str) -> String {
    skewbridge_client::remote_command::escape_component(text)
}
