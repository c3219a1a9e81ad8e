//! The tour: demonstrates the claims of the README, with and without bridges. Each step states
//! what is expected, and whether it was observed.

use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::Result;
use http::StatusCode;
use serde::Serialize;
use skewbridge_client::remote_command::ExitStatus;
use skewbridge_fake_cluster::catalogue::Release;
use skewbridge_fake_cluster::cluster::{Cluster, POD, POLICY_PATH};

use super::client::{Contexts, ResponseSummary};
use super::exec::{ExecOutcome, exec};
use crate::console::Color;

/// Time for a change to reach all bridges.
const CONVERGENCE_TIMEOUT: Duration = Duration::from_secs(45);

/// Interval between requests while waiting for a change.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The results of the tour.
#[derive(Debug, Default, Serialize)]
pub(super) struct Report {
    steps: Vec<Step>,
    passed: bool,
}

/// A step of it.
#[derive(Debug, Serialize)]
struct Step {
    title: &'static str,
    sights: Vec<Observation>,
    /// Why the step could not be completed.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    passed: bool,
}

/// An observation.
#[derive(Debug, Serialize)]
struct Observation {
    /// The context of the request.
    context: String,
    /// The equivalent kubectl command.
    command: String,
    /// What was observed.
    saw: String,
    /// The explanation.
    meaning: &'static str,
    /// Whether it was as expected.
    as_promised: bool,
}

/// The running tour.
pub(super) struct Tour<'a, W> {
    contexts: Contexts,
    cluster: &'a mut Cluster,
    out: W,
    output: TourOutput,
    report: Report,
}

/// How the tour is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TourOutput {
    /// Step by step.
    Text(Color),
    /// At the end, as one document.
    Json,
}

impl Report {
    /// Whether all steps passed.
    pub(super) fn passed(&self) -> bool {
        self.passed
    }

    /// Marks the last step as failed.
    fn fail(&mut self, error: String) {
        if let Some(step) = self.steps.last_mut() {
            step.passed = false;
            step.error = Some(error);
        }
    }
}

const POLICIES: &str = "get mutatingadmissionpolicies hello";

impl<'a, W: Write> Tour<'a, W> {
    /// A tour before its first step.
    pub(super) fn new(cluster: &'a mut Cluster, output: TourOutput, out: W) -> Result<Self> {
        Ok(Self {
            contexts: Contexts::read(cluster.kubeconfig())?,
            cluster,
            out,
            output,
            report: Report::default(),
        })
    }

    /// Runs all steps, even if an earlier one failed.
    pub(super) async fn run(mut self) -> Result<Report> {
        let done = self.object().await;
        self.finish_step(done);
        let done = self.counts().await;
        self.finish_step(done);
        let done = self.exec().await;
        self.finish_step(done);
        let done = self.kill().await;
        self.finish_step(done);
        let done = self.upgrade().await;
        self.finish_step(done);
        let report = &mut self.report;
        report.passed = report.steps.iter().all(|step| step.passed);
        match self.output {
            TourOutput::Text(color) => {
                let steps = self.report.steps.len();
                let kept = self.report.steps.iter().filter(|it| it.passed).count();
                let words = format!("{kept} of {steps} steps passed.");
                let words = if kept == steps {
                    color.success(words)
                } else {
                    color.failure(words)
                };
                self.print_line(&words);
            }
            TourOutput::Json => {
                let text = serde_json::to_string_pretty(&self.report)?;
                self.write(&text);
            }
        }
        Ok(self.report)
    }

    async fn object(&mut self) -> Result<()> {
        self.start_step("An object of an API that only the newest server has");
        let response = self.contexts.get("server-1.28", POLICY_PATH).await?;
        self.record(
            "server-1.28",
            POLICIES,
            &response.to_string(),
            "directly from the old server: a 404, although the object exists",
            response.status == StatusCode::NOT_FOUND,
        );
        let response = self.contexts.get("bridge-1.28", POLICY_PATH).await?;
        self.record(
            "bridge-1.28",
            POLICIES,
            &response.to_string(),
            "through its bridge: forwarded to a server that has the API",
            response.status == StatusCode::OK,
        );
        Ok(())
    }

