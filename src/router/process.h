/* Starts the process of a model. */
#pragma once

#include "base/status.h"

#include <sys/types.h>

/* The command line: `quipu serve` for the model, at a unix socket, with the options of all models
 * and then those of this one. */
typedef struct process_command {
    const char *model, *name, *socket;
    const char *const *arguments; /* [n_arguments] */
    size_t n_arguments;
    char *const *options; /* [n_options] */
    size_t n_options;
} process_command;

/* *link is the socket over which it speaks (link.h); it ends when *end is closed. QP_IO: the system
 * refuses. */
qp_status process_start(const process_command *command, pid_t *process, int *link, int *end,
                        qp_error *error);
