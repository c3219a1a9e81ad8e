//! The playground's newer servers and their bridges compared with real ones, with every
//! kubectl.

use crate::playground::kubectl_prints_the_same;

#[tokio::test]
async fn kubectl_output_equals_that_of_newer_servers() {
    kubectl_prints_the_same(&["1.34", "1.36"]).await;
}
