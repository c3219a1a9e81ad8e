//! The playground's oldest server and its bridge compared with a real one, with every kubectl.

use crate::playground::kubectl_prints_the_same;

#[tokio::test]
async fn kubectl_output_equals_that_of_the_oldest_server() {
    kubectl_prints_the_same(&["1.28"]).await;
}
