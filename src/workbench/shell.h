/* Runs a program of the user's with a text on its standard input, and takes what it prints. */
#pragma once

#include "base/status.h"
#include "base/strbuf.h"

enum { SHELL_OUTPUT_MOST = 4 << 20 };

/* Runs `command` by /bin/sh with the rights of the user. Its standard error is this process's. What
 * it prints on standard output is appended to `out`, at most SHELL_OUTPUT_MOST bytes. With all
 * that it started it is killed after timeout_ms, or when *cancel is set (may be NULL).
 * QP_FORMAT: it failed, took too long or printed too much; QP_CANCELLED; QP_IO: it did not start.
 */
qp_status shell_run(const char *command, const char *input, size_t length, int timeout_ms,
                    const volatile int *cancel, strbuf *out, qp_error *error);
