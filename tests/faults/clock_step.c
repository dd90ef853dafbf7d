/* Shifts the wall clock of a process that has this preloaded, by the seconds (int64) in a file. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *step_s;

__attribute__((constructor)) static void map(void) {
    const char *path = getenv("CLOCK_STEP");
    int file = path ? open(path, O_RDONLY) : -1;
    if (file < 0)
        return;
    void *page = mmap(NULL, sizeof *step_s, PROT_READ, MAP_SHARED, file, 0);
    if (page != MAP_FAILED)
        step_s = page;
    close(file);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real)
        real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int code = real(clock, now);
    if (code == 0 && clock == CLOCK_REALTIME && step_s)
        now->tv_sec += *step_s;
    return code;
}
