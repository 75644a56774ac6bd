/* The folder of a FlashInfer-Bench data set: definitions/, workloads/, solutions/ and traces/, each
 * with .json files of one object and .jsonl files of an object in each line, at any depth. */
#pragma once

#include "base/status.h"

#include <cjson/cJSON.h>
#include <stddef.h>

typedef struct dataset_item {
    cJSON *tree;
    char *where; /* "data/workloads/a.jsonl:3", for messages */
} dataset_item;

typedef struct dataset_list {
    dataset_item *items;
    size_t n;
} dataset_list;

/* Reads a file, or all files of a folder in the order of their names, into a list that is empty
 * before. A path that does not exist gives an empty list. dataset_free() it, after a failure too.
 */
qp_status dataset_read(const char *path, dataset_list *out, qp_error *error);

/* The same for a part of a data set: dataset_read_part("data", "traces", ...). */
qp_status dataset_read_part(const char *folder, const char *part, dataset_list *out,
                            qp_error *error);

/* Adds an object, and takes the tree, also where it fails. */
qp_status dataset_add(dataset_list *list, cJSON *tree, const char *where, qp_error *error);

void dataset_free(dataset_list *list);

/* The item whose "name" this is; NULL: none. */
const dataset_item *dataset_find(const dataset_list *list, const char *name);
