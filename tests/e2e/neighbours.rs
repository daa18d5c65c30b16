//! Skills that mean harm to a run beside them, in a slot of its own: its process, slot, sockets and files. And those
//! that hold on to what they have: descriptors, pipes, themselves.

use std::time::Duration;

use skillyard::pb::executor::v1::run_event::Event;
use skillyard_tests::run::{call, succeeded, timed_out};
use skillyard_tests::world::Builder;
use skillyard_tests::{Skill, World};

/// Has a file in its scratch directory and an abstract socket, and tells where it is.
const VICTIM: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
int main(void) {
    char path[4096];
    snprintf(path, sizeof path, "%s/secret", getenv("TMPDIR"));
    FILE *f = fopen(path, "w");
    if (!f || fputs("secret", f) < 0 || fclose(f)) return 1;
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    int n = snprintf(a.sun_path + 1, sizeof a.sun_path - 1, "skillyard-victim-%d", getpid());
    int s = socket(AF_UNIX, SOCK_STREAM, 0);
    if (bind(s, (struct sockaddr *)&a, sizeof a.sun_family + 1 + n) || listen(s, 5)) return 2;
    fprintf(stderr, "{\"pid\":%d,\"slot\":%d,\"tmp\":\"%s\"}\n", getpid(), getppid(), getenv("TMPDIR"));
    for (;;) pause();
}
"#;

/// Names what it could do, and must not.
const ATTACKER: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>
static void tried(const char *what, const char *whose, int done) {
    if (done) fprintf(stderr, "done: %s of %s\n", what, whose);
}
static void opened(const char *what, const char *whose, int pid, int flags) {
    char path[64], byte;
    snprintf(path, sizeof path, "/proc/%d/%s", pid, what);
    int fd = open(path, flags);
    // Opened with nothing in it gives nothing away: a process that may not be looked at has an empty environment.
    tried(what, whose, fd >= 0 && (flags != O_RDONLY || read(fd, &byte, 1) > 0));
    if (fd >= 0) close(fd);
}
static void process(const char *whose, int pid) {
    opened("mem", whose, pid, O_RDWR);
    opened("environ", whose, pid, O_RDONLY);
    opened("maps", whose, pid, O_RDONLY);
    opened("auxv", whose, pid, O_RDONLY);
    char path[64], link[4096], word[8];
    for (const char **what = (const char *[]){"exe", "cwd", "root", "fd/0", 0}; *what; what++) {
        snprintf(path, sizeof path, "/proc/%d/%s", pid, *what);
        tried(*what, whose, readlink(path, link, sizeof link) > 0);
    }
    tried("attach", whose, ptrace(PTRACE_ATTACH, pid, 0, 0) == 0);
    tried("seize", whose, ptrace(PTRACE_SEIZE, pid, 0, 0) == 0);
    struct iovec here = { word, sizeof word }, there = { (void *)0x400000, sizeof word };
    tried("readv", whose, process_vm_readv(pid, &here, 1, &there, 1, 0) >= 0 || errno == EFAULT);
    /* A signal to the own slot loses the own run. */
    if (pid == getppid()) return;
    tried("signal", whose, kill(pid, 0) == 0);
    tried("stop", whose, kill(pid, SIGSTOP) == 0);
    int pidfd = syscall(SYS_pidfd_open, pid, 0);
    if (pidfd >= 0) {
        tried("pidfd_getfd", whose, syscall(SYS_pidfd_getfd, pidfd, 1, 0) >= 0);
        tried("pidfd_send_signal", whose, syscall(SYS_pidfd_send_signal, pidfd, SIGTERM, 0, 0) == 0);
    }
}
static int parent(int pid) {
    char path[64], line[256];
    int found = 0;
    snprintf(path, sizeof path, "/proc/%d/status", pid);
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f)) sscanf(line, "PPid: %d", &found);
    if (f) fclose(f);
    return found;
}
int main(int argc, char **argv) {
    int pid, slot;
    char theirs[2048], path[4096], link_at[4096], byte;
    if (scanf("{\"pid\":%d,\"slot\":%d,\"tmp\":\"%2047[^\"]\"}", &pid, &slot, theirs) != 3) return 1;
    process("the other run", pid);
    process("the other slot", slot);
    process("the own slot", getppid());
    process("the executor", parent(getppid()));
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    int n = snprintf(a.sun_path + 1, sizeof a.sun_path - 1, "skillyard-victim-%d", pid);
    int s = socket(AF_UNIX, SOCK_STREAM, 0);
    tried("abstract socket", "the other run", connect(s, (struct sockaddr *)&a, sizeof a.sun_family + 1 + n) == 0);

    const char *mine = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/secret", theirs);
    int fd = open(path, O_RDONLY);
    tried("read", path, fd >= 0 && read(fd, &byte, 1) >= 0);
    tried("append", path, open(path, O_WRONLY | O_APPEND) >= 0);
    tried("truncate", path, truncate(path, 0) == 0);
    tried("unlink", path, unlink(path) == 0);
    snprintf(link_at, sizeof link_at, "%s/hard", mine);
    tried("link", path, link(path, link_at) == 0);
    tried("link", argv[0], link(argv[0], link_at) == 0);
    tried("link", "/etc/passwd", link("/etc/passwd", link_at) == 0);
    snprintf(link_at, sizeof link_at, "%s/taken", mine);
    tried("rename", path, rename(path, link_at) == 0);
    // A link may be made, and leads to nothing that was not open without it.
    snprintf(link_at, sizeof link_at, "%s/soft", mine);
    if (symlink(path, link_at)) return 2;
    fd = open(link_at, O_RDONLY);
    tried("read by link", path, fd >= 0 && read(fd, &byte, 1) >= 0);
    tried("write by link", path, open(link_at, O_WRONLY) >= 0);
    snprintf(link_at, sizeof link_at, "%s/directory", mine);
    if (symlink(theirs, link_at)) return 3;
    snprintf(link_at, sizeof link_at, "%s/directory/new", mine);
    tried("create by link", theirs, open(link_at, O_WRONLY | O_CREAT, 0600) >= 0);
    snprintf(link_at, sizeof link_at, "%s/new", theirs);
    tried("mkdir", theirs, mkdir(link_at, 0700) == 0);
    tried("mknod", theirs, mknod(link_at, S_IFIFO | 0600, 0) == 0);
    tried("write", argv[0], open(argv[0], O_WRONLY) >= 0);
    tried("unlink", argv[0], unlink(argv[0]) == 0);
    tried("shm", "all", open("/dev/shm/skillyard-hostile", O_RDWR | O_CREAT, 0600) >= 0);
    puts("{}");
    return 0;
}
"#;

