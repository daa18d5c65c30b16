#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
static volatile sig_atomic_t asked;
static void ask(int signal) { asked = signal; }
int main(void) {
    signal(SIGTERM, ask);
    char path[4096], word[16];
    snprintf(path, sizeof path, "%s/secret", getenv("TMPDIR"));
    FILE *f = fopen(path, "w");
    if (!f || fputs("secret", f) < 0 || fclose(f)) return 1;
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    int n = snprintf(a.sun_path + 1, sizeof a.sun_path - 1, "skillyard-victim-%d", getpid());
    int s = socket(AF_UNIX, SOCK_STREAM, 0);
    if (bind(s, (struct sockaddr *)&a, sizeof a.sun_family + 1 + n) || listen(s, 5)) return 2;
    fprintf(stderr, "{\"pid\":\"%d\",\"slot\":\"%d\",\"tmp\":\"%s\"}\n", getpid(), getppid(), getenv("TMPDIR"));
    /* Looked at once more when it is asked to end. */
    for (int last = 0; !last;) {
        last = asked;
        memset(word, 0, sizeof word);
        f = fopen(path, "r");
        if (f) {
            if (!fgets(word, sizeof word, f)) word[0] = 0;
            fclose(f);
        }
        if (strcmp(word, "secret") != 0) {
            fputs("done: the secret was changed\n", stderr);
            return 3;
        }
        if (!last) usleep(50000);
    }
    return 0;
}
