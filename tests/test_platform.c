/* What the operating system does in its own way: base/platform.h. */
#include "base/platform.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* A thread that is bound to one of its processors runs on that one only, and its child sees that.
 */
static void test_processors(void **state)
{
    (void)state;
    static int all[PLATFORM_PROCESSORS], own[PLATFORM_PROCESSORS];
    const int n = platform_processors(all);
    assert_true(n > 0);
    platform_bind(&all[n - 1], 1);
    assert_int_equal(platform_processors(own), 1);
    assert_int_equal(own[0], all[n - 1]);
    platform_bind(all, n);
    assert_int_equal(platform_processors(own), n);
    assert_memory_equal(own, all, sizeof *all * (size_t)n);
}

static void test_facts(void **state)
{
    (void)state;
    static char text[1 << 16];
    assert_true(platform_free_memory() > 1 << 20);
    assert_true(platform_resident_memory() > 1 << 10);
    assert_true(platform_build_id() != 0);
    assert_true(platform_build_id() == platform_build_id());
    assert_true(platform_program(text, sizeof text));
    assert_int_equal(access(text, X_OK), 0);
    const size_t length = platform_arguments(text, sizeof text);
    assert_true(length > 1 && text[length - 1] == '\0');
    const int files = platform_open_files(), copy = dup(0);
    assert_true(files > 0 && copy >= 0);
    assert_int_equal(platform_open_files(), files + 1);
    close(copy);
    uint64_t numbers[2][4] = {0};
    assert_true(platform_random(numbers[0], sizeof *numbers));
    assert_true(platform_random(numbers[1], sizeof *numbers));
    assert_memory_not_equal(numbers[0], numbers[1], sizeof *numbers);
}

static void test_threads_are_listed(void **state)
{
    (void)state;
    int n = 0;
    DIR *folder = platform_threads(0);
    assert_non_null(folder);
    for (const struct dirent *entry; (entry = readdir(folder));)
        n += entry->d_name[0] != '.';
    closedir(folder);
    assert_true(n >= 1); /* sanitizers have threads of their own */
    assert_null(platform_threads(0x7fffffff));
}

/* The size stays, and another process finds the file by its name only. */
static void test_memory_file(void **state)
{
    (void)state;
    const int file = platform_memory_file("quipu-test", 8192);
    assert_true(file >= 0);
    assert_int_equal(ftruncate(file, 4096), -1);
    assert_int_equal(ftruncate(file, 16384), -1);
    char *memory = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    assert_true(memory != MAP_FAILED);
    memory[8191] = 7;
    const pid_t parent = getpid(), child = fork();
    if (child == 0) {
        const int same = platform_memory_file_of(parent, file, "quipu-test");
        const int other = platform_memory_file_of(parent, file, "quipu-other");
        const int none = platform_memory_file_of(parent, 0, "quipu-test");
        char last = 0;
        const bool read = same >= 0 && pread(same, &last, 1, 8191) == 1;
        _exit(read && last == 7 && other < 0 && none < 0 ? 0 : 1);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    munmap(memory, 8192);
    close(file);
}

/* Several signals before a wait are one; a wait that does not block returns without any. */
static void test_event(void **state)
{
    (void)state;
    const int event = platform_event_open(true), free_event = platform_event_open(false);
    assert_true(event >= 0 && free_event >= 0);
    platform_event_wait(free_event);
    platform_event_signal(event);
    platform_event_signal(event);
    platform_event_wait(event);
    platform_event_signal(event);
    platform_event_wait(event);
    close(event);
    close(free_event);
}

/* A child that asked ends with its parent, also when the parent ended before it asked. */
static void test_end_with_parent(void **state)
{
    (void)state;
    int ends[2];
    char byte;
    assert_int_equal(platform_pipe(ends), 0);
    const pid_t middle = fork();
    if (middle == 0) {
        const pid_t parent = getpid();
        if (fork() == 0) {
            platform_end_with_parent(parent);
            for (;;)
                pause();
        }
        _exit(0);
    }
    close(ends[1]);
    assert_int_equal(read(ends[0], &byte, 1), 0); /* all that held the other end have ended */
    assert_int_equal(waitpid(middle, NULL, 0), middle);
    close(ends[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_processors),
        cmocka_unit_test(test_facts),
        cmocka_unit_test(test_threads_are_listed),
        cmocka_unit_test(test_memory_file),
        cmocka_unit_test(test_event),
        cmocka_unit_test(test_end_with_parent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
