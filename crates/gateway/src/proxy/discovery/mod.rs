//! Responses to requests for discovery and OpenAPI of the cluster.

mod intercept;
mod merged_response;
mod openapi_response;
mod server_list;
mod server_openapi;

pub(super) use intercept::Intercept;

#[cfg(test)]
mod tests;
