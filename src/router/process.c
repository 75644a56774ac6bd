/* Starts the process of a model: see process.h. */
#include "router/process.h"

#include "base/platform.h"
#include "router/link.h"

#include <errno.h>
#include <event2/util.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { DESCRIPTORS_MOST = 65536 };

/* In the child: becomes the server of one model. */
static void become(char *const *arguments, int link, int end)
{
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setpgid(0, 0); /* a terminal's interrupt is for the router, which lets answers end */
    /* Neither is overwritten before it is copied: the lowest numbers are taken. */
    link = fcntl(link, F_DUPFD, LINK_END_DESCRIPTOR + 1);
    end = fcntl(end, F_DUPFD, LINK_END_DESCRIPTOR + 1);
    if (dup2(link, LINK_DESCRIPTOR) == LINK_DESCRIPTOR &&
        dup2(end, LINK_END_DESCRIPTOR) == LINK_END_DESCRIPTOR) {
        for (int i = LINK_END_DESCRIPTOR + 1; i < DESCRIPTORS_MOST; i++)
            close(i);
        execv(arguments[0], arguments);
    }
    raise(SIGKILL);
}

/* The words of the command line; NULL: no memory. They are borrowed from the arguments. */
static const char **words_of(const process_command *c, const char *program, const char *host)
{
    const char **words = calloc(c->n_arguments + c->n_options + 16, sizeof *words);
    size_t n = 0;
    if (!words) return NULL;
    const char *const fixed[] = {program, "serve",  "--model", c->model,       "--alias",
                                 c->name, "--host", host,      "--started-by", "3"};
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++)
        words[n++] = fixed[i];
    for (size_t i = 0; i < c->n_arguments; i++)
        words[n++] = c->arguments[i];
    for (size_t i = 0; i < c->n_options; i++)
        words[n++] = c->options[i];
    return words;
}

/* `ends`: of the socket; `pipe`: the child's end first. */
static qp_status fork_child(char *const *words, const int ends[2], const int pipe[2],
                            pid_t *process, qp_error *error)
{
    evutil_make_socket_closeonexec(ends[0]);
    *process = fork();
    if (*process == 0) become(words, ends[1], pipe[0]);
    close(ends[1]);
    close(pipe[0]);
    if (*process > 0) return QP_OK;
    const int why = errno;
    close(ends[0]);
    close(pipe[1]);
    return error_set(error, QP_IO, "the system refused to start a process: %s", strerror(why));
}

qp_status process_start(const process_command *command, pid_t *process, int *link, int *end,
                        qp_error *error)
{
    char program[4096], host[128];
    int ends[2], pipe[2];
    if (!platform_program(program, sizeof program))
        return error_set(error, QP_IO, "the file of this program is not known");
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0)
        return error_set(error, QP_IO, "no socket for a process: %s", strerror(errno));
    if (platform_pipe(pipe) != 0) {
        const int why = errno;
        close(ends[0]);
        close(ends[1]);
        return error_set(error, QP_IO, "no pipe for a process: %s", strerror(why));
    }
    snprintf(host, sizeof host, "unix:%s", command->socket);
    const char **words = words_of(command, program, host);
    if (!words) {
        for (int i = 0; i < 2; i++)
            close(ends[i]), close(pipe[i]);
        return error_no_memory(error, "a process", 0);
    }
    const qp_status status = fork_child((char *const *)words, ends, pipe, process, error);
    free(words);
    if (status != QP_OK) return status;
    evutil_make_socket_nonblocking(ends[0]);
    *link = ends[0];
    *end = pipe[1];
    return QP_OK;
}
