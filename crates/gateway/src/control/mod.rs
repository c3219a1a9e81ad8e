//! Tasks beside the requests: they learn what the cluster serves, probe upstream, and merge
//! OpenAPI documents.

pub(crate) mod internal_client;
mod openapi_merger;
pub(crate) mod peer_controller;
pub(crate) mod self_test;
pub(crate) mod upstream_probe;
