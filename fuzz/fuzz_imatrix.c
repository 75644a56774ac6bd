/* Importance matrices in both forms of llama.cpp: what is read is finite. */
#include "convert/imatrix.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void must(bool good)
{
    if (!good) abort();
}

static void check_entry(const imatrix_entry *e)
{
    must(e->name.length > 0 && e->n > 0 && e->columns > 0);
    for (int64_t i = 0; i < e->n * e->columns; i++)
        must(e->sums[i] >= 0 && isfinite(e->sums[i]));
    for (int64_t i = 0; i < e->n; i++)
        must(e->counts[i] >= 0 && isfinite(e->counts[i]));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    imatrix matrix = {0};
    qp_error error = {0};
    void *aligned = malloc(size + 1); /* of the size, so that a byte too many is found */
    must(aligned != NULL);
    memcpy(aligned, data, size);
    const qp_status status = imatrix_read(aligned, size, "input", &matrix, &error);
    for (size_t i = 0; status == QP_OK && i < matrix.count; i++)
        check_entry(&matrix.of[i]);
    must(status == QP_OK || error.message[0] != '\0');
    imatrix_free(&matrix);
    free(aligned);
    return 0;
}
