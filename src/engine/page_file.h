/* Files of pages of the KV cache: of the prompt cache (prefix_file.h) and of sessions
 * (session_file.c).
 *
 *     header | record | record ...
 *     record = entry (parent, key), tokens [page_size], K and V of every layer, checksum
 *
 * All records have the same size. Pages are only correct for the weights, the settings and the
 * build of the program that computed them: the header has a fingerprint of these, and a file with
 * another one is not used. The file is written under another name and then renamed, so a process
 * that is killed at any moment leaves the old file or the new one.
 */
#pragma once

#include "base/replace_file.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct qp_engine;

typedef struct page_file_header {
    char magic[16];
    uint64_t fingerprint[2]; /* of the weights, settings and program that computed the pages */
    uint64_t page_size, page_bytes, count;
    uint64_t checksum; /* of the bytes before it */
} page_file_header;

typedef struct page_file_entry {
    int64_t parent; /* the record of the page before this one; -1: none */
    uint64_t key;
} page_file_entry;

typedef struct page_file_record {
    char *bytes;
    size_t tokens, data, checksum, size; /* offsets */
} page_file_record;

typedef struct page_file {
    struct qp_engine *engine;
    const char *path, *what;      /* "a prompt cache", for messages */
    FILE *stream;                 /* that is read */
    file_replacement replacement; /* that is written */
    page_file_header header;
    page_file_record record; /* the last one */
    uint64_t bytes;          /* of the file that is read */
} page_file;

/* A number for the model's weights and sizes; it differs between models. Files of weights are
 * sampled: the first and the middle bytes of each tensor. */
uint64_t page_file_model(const struct qp_engine *engine);

/* `magic`: 16 bytes. page_file_close() the file, also after a failure. */
qp_status page_file_init(page_file *file, struct qp_engine *engine, const char *path,
                         const char *magic, const char *what, qp_error *error);
void page_file_close(page_file *file);

/* Writing: the header, bytes, records, and the file's name. */
qp_status page_file_begin(page_file *file, uint64_t count, qp_error *error);
qp_status page_file_write(page_file *file, const void *bytes, size_t size, qp_error *error);
qp_status page_file_write_record(page_file *file, uint64_t index, page_file_entry entry,
                                 const int32_t *tokens, int32_t page, qp_error *error);
qp_status page_file_end(page_file *file, qp_error *error);

/* Reads the header. *found: there is a file. QP_FORMAT: it is damaged, or another's. */
qp_status page_file_open(page_file *file, bool *found, qp_error *error);
bool page_file_read(page_file *file, void *bytes, size_t size);

typedef enum page_file_found { PAGE_FILE_GOOD, PAGE_FILE_DAMAGED, PAGE_FILE_ENDED } page_file_found;

/* Reads the next record, whose tokens and page then are these. */
page_file_found page_file_read_record(page_file *file, uint64_t index, page_file_entry *entry);
const int32_t *page_file_tokens(const page_file *file);
qp_status page_file_restore_page(const page_file *file, int32_t page, qp_error *error);

/* The checksum of a header. */
uint64_t page_file_sum(const void *bytes, size_t size);
