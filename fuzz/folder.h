/* A folder of files from one input, for readers that take paths: "=== NAME\n", the file's bytes up
 * to the next such line, and so on. It lies in memory (/dev/shm) where there is such a place. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* The folder's path: the same in every call, emptied before. */
const char *folder_fill(const uint8_t *data, size_t size);
