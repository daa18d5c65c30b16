#include <unistd.h>
int main(void) {
    char b[4096];
    while (read(0, b, sizeof b) > 0) { }
    return write(1, "{}", 2) == 2 ? 0 : 1;
}
