/* Starting ranks by mpirun: see cli.h. */
#include "cli/cli.h"

#include "base/status.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_ARGUMENTS = 4096 };

/* The arguments of this process, as the system keeps them: texts one after the other. */
static size_t read_arguments(char *text, size_t size)
{
    FILE *file = fopen("/proc/self/cmdline", "r");
    const size_t length = file ? fread(text, 1, size - 1, file) : 0;
    if (file) fclose(file);
    text[length] = 0;
    return length;
}

qp_status cli_start_ranks(const cli_call *call, int ranks)
{
    static char text[1 << 20], number[16], self[4096];
    static char *arguments[MOST_ARGUMENTS];
    const size_t length = read_arguments(text, sizeof text);
    const ssize_t found = readlink("/proc/self/exe", self, sizeof self - 1);
    int n = 0;
    if (ranks < 2)
        return error_set(call->error, QP_INVALID,
                         "--ranks-by mpi needs to know how many: give --ranks N, or begin with "
                         "mpirun -n N");
    if (length == 0 || found <= 0)
        return error_set(call->error, QP_IO,
                         "/proc does not say how this process was started; "
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
