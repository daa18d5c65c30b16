//! A package of 64 MiB to a client that takes it and does no more, against copying the file.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Instant;

use skillyard::pb::registry::v1::fetch_package_response::Part;
use skillyard::pb::registry::v1::{FetchPackageRequest, GetSkillRequest};

use crate::Options;
use crate::catalog::registry::Registry;
use crate::table::{Goal, Table};

const BYTES: usize = (64 << 20) - (64 << 10);

pub(crate) async fn measure(options: &Options, table: &mut Table) {
    let registry = Registry::start(crate::place(), write).await;
    let request = GetSkillRequest { name: "large".into(), ..Default::default() };
    let digest = registry.catalog().await.get_skill(request).await.unwrap().into_inner().skill.unwrap().digest;
    let mut client = registry.packages().await;
    for round in 0..=options.rounds {
        let (before, began) = (registry.cpu(), Instant::now());
        let mut stream =
            client.fetch_package(FetchPackageRequest { digest: digest.clone() }).await.unwrap().into_inner();
        let mut bytes = 0;
        while let Some(message) = stream.message().await.unwrap() {
            if let Some(Part::Data(data)) = message.part {
                bytes += data.len();
            }
        }
        let (fetch, cpu) = (began.elapsed().as_secs_f64(), registry.cpu() - before);
        assert!(bytes > BYTES);
        let copy = copy(&registry.path().join("ext/large/data"), &registry.path().join("copy"));
        if round > 0 {
            table.add("FetchPackage of 64 MiB, bytes a second", "copying the file", Goal::AtLeast(0.5), copy / fetch);
            table.add("FetchPackage of 64 MiB, ms of processor", "", Goal::None, cpu * 1e3);
        }
    }
}

fn write(root: &Path) {
    let directory = root.join("ext/large");
    std::fs::create_dir(&directory).unwrap();
    std::fs::write(directory.join("data"), (0..BYTES).map(|at| ((at * at) >> 7) as u8).collect::<Vec<_>>()).unwrap();
    std::fs::write(directory.join("run.sh"), "#!/bin/sh\n").unwrap();
    std::fs::set_permissions(directory.join("run.sh"), std::fs::Permissions::from_mode(0o755)).unwrap();
    let manifest = r#"{"name":"large","description":"Has much.","entry":"run.sh"}"#;
    std::fs::write(directory.join("skill.json"), manifest).unwrap();
}

/// Read and written, so that no file system shares the blocks of the two.
fn copy(from: &Path, to: &Path) -> f64 {
    let _ = std::fs::remove_file(to);
    let began = Instant::now();
    let (mut from, mut to) = (File::open(from).unwrap(), File::create(to).unwrap());
    let mut buffer = vec![0; 256 << 10];
    loop {
        match from.read(&mut buffer).unwrap() {
            0 => return began.elapsed().as_secs_f64(),
            read => to.write_all(&buffer[..read]).unwrap(),
        }
    }
}
