/* A folder of files from one input, for readers that take paths: "=== NAME\n", the file's bytes up
 * to the next such line, and so on. It lies in memory (/dev/shm) where there is such a place. */
#ifndef QUIPU_FUZZ_FOLDER_H
#define QUIPU_FUZZ_FOLDER_H

#include <stddef.h>
#include <stdint.h>

/* The folder's path: the same in every call, emptied before. */
const char *folder_fill(const uint8_t *data, size_t size);

#endif
