//! tmp
use clap::Args;
/// x
#[derive(Args, Debug, Clone)]
pub struct RunArgs {}
/// x
pub async fn run(_args: RunArgs) -> std::process::ExitCode {
    std::process::ExitCode::SUCCESS
}
