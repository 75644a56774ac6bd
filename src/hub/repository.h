/* A repository of a hub: its commit and its files. */
#pragma once

#include "hub/hub.h"

typedef struct repository_file {
    char name[HUB_NAME_SIZE]; /* with folders: "onnx/model.gguf" */
    char etag[65];            /* SHA-256 of a large file, SHA-1 as git makes it of a small one */
    uint64_t bytes;
    bool large; /* which of the two hashes it is */
} repository_file;

typedef struct repository {
    char commit[65];
    repository_file *files; /* [n_files] */
    size_t n_files;
} repository;

/* Asks the hub for "main". repository_free() it, also after a failure. */
qp_status repository_read(const hub *hub, const hub_reference *reference, repository *out,
                          qp_error *error);
void repository_free(repository *repository);

/* Reads the hub's answer, in JSON; `where` names it in messages. Files whose names are no plain
 * paths, and those without a hash, are left out. repository_free() as above. */
qp_status repository_parse(const char *text, size_t length, const char *where, repository *out,
                           qp_error *error);

/* Keeps only the files that running the model needs: the GGUF file that the reference selects,
 * all parts of it, or the files of a safetensors model. QP_INVALID lists the available files or
 * types. */
qp_status repository_choose(repository *repository, const hub_reference *reference,
                            qp_error *error);

/* Whether a GGUF file's name contains that type of weights, such as "Q4_K_M", in any case. */
bool repository_is_of_type(const char *file, const char *type);
