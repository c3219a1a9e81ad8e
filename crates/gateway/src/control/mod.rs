//! Background tasks: they maintain the cluster snapshot, probe upstream, run the self-test, merge
//! OpenAPI documents and find out what the ledger of vanishing APIs needs.

pub(crate) mod internal_client;
mod openapi_merger;
pub(crate) mod peer_controller;
pub(crate) mod review;
pub(crate) mod reviewer;
pub(crate) mod self_test;
mod shared_merges;
pub(crate) mod upstream_probe;
mod upstream_readiness;
pub(crate) mod vanishing;
