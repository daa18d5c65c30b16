//! What the operator says of isolation, as skills find it: the network, what may be written, who confines himself.

use std::process::Stdio;
use std::time::Duration;

use skillyard::pb::executor::v1::{GetStatusRequest, Outcome};
use skillyard_tests::run::{Live, call, succeeded};
use skillyard_tests::{AgentFile, Skill, World, binaries, process};

use crate::approvals::{AGENT, signed};

/// Names the sockets that it could make, and whether one of the unix domain works.
const SOCKETS: &str = r#"
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>
int main(void) {
    int families[] = { AF_INET, AF_INET6, AF_NETLINK, AF_PACKET, AF_VSOCK };
    int port = 0, pair[2];
    char byte = 'x';
    if (scanf("%d", &port) != 1) fputs("no port\n", stderr);
    for (int i = 0; i < 5; i++) {
        int s = socket(families[i], SOCK_DGRAM, 0);
        if (s >= 0 || errno != EACCES) fprintf(stderr, "family %d: %d\n", families[i], s < 0 ? errno : 0);
    }
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(port), .sin_addr = { htonl(INADDR_LOOPBACK) } };
    int s = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(s, (struct sockaddr *)&to, sizeof to) == 0) fputs("connected\n", stderr);
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) || write(pair[0], &byte, 1) != 1 || read(pair[1], &byte, 1) != 1)
        fputs("no unix sockets\n", stderr);
    /* io_uring_setup: a ring makes sockets that no filter sees. */
    if (syscall(425, 1, 0) != -1 || errno != ENOSYS) fputs("a ring\n", stderr);
    puts("{}");
    return 0;
}
"#;

#[tokio::test]
async fn the_network_is_denied_and_unix_sockets_are_not() {
    // Arguments are an object: the port is what is left once its brace is skipped.
    let source = SOCKETS.replace("scanf(\"%d\"", "scanf(\"{\\\"port\\\":%d\"");
    let builder = World::builder().variable("SKILLYARD_DENY_NETWORK", "true");
    let mut world = builder.skill(Skill::c("sockets", &source)).start().await;
    let isolation = world.status().await.isolation;
    assert!(isolation.iter().any(|name| name == "deny-network"), "{isolation:?}");
    for port in [world.registry_address().port(), world.executor_address().port()] {
        let run = world.run(call("sockets").args(format!("{{\"port\":{port}}}"))).await;
        assert_eq!(run, succeeded("{}\n"));
    }
}

#[tokio::test]
async fn mutating_skills_write_what_is_writable_alone() {
    let builder = World::builder().known_callers().agent(&AgentFile::new(AGENT).mode(AGENT));
    let (open, other) = (builder.path("open"), builder.path("other"));
    for directory in [&open, &other] {
        std::fs::create_dir(directory).unwrap();
    }
    let tried = format!("{} {} $TMPDIR", open.display(), other.display());
    let script = format!("for d in {tried}; do (echo x >$d/new) 2>/dev/null && echo $d >&2; done; echo '{{}}'");
    let mut builder = builder.flag("--writable", open.display());
    for class in ["safe", "mutating"] {
        builder = builder.skill(Skill::sh(class, &script).set("class", class).set("env_allow", vec!["TMPDIR"]));
    }
    let mut world = builder.start().await;
    let status = world.executor_as("operator").get_status(GetStatusRequest {}).await.unwrap().into_inner();
    if !status.isolation.iter().any(|name| name == "files") {
        return eprintln!("not tried: only {:?} is to be had here", status.isolation);
    }
    for class in ["safe", "mutating"] {
        let mut call = call(class).agent(AGENT).args("{}");
        if class == "mutating" {
            call = call.approval(&signed(&mut world, AGENT, class, "{}", &["ann"]).await);
        }
        let run = Live::open(world.executor_as("orchestrator"), call).await.unwrap().rest().await;
        assert_eq!(run.finished.outcome(), Outcome::Succeeded, "{run:?}");
        assert_eq!(open.join("new").exists(), class == "mutating", "{class}");
        // The directory, if it was written, and the run's own.
        assert_eq!(run.stderr.lines().count(), if class == "mutating" { 2 } else { 1 }, "{class}: {}", run.stderr);
    }
    assert!(!other.join("new").exists());
}

#[test]
fn what_cannot_be_writable_is_refused_with_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("state");
    std::fs::create_dir(&state).unwrap();
    for (writable, why) in [
        (directory.path().to_str().unwrap(), "overlap"),
        (state.to_str().unwrap(), "overlap"),
        ("/", "overlap"),
        (".", "is relative: write an absolute path"),
        ("/nowhere/at/all", "make it first, or leave it out"),
    ] {
        let mut executor = process::command(&binaries::executor());
        executor.args(["--listen", "127.0.0.1:0", "--writable", writable]).arg("--state-dir").arg(&state);
        let output = executor.env_clear().stdin(Stdio::null()).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{writable}: {stderr}");
        assert!(stderr.contains("--writable") && stderr.contains(why), "{writable}: {stderr}");
    }
}

#[tokio::test]
async fn a_self_confined_skill_runs_under_no_level_and_others_do() {
    let script =
        "sed -n 's/^NoNewPrivs:[^0-9]*//p;s/^Seccomp:[^0-9]*//p' /proc/self/status | tr '\\n' ' ' >&2; echo '{}'";
    let skills = ["boxed", "plain"].map(|name| Skill::sh(name, script).set("env_allow", vec!["PATH"]));
    let builder = World::builder().slots(1, 4).flag("--self-confined", "boxed");
    let mut world = skills.into_iter().fold(builder, |builder, skill| builder.skill(skill)).start().await;
    let isolation = world.status().await.isolation;
    assert!(isolation.iter().any(|name| name.ends_with("self-confined: boxed")), "{isolation:?}");
    // One slot is all there may be: each makes room for one of the other kind.
    for _ in 0..3 {
        assert_eq!(world.run("boxed").await.stderr.trim(), "0 0");
        assert_eq!(world.run("plain").await.stderr.trim(), "1 2");
        let own = format!("--scratch={}/", world.path("state/scratch").display());
        skillyard_tests::eventually("one slot is left", async || {
            process::all().iter().filter(|process| process.command.contains(&own)).count() == 1
        })
        .await;
    }
    world.quiet(Duration::from_secs(30)).await;
}
