/* Starting ranks by mpirun: see cli.h. */
#include "cli/cli.h"

#include "base/platform.h"
#include "base/status.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

enum { MOST_ARGUMENTS = 4096 };

qp_status cli_start_ranks(const cli_call *call, int ranks)
{
    static char text[1 << 20], number[16], self[4096];
    static char *arguments[MOST_ARGUMENTS];
    const size_t length = platform_arguments(text, sizeof text);
    const bool found = platform_program(self, sizeof self);
    int n = 0;
    if (ranks < 2)
        return error_set(call->error, QP_INVALID,
                         "--ranks-by mpi needs to know how many: give --ranks N, or begin with "
                         "mpirun -n N");
    if (length == 0 || !found)
        return error_set(
            call->error, QP_IO,
            "the system does not say how this process was started (Linux: /proc is missing); "
            "begin with mpirun -n %d quipu",
            ranks);
    snprintf(number, sizeof number, "%d", ranks);
    /* Ranks bind themselves to processors. More ranks than processors take turns, and root may run
     * them, as without MPI. */
    char *const first[] = {
        "mpirun", "-n", number, "--bind-to", "none", "--oversubscribe", "--allow-run-as-root",
        self};
    for (size_t i = 0; i < sizeof first / sizeof *first; i++)
        arguments[n++] = first[i];
    for (size_t at = strlen(text) + 1; at < length && n < MOST_ARGUMENTS - 1;
         at += strlen(text + at) + 1)
        arguments[n++] = text + at;
    execvp(arguments[0], arguments);
    return error_set(
        call->error, QP_UNSUPPORTED,
        "mpirun cannot be started: %s; install Open MPI (Debian: openmpi-bin), or take "
        "--ranks-by threads",
        strerror(errno));
}
