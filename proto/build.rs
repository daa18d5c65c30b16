//! Generates the messages and services from the .proto files, without protoc.

use std::error::Error;
use std::path::PathBuf;
use std::{env, fs};

const FILES: [&str; 7] = [
    "skillyard/skill/v1/skill.proto",
    "skillyard/registry/v1/agent.proto",
    "skillyard/registry/v1/approval.proto",
    "skillyard/registry/v1/catalog.proto",
    "skillyard/registry/v1/history.proto",
    "skillyard/registry/v1/package.proto",
    "skillyard/executor/v1/executor.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=skillyard");
    println!("cargo:rerun-if-changed=build.rs");
    let mut compiler = protox::Compiler::new(["."])?;
    compiler.include_imports(true).include_source_info(true).open_files(FILES)?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("descriptor_set.bin"), compiler.encode_file_descriptor_set())?;
    tonic_prost_build::configure().compile_fds(compiler.file_descriptor_set())?;
    Ok(())
}
