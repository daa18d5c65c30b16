#include <errno.h>
#include <unistd.h>
int main(void) {
    while (dup(0) >= 0) { }
    return errno == EMFILE && write(1, "{}", 2) == 2 ? 0 : 1;
}
