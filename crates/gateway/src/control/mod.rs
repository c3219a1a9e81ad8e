//! Background tasks: they maintain the cluster snapshot, probe upstream, run the self-test and
//! merge OpenAPI documents.

pub(crate) mod internal_client;
mod openapi_merger;
pub(crate) mod peer_controller;
pub(crate) mod self_test;
pub(crate) mod upstream_probe;
