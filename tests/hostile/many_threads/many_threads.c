#include <pthread.h>
#include <unistd.h>
static void *stay(void *x) { pause(); return x; }
int main(void) {
    for (int i = 0; i < 100; i++) { pthread_t t; pthread_create(&t, 0, stay, 0); }
    pause();
}
