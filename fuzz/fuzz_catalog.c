/* Files of `quipu serve --models`: names, models and options, a line each. Every name is found
 * again. */
#define _GNU_SOURCE
#include "router/catalog.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    catalog known = {0};
    qp_error error = {0};
    char path[64];
    const int file = memfd_create("catalog", 0);
    if (file < 0 || write(file, data, size) != (ssize_t)size) abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    if (catalog_read(path, &known, &error) == QP_OK) {
        for (size_t i = 0; i < known.count; i++) {
            if (catalog_find(&known, known.entries[i].name) != &known.entries[i]) abort();
            catalog_stamp(&known.entries[i]);
        }
    } else if (!*error.message) {
        abort();
    }
    catalog_free(&known);
    close(file);
    return 0;
}
