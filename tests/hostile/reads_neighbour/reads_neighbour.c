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

static char arguments[65536];

/* An argument; all of them are texts. */
static const char *field(const char *name) {
    static char values[8][4096];
    static int used;
    char key[64];
    snprintf(key, sizeof key, "\"%s\":\"", name);
    char *from = strstr(arguments, key);
    if (!from) {
        fprintf(stderr, "no argument %s\n", name);
        exit(9);
    }
    from += strlen(key);
    char *value = values[used++];
    snprintf(value, 4096, "%.*s", (int)strcspn(from, "\""), from);
    return value;
}

/* The first that is done is told, and the last that is tried. */
static void tried(const char *what, const char *whose, int done) {
    if (!done) return;
    fprintf(stderr, "done: %s of %s\n", what, whose);
    puts("{}");
    exit(0);
}

int main(int argc, char **argv) {
    char path[8192], at[8192], byte;
    size_t length = fread(arguments, 1, sizeof arguments - 1, stdin);
    arguments[length] = 0;

    const char *theirs = field("tmp"), *mine = getenv("TMPDIR");
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    int n = snprintf(a.sun_path + 1, sizeof a.sun_path - 1, "skillyard-victim-%s", field("pid"));
    int s = socket(AF_UNIX, SOCK_STREAM, 0);
    tried("abstract socket", "the other run", connect(s, (struct sockaddr *)&a, sizeof a.sun_family + 1 + n) == 0);
    snprintf(path, sizeof path, "%s/secret", theirs);
    int fd = open(path, O_RDONLY);
    tried("read", path, fd >= 0 && read(fd, &byte, 1) >= 0);
    tried("append", path, open(path, O_WRONLY | O_APPEND) >= 0);
    tried("truncate", path, truncate(path, 0) == 0);
    tried("unlink", path, unlink(path) == 0);
    snprintf(at, sizeof at, "%s/hard", mine);
    tried("link", path, link(path, at) == 0);
    tried("link", argv[0], link(argv[0], at) == 0);
    tried("link", "/etc/passwd", link("/etc/passwd", at) == 0);
    snprintf(at, sizeof at, "%s/taken", mine);
    tried("rename", path, rename(path, at) == 0);
    tried("rename", theirs, rename(theirs, at) == 0);
    /* A link may be made, and leads to nothing that was not open without it. */
    snprintf(at, sizeof at, "%s/soft", mine);
    if (symlink(path, at)) return 2;
    fd = open(at, O_RDONLY);
    tried("read by link", path, fd >= 0 && read(fd, &byte, 1) >= 0);
    tried("write by link", path, open(at, O_WRONLY) >= 0);
    snprintf(at, sizeof at, "%s/directory", mine);
    if (symlink(theirs, at)) return 3;
    snprintf(at, sizeof at, "%s/directory/new", mine);
    tried("create by link", theirs, open(at, O_WRONLY | O_CREAT, 0600) >= 0);
    snprintf(at, sizeof at, "%s/new", theirs);
    tried("mkdir", theirs, mkdir(at, 0700) == 0);
    tried("mknod", theirs, mknod(at, S_IFIFO | 0600, 0) == 0);
    puts("{}");
    return 0;
}
