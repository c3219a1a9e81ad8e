//! `translate`: streams through kube-apiserver's own translator and through the bridge's;
//! and the cost of a bridge in front of kube-apiserver for `kubectl cp`.

mod client;
mod copy;
pub(crate) mod node;
mod node_command;
mod result;
mod streams;

use anyhow::Result;

use self::result::{StreamsResult, TranslateResult};
use crate::args::{Translate, TranslatePart};
use crate::proxies::bridge;
use crate::report;

pub(crate) async fn run(args: Translate) -> Result<()> {
    let program = bridge::program(args.bridge.clone()).await?;
    let program = program.as_deref();
    let version = skewbridge_e2e::newest(&skewbridge_e2e::versions()).to_owned();
    let mut result = TranslateResult {
        kube_apiserver: version,
        streams: None,
        copy: None,
    };
    if args.has(TranslatePart::Streams) {
        let measured = streams::measure(&args, program, &result.kube_apiserver).await?;
        result.streams = Some(StreamsResult::new(&args, &measured)?);
    }
    if args.has(TranslatePart::Copy) {
        let copy = copy::measure(&args, program, &result.kube_apiserver).await?;
        result.copy = Some(copy);
    }
    report::print(&result, args.output)
}
