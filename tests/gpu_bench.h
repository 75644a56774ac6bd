/* A GPU for tests of single kernels: memory that is freed when the test ends, and functions that
 * run operators on it. */
#pragma once

#include "tensor/float16.h"
#include "test.h"
#include "op/cuda_ops.h"

#include <stdlib.h>
#include <string.h>

enum { GUARD = 0xa5 /* each byte of memory that no kernel may write */ };

typedef struct bench {
    cuda_device device;
    cuda_ops ops;
    cuda_buffer buffers[48];
    int n_buffers;
} bench;

static inline void open_bench(bench *b, size_t workspace)
{
    qp_error error;
    memset(b, 0, sizeof *b);
    assert_ok(cuda_device_open(&b->device, &error));
    assert_ok(cuda_ops_init(&b->ops, &b->device, workspace, false, &error));
}

/* Gives back what was carried. */
static inline void clear_bench(bench *b)
{
    while (b->n_buffers > 0)
        cuda_buffer_free(&b->device, &b->buffers[--b->n_buffers]);
}

static inline void close_bench(bench *b)
{
    clear_bench(b);
    cuda_ops_free(&b->ops);
    cuda_device_close(&b->device);
}

/* A copy on the GPU. */
static inline void *carry(bench *b, const void *data, size_t bytes)
{
    qp_error error;
    cuda_buffer *buffer = &b->buffers[b->n_buffers++];
    assert_ok(cuda_buffer_alloc(&b->device, bytes, "a test's operand", buffer, &error));
    assert_int_equal(
        b->device.driver->copy_to_device(buffer->address, data, bytes, b->device.stream), 0);
    assert_ok(cuda_device_wait(&b->device, "copying", &error));
    return (void *)(uintptr_t)buffer->address;
}

static inline void *carry_guards(bench *b, size_t bytes)
{
    char *guards = malloc(bytes);
    assert_non_null(guards);
    memset(guards, GUARD, bytes);
    void *at = carry(b, guards, bytes);
    free(guards);
    return at;
}

/* A copy of it here, to free(). */
static inline void *fetch(const bench *b, const void *at, size_t bytes)
{
    qp_error error;
    void *data = malloc(bytes);
    assert_non_null(data);
    assert_int_equal(
        b->device.driver->copy_to_host(data, (cuda_address)(uintptr_t)at, bytes, b->device.stream),
        0);
    assert_ok(cuda_device_wait(&b->device, "copying", &error));
    return data;
}

/* By the kernel that a plan would take. */
static inline void run_plainly(bench *b, op_code op, const op_call *call)
{
    qp_error error;
    const cuda_kernel *kernel = cuda_ops_choose(&b->ops, op, call);
    assert_non_null(kernel);
    assert_ok(cuda_ops_launch(&b->ops, kernel, call, &error));
}

/* ---- numbers ------------------------------------------------------------------------------- */

/* In [-1, 1), other ones of each kind. */
static inline float number(int kind, int64_t i)
{
    uint32_t hash = ((uint32_t)i * 2654435761u) ^ ((uint32_t)kind * 2246822519u);
    hash = (hash ^ hash >> 15) * 3266489917u;
    hash = (hash ^ hash >> 13) * 2654435761u;
    return (float)(int32_t)(hash ^ hash >> 16) / 0x1p31f;
}

static inline void *carry_numbers(bench *b, int kind, dtype type, int64_t count)
{
    const size_t size = type == DTYPE_F32 ? sizeof(float) : sizeof(uint16_t);
    char *data = malloc((size_t)count * size);
    assert_non_null(data);
    for (int64_t i = 0; i < count; i++) {
        float value = number(kind, i);
        uint16_t half = type == DTYPE_F16 ? f32_to_f16(value) : f32_to_bf16(value);
        memcpy(data + (size_t)i * size, type == DTYPE_F32 ? (void *)&value : (void *)&half, size);
    }
    void *at = carry(b, data, (size_t)count * size);
    free(data);
    return at;
}

static inline tensor carry_matrix(bench *b, int kind, dtype type, int64_t rows, int64_t columns)
{
    return tensor_2d(carry_numbers(b, kind, type, rows * columns), type, rows, columns);
}