/// Opens what it may, and answers then.
const DESCRIPTORS: &str = r#"
#include <errno.h>
#include <unistd.h>
int main(void) {
    while (dup(0) >= 0) { }
    return errno == EMFILE && write(1, "{}", 2) == 2 ? 0 : 1;
}
"#;

async fn beside(builder: Builder) {
    let allowed = |skill: Skill| skill.set("env_allow", vec!["TMPDIR"]);
    let builder =
        builder.slots(3, 3).skill(allowed(Skill::c("victim", VICTIM))).skill(allowed(Skill::c("attacker", ATTACKER)));
    let mut world = builder.start().await;
    let isolation = world.status().await.isolation;
    if !isolation.iter().any(|name| name == "files+signals") {
        return eprintln!("not tried: only {isolation:?} is to be had here");
    }
    let mut victim = world.open("victim").await;
    let told = |event: &Event| match event {
        Event::Log(log) => Some(log.text.trim().to_owned()),
        _ => None,
    };
    let place = victim.until("its place", told).await;
    let secret = serde_json::from_str::<serde_json::Value>(&place).unwrap()["tmp"].as_str().unwrap().to_owned();
    for _ in 0..2 {
        assert_eq!(world.run(call("attacker").args(place.clone())).await, succeeded("{}\n"));
        // Nor does the sweep of the attacker's directory follow its links.
        assert_eq!(std::fs::read_to_string(format!("{secret}/secret")).unwrap(), "secret");
    }
    drop(victim);
    world.quiet(Duration::from_secs(30)).await;
}

#[tokio::test]
async fn a_run_is_safe_from_its_neighbours_of_the_executors_user() {
    match World::builder().as_nobody() {
        // What is written later belongs to root, and is read alone.
        Ok(builder) => beside(builder).await,
        Err(why) => eprintln!("not tried: {why}"),
    }
}

#[tokio::test]
async fn a_run_is_safe_from_its_neighbours_of_another_user() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("not tried: only root can have skills run as another user");
    }
    let builder = World::builder().flag("--run-as", "65534:65534");
    std::fs::set_permissions(builder.path(""), std::os::unix::fs::PermissionsExt::from_mode(0o711)).unwrap();
    beside(builder).await;
}

/// As root, where that is who tests.
#[tokio::test]
async fn a_run_is_safe_from_its_neighbours_of_the_same_user() {
    beside(World::builder()).await;
}

/// A way to hold on to something, and that others are served.
#[tokio::test]
async fn what_holds_on_holds_up_nobody() {
    let builder = World::builder()
        .slots(2, 2)
        .skill(Skill::c("descriptors", DESCRIPTORS))
        .skill(Skill::sh("pipes", "( setsid sleep 300 & ) ; echo '{}'").timeout(60))
        .skill(Skill::sh("stops_itself", "kill -STOP $$; echo '{}'").timeout(1))
        .skill(Skill::sh("works", "echo '{}'"));
    let mut world = builder.start().await;
    for _ in 0..2 {
        let stopped = world.open("stops_itself").await;
        let seen = world.run("descriptors").await;
        assert_eq!(seen, succeeded("{}"));
        let pipes = world.run("pipes").await;
        assert_eq!(pipes.result, "{}\n", "{pipes:?}");
        assert_eq!(world.run("works").await, succeeded("{}\n"));
        assert_eq!(stopped.rest().await, timed_out("TIMEOUT").by("SIGTERM"));
        world.quiet(Duration::from_secs(30)).await;
    }
}
