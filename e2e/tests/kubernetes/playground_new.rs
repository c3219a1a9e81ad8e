//! The playground's newer servers and their bridges beside real ones, by every kubectl.

use crate::playground::kubectl_prints_the_same;

#[tokio::test]
async fn kubectl_prints_what_newer_servers_have_it_print() {
    kubectl_prints_the_same(&["1.34", "1.36"]).await;
}
