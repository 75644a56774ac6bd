/* Keeps tensors of passes in a file: `quipu run --dump`. */
#pragma once

#include "cli/cli.h"

#include <stdio.h>

/* A safetensors file in the making. Zero-initialise. */
typedef struct dump {
    strbuf header; /* JSON, without its end */
    FILE *data;    /* the tensors, which follow the header in the file */
    uint64_t bytes;
    size_t count;
    qp_error *error;
} dump;

qp_status dump_open(dump *dump, qp_error *error);

/* A qp_engine_options.on_tensor; the context is a dump. The tensor is called "PASS.NAME". */
qp_status dump_tensor(void *context, const qp_tensor *tensor);

/* Writes the file. */
qp_status dump_write(dump *dump, const char *path);
void dump_close(dump *dump);
