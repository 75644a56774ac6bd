/* cuBLASLt's functions: a product is a line of the log. */
#include "fake.h"

#include <stdlib.h>

typedef struct blas_object {
    int64_t rows, columns, pitch; /* of a layout */
    int type;
} * blas_object;

#define EXPORT __attribute__((visibility("default"))) int
#pragma GCC diagnostic ignored "-Wmissing-prototypes"

static int make(blas_object *out)
{
    *out = calloc(1, sizeof **out);
    return *out ? 0 : 3;
}

EXPORT cublasLtCreate(blas_object *handle)
{
    return make(handle);
}

EXPORT cublasLtDestroy(blas_object handle)
{
    free(handle);
    return 0;
}

EXPORT cublasLtMatrixLayoutCreate(blas_object *layout, int type, uint64_t rows, uint64_t columns,
                                  int64_t pitch)
{
    int status = make(layout);
    if (status == 0) **layout = (struct blas_object){(int64_t)rows, (int64_t)columns, pitch, type};
    return status;
}

EXPORT cublasLtMatrixLayoutDestroy(blas_object layout)
{
    free(layout);
    return 0;
}

EXPORT cublasLtMatmulDescCreate(blas_object *description, int compute, int scale)
{
    (void)compute, (void)scale;
    return make(description);
}

EXPORT cublasLtMatmulDescDestroy(blas_object description)
{
    free(description);
    return 0;
}

EXPORT cublasLtMatmulDescSetAttribute(blas_object description, int attribute, const void *value,
                                      size_t size)
{
    (void)description, (void)attribute, (void)value, (void)size;
    return 0;
}

EXPORT cublasLtMatmulPreferenceCreate(blas_object *preference)
{
    return make(preference);
}

EXPORT cublasLtMatmulPreferenceDestroy(blas_object preference)
{
    free(preference);
    return 0;
}

EXPORT cublasLtMatmulPreferenceSetAttribute(blas_object preference, int attribute,
                                            const void *value, size_t size)
{
    (void)preference, (void)attribute, (void)value, (void)size;
    return 0;
}

typedef struct blas_choice { /* cublasLtMatmulHeuristicResult_t */
    uint64_t algorithm[8];
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
} blas_choice;

EXPORT cublasLtMatmulAlgoGetHeuristic(blas_object handle, blas_object description, blas_object a,
                                      blas_object b, blas_object c, blas_object d,
                                      blas_object preference, int wanted, blas_choice *choices,
                                      int *found)
{
    (void)handle, (void)description, (void)a, (void)b, (void)c, (void)d, (void)preference;
    (void)wanted;
    choices[0] = (blas_choice){.workspace = 0};
    *found = 1;
    return 0;
}

EXPORT cublasLtMatmulAlgoConfigGetAttribute(const void *algorithm, int attribute, void *value,
                                            size_t size, size_t *written)
{
    (void)algorithm, (void)attribute, (void)value, (void)size;
    *written = 0;
    return 7; /* CUBLAS_STATUS_INVALID_VALUE */
}

EXPORT cublasLtMatmul(blas_object handle, blas_object description, const void *alpha, const void *a,
                      blas_object a_layout, const void *b, blas_object b_layout, const void *beta,
                      const void *c, blas_object c_layout, void *d, blas_object d_layout,
                      const void *algorithm, void *workspace, size_t workspace_bytes,
                      cuda_stream stream)
{
    char at[5][48];
    (void)handle, (void)description, (void)alpha, (void)algorithm, (void)workspace_bytes;
    fake_log(
        "%scublasLt n %lld m %lld k %lld pitches %lld %lld %lld %lld beta %g: weight %s, x %s, "
        "residual %s, out %s, workspace %s\n",
        fake_stream_mode(stream), (long long)a_layout->columns, (long long)b_layout->columns,
        (long long)a_layout->rows, (long long)a_layout->pitch, (long long)b_layout->pitch,
        (long long)c_layout->pitch, (long long)d_layout->pitch, (double)*(const float *)beta,
        fake_memory_name((uint64_t)a, at[0]), fake_memory_name((uint64_t)b, at[1]),
        fake_memory_name((uint64_t)c, at[2]), fake_memory_name((uint64_t)d, at[3]),
        fake_memory_name((uint64_t)workspace, at[4]));
    return 0;
}
