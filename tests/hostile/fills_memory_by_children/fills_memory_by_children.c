#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int main(void) {
    for (int i = 0; i < 8; i++)
        if (fork() == 0) {
            setsid();
            memset(malloc(20 << 20), 1, 20 << 20);
            pause();
        }
    pause();
}