    async fn counts(&mut self) -> Result<()> {
        self.start_step("One complete discovery");
        let mut of_servers = Vec::new();
        for release in Release::ALL {
            let context = format!("server-{release}");
            let count = self.contexts.resources(&context).await?;
            of_servers.push(count);
            let meaning = "what this server serves itself";
            self.record(
                &context,
                "api-resources",
                &resources(count),
                meaning,
                count > 0,
            );
        }
        let most = of_servers.into_iter().max().unwrap_or_default();
        let mut of_bridges = Vec::new();
        for release in Release::ALL {
            let context = format!("bridge-{release}");
            let count = self.contexts.resources(&context).await?;
            of_bridges.push(count);
            let is_whole = count >= most && of_bridges.iter().all(|it| *it == count);
            let meaning = "what all servers serve together";
            self.record(
                &context,
                "api-resources",
                &resources(count),
                meaning,
                is_whole,
            );
        }
        Ok(())
    }

    async fn exec(&mut self) -> Result<()> {
        self.start_step("exec by WebSocket, where the server only speaks SPDY");
        let words = ["sh", "-c", "echo hello from $POD_NAME; exit 3"];
        // At this verbosity kubectl shows which protocol it uses.
        let command = format!("exec -v=4 {POD} -- sh -c 'echo hello from $POD_NAME; exit 3'");
        let is_promised = |ran: &ExecOutcome| {
            let code = match &ran.ended {
                ExitStatus::Code(code) => code.number(),
                _ => 0,
            };
            ran.stdout == "hello from web" && code == 3
        };
        let endpoint = self.contexts.endpoint("server-1.28").await?;
        let ran = exec(endpoint, POD, &words).await?;
        self.record(
            "server-1.28",
            &command,
            &ran.to_string(),
            "directly: kubectl falls back to SPDY; a client that has only WebSocket fails",
            ran.fallback.is_some() && is_promised(&ran),
        );
        let endpoint = self.contexts.endpoint("bridge-1.28").await?;
        let ran = exec(endpoint, POD, &words).await?;
        self.record(
            "bridge-1.28",
            &command,
            &ran.to_string(),
            "through its bridge: translated, with the exit code, and no fallback",
            ran.fallback.is_none() && is_promised(&ran),
        );
        Ok(())
    }

    async fn kill(&mut self) -> Result<()> {
        self.start_step("The newest server is killed");
        let newest = self.cluster.find("1.36")?;
        self.cluster.kill(newest).await;
        self.note("server-1.36 is killed, as if its machine had lost power.");
        let seen = self.without_newest().await;
        // In any case: the next step needs the server.
        let back = self.with_newest_again(newest).await;
        seen.and(back)
    }

    async fn with_newest_again(&mut self, newest: usize) -> Result<()> {
        self.cluster.start_server(newest).await?;
        self.note("server-1.36 is started again.");
        let (response, saw_404) = self
            .repeat_until("bridge-1.28", |response| response.status == StatusCode::OK)
            .await?;
        self.record(
            "bridge-1.28",
            POLICIES,
            &response.to_string(),
            "there was never a 404",
            response.status == StatusCode::OK && !saw_404,
        );
        Ok(())
    }

    async fn without_newest(&mut self) -> Result<()> {
        let response = self.contexts.get("server-1.28", POLICY_PATH).await?;
        self.record(
            "server-1.28",
            POLICIES,
            &response.to_string(),
            "directly: the same 404; a controller would treat the object as deleted",
            response.status == StatusCode::NOT_FOUND,
        );
        let (response, saw_404) = self
            .repeat_until("bridge-1.28", |response| {
                response.status == StatusCode::SERVICE_UNAVAILABLE
            })
            .await?;
        self.record(
            "bridge-1.28",
            POLICIES,
            &response.to_string(),
            "through its bridge: unavailable for now, try again",
            response.status == StatusCode::SERVICE_UNAVAILABLE && !saw_404,
        );
        Ok(())
    }

