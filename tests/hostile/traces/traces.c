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

static int parent(int pid) {
    char path[64], line[256];
    int found = 0;
    snprintf(path, sizeof path, "/proc/%d/status", pid);
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f)) sscanf(line, "PPid: %d", &found);
    if (f) fclose(f);
    return found;
}

static void process(const char *whose, int pid) {
    char word[8];
    struct iovec here = { word, sizeof word }, there = { (void *)0x400000, sizeof word };
    tried("readv", whose, process_vm_readv(pid, &here, 1, &there, 1, 0) >= 0 || errno == EFAULT);
    tried("writev", whose, process_vm_writev(pid, &here, 1, &there, 1, 0) >= 0 || errno == EFAULT);
    int pidfd = syscall(SYS_pidfd_open, pid, 0);
    if (pidfd >= 0) tried("pidfd_getfd", whose, syscall(SYS_pidfd_getfd, pidfd, 1, 0) >= 0);
    tried("seize", whose, ptrace(PTRACE_SEIZE, pid, 0, 0) == 0);
    tried("attach", whose, ptrace(PTRACE_ATTACH, pid, 0, 0) == 0);
}
int main(void) {
    size_t length = fread(arguments, 1, sizeof arguments - 1, stdin);
    arguments[length] = 0;

    process("the executor", parent(getppid()));
    process("the own slot", getppid());
    process("the other run", atoi(field("pid")));
    process("the other slot", atoi(field("slot")));
    puts("{}");
    return 0;
}
