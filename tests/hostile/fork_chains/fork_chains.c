#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int *count, most;

/* Counts in memory that all share, and stops growing at `most`: a host is to survive a failing test. */
static void begin(void) {
    char arguments[65536];
    arguments[fread(arguments, 1, sizeof arguments - 1, stdin)] = 0;
    char *value = strstr(arguments, "\"most\":\"");
    if (!value) exit(9);
    most = atoi(value + 8);
    count = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
}
static pid_t grow(void) {
    if (__sync_add_and_fetch(count, 1) > most) pause();
    return fork();
}

int main(void) {
    begin();
    signal(SIGTERM, SIG_IGN);
    int i = 0;
    while (i < 4 && grow() > 0) i++;
    if (i == 4) pause();
    for (;;) {
        setsid();
        if (grow() > 0 && grow() > 0) _exit(0);
    }
}