    async fn upgrade(&mut self) -> Result<()> {
        self.start_step("A server is upgraded while it is used");
        let newest = self.cluster.find("1.36")?;
        self.cluster.set_release(newest, Release::V1_34).await?;
        self.note("server-1.36 is rolled back to 1.34: no server has the API now.");
        let (response, _) = self
            .repeat_until("bridge-1.28", |response| {
                response.status == StatusCode::NOT_FOUND
            })
            .await?;
        self.record(
            "bridge-1.28",
            POLICIES,
            &response.to_string(),
            "now the 404 is correct",
            response.status == StatusCode::NOT_FOUND,
        );
        let before = self.contexts.resources("bridge-1.28").await?;
        self.record(
            "bridge-1.28",
            "api-resources",
            &resources(before),
            "before the upgrade",
            before > 0,
        );
        self.cluster.set_release(newest, Release::V1_36).await?;
        self.note("server-1.36 is upgraded in place, from 1.34 to 1.36.");
        for release in Release::ALL {
            let context = format!("bridge-{release}");
            let (response, _) = self
                .repeat_until(&context, |response| response.status == StatusCode::OK)
                .await?;
            self.record(
                &context,
                POLICIES,
                &response.to_string(),
                "the API appears everywhere",
                response.status == StatusCode::OK,
            );
        }
        let started = Instant::now();
        let mut after = self.contexts.resources("bridge-1.28").await?;
        while after <= before && started.elapsed() < CONVERGENCE_TIMEOUT {
            tokio::time::sleep(POLL_INTERVAL).await;
            after = self.contexts.resources("bridge-1.28").await?;
        }
        let grown = after.saturating_sub(before);
        let saw = format!("{}, {grown} more", resources(after));
        let meaning = "and so do the other APIs of 1.36";
        self.record("bridge-1.28", "api-resources", &saw, meaning, grown > 0);
        Ok(())
    }

    /// Repeats the request until the response matches, and returns whether there was a 404
    /// before.
    async fn repeat_until(
        &self,
        context: &str,
        wanted: impl Fn(&ResponseSummary) -> bool,
    ) -> Result<(ResponseSummary, bool)> {
        let started = Instant::now();
        let mut saw_404 = false;
        loop {
            let response = self.contexts.get(context, POLICY_PATH).await?;
            if wanted(&response) || started.elapsed() > CONVERGENCE_TIMEOUT {
                return Ok((response, saw_404));
            }
            saw_404 |= response.status == StatusCode::NOT_FOUND;
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    fn start_step(&mut self, title: &'static str) {
        self.report.steps.push(Step {
            title,
            sights: Vec::new(),
            error: None,
            passed: true,
        });
        let number = self.report.steps.len();
        if let TourOutput::Text(color) = self.output {
            self.print_line(&color.bold(format_args!("{number}. {title}")));
        }
    }

    fn note(&mut self, words: &str) {
        if let TourOutput::Text(_) = self.output {
            self.print_line(&format!("   {words}"));
        }
    }

    fn record(
        &mut self,
        context: &str,
        command: &str,
        saw: &str,
        meaning: &'static str,
        as_promised: bool,
    ) {
        let command = format!("kubectl --context={context} {command}");
        if let TourOutput::Text(color) = self.output {
            self.print_line(&format!("   $ {command}"));
            let (mark, saw) = if as_promised {
                (color.success("✓"), saw.to_owned())
            } else {
                (color.failure("✗"), color.failure(saw))
            };
            self.print_line(&format!("   {mark} {saw}"));
            self.print_line(&format!("     {}", color.dim(meaning)));
        }
        if let Some(step) = self.report.steps.last_mut() {
            step.passed &= as_promised;
            step.sights.push(Observation {
                context: context.to_owned(),
                command,
                saw: saw.to_owned(),
                meaning,
                as_promised,
            });
        }
    }

    /// Ends a step.
    fn finish_step(&mut self, done: Result<()>) {
        if let Err(error) = done {
            let error = format!("{error:#}");
            if let TourOutput::Text(color) = self.output {
                let (mark, words) = (color.failure("✗"), color.failure(&error));
                self.print_line(&format!("   {mark} {words}"));
            }
            self.report.fail(error);
        }
        if let TourOutput::Text(_) = self.output {
            self.print_line("");
        }
    }

    fn print_line(&mut self, line: &str) {
        self.write(line);
    }

    fn write(&mut self, line: &str) {
        // Write errors are ignored: the reader may have closed the pipe. The exit code still
        // shows the result.
        let _ = writeln!(self.out, "{line}");
        let _ = self.out.flush();
    }
}

fn resources(count: usize) -> String {
    format!("{count} resources")
}

impl std::fmt::Display for ResponseSummary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.status.as_u16(), self.summary)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_that_cannot_be_completed_has_failed_with_its_error() {
        let mut report = Report::default();
        for title in ["one", "two"] {
            report.steps.push(Step {
                title,
                sights: Vec::new(),
                error: None,
                passed: true,
            });
        }
        report.fail("server-1.28: connection refused".to_owned());
        let result = serde_json::to_value(&report).unwrap();
        assert_eq!(
            result["steps"],
            serde_json::json!([
                {"title": "one", "sights": [], "passed": true},
                {
                    "title": "two",
                    "sights": [],
                    "error": "server-1.28: connection refused",
                    "passed": false,
                },
            ])
        );
    }
}
