//! Runs one skill: `cargo run -p skillyard --example run_skill -- log_summary '{"path": "sample.log"}'`.
//!
//! Shows the call alone; what a caller does when it fails is in the README's table.

use std::error::Error;
use std::io::Write as _;
use std::{env, io};

use skillyard::pb::executor::v1::executor_service_client::ExecutorServiceClient;
use skillyard::pb::executor::v1::run_event::Event;
use skillyard::pb::executor::v1::run_skill_request::Arguments;
use skillyard::pb::executor::v1::{Outcome, RunSkillRequest};
use skillyard::service::dial::{DialOptions, Dialer};
use tonic_types::StatusExt as _;

async fn run(executor: String, skill: String, arguments: String) -> Result<String, Box<dyn Error>> {
    let options = DialOptions { token_file: env::var_os("SKILLYARD_TOKEN_FILE").map(Into::into), ..Default::default() };
    let dialer = Dialer::check(&executor, &options).map_err(|faults| format!("{faults:?}"))?;
    let mut client = ExecutorServiceClient::new(dialer);
    let request =
        RunSkillRequest { skill, arguments: Some(Arguments::ArgsJson(arguments)), ..RunSkillRequest::default() };
    let mut events = match client.run_skill(request).await {
        Ok(response) => response.into_inner(),
        Err(status) => {
            let reason = status.get_error_details().error_info().map(|info| info.reason.clone()).unwrap_or_default();
            return Err(format!("{reason}: {}", status.message()).into());
        }
    };
    let mut result = String::new();
    while let Some(response) = events.message().await? {
        match response.event.and_then(|event| event.event) {
            Some(Event::Log(log)) => io::stderr().write_all(log.text.as_bytes())?,
            Some(Event::Result(chunk)) => result.push_str(&chunk.json),
            Some(Event::Finished(finished)) if finished.outcome() == Outcome::Succeeded => return Ok(result),
            Some(Event::Finished(finished)) => {
                return Err(format!("{}: {}", finished.outcome().as_str_name(), finished.message).into());
            }
            _ => {}
        }
    }
    Err("the stream ended before the run did".into())
}

fn main() -> Result<(), Box<dyn Error>> {
    let executor = env::var("SKILLYARD_EXECUTOR").unwrap_or_else(|_| "http://127.0.0.1:50052".to_owned());
    let mut words = env::args().skip(1);
    let (skill, arguments) = (words.next().ok_or("which skill?")?, words.next().unwrap_or_else(|| "{}".to_owned()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    writeln!(io::stdout(), "{}", runtime.block_on(run(executor, skill, arguments))?)?;
    Ok(())
}
