/* What every suite includes: cmocka and a few helpers. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "quipu.h"

/* Whether AddressSanitizer makes work slow: numbers that the suites check without it need not all
 * be checked again. */
#ifdef __SANITIZE_ADDRESS__
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

/* Fails with the message when a call did not return QP_OK. */
#define assert_ok(call)                                                                            \
    do {                                                                                           \
        qp_error *test_error_ = &error;                                                            \
        if ((call) != QP_OK) fail_msg("%s: %s", #call, test_error_->message);                      \
    } while (0)

/* Path of a file in the optional test data, or NULL where the data is absent. Static buffer. */
static inline const char *test_data(const char *name)
{
    static char path[4096];
    const char *root = getenv("QUIPU_TEST_DATA");
    if (!root || !*root) return NULL;
    snprintf(path, sizeof path, "%s/%s", root, name);
    FILE *file = fopen(path, "rb");
    if (file) fclose(file);
    return file ? path : NULL;
}

/* Skips the running test and says why: scripts/tally reads the line, and fails a skip without one.
 */
#define skip_because(...)                                                                          \
    do {                                                                                           \
        print_message("skipped: " __VA_ARGS__);                                                    \
        print_message("\n");                                                                       \
        skip();                                                                                    \
    } while (0)

/* Skips the running test where `path` is NULL. */
#define require_data(path, name)                                                                   \
    do {                                                                                           \
        if (!(path)) skip_because("%s is not in QUIPU_TEST_DATA", name);                           \
    } while (0)
