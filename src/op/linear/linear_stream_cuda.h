/* linear for batches of up to 64 rows by quipu's own kernel, linear_stream.cuh. */
#pragma once

#include "op/linear/linear_stream.h"
#include "op/cuda_ops.h"

enum { CUDA_STREAM_NEEDS = CUDA_WGMMA_TILES | CUDA_CLUSTERS }; /* features */

/* How a product is cut: into tiles of this many rows of the weight, each shared by this many
 * blocks. */
typedef struct cuda_stream_cut {
    int rows, ranks;
} cuda_stream_cut;

/* The cut with which a multiprocessor moves the fewest bytes: weights, x, and parts of sums.
 * n_steps: of LINEAR_STREAM_DEPTH along a row. It never depends on the number of rows of x. */
cuda_stream_cut cuda_stream_cut_of(int64_t features, int64_t n_steps, int n_multiprocessors);

/* The parameters but for maps and addresses of x. `silu`: the output is its; or NULL. `depth`:
 * columns of a step. */
linear_stream cuda_stream_arguments(const op_call *call, const op_call *silu, cuda_stream_cut cut,
                                    int depth, int stages);

/* Stages in shared memory. Two blocks of different products fit on a multiprocessor, so that the
 * next product's weights are in flight before one ends; a product whose blocks are all resident
 * gets one more stage. */
int cuda_stream_stages(int columns, bool at_once);

bool cuda_linear_stream_accepts(const op_call *call);
bool cuda_linear_stream_pays(const cuda_ops *ops, const op_call *call);
size_t cuda_linear_stream_workspace(const op_call *call);
qp_status cuda_linear_stream(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                             const cuda_forms *forms, qp_error *error);

/* Whether the kernel can also compute the silu_and_mul calls[1] of a product's output, for a
 * product that reads it only in BF16. */
bool cuda_linear_stream_activates(const cuda_ops *ops, const op_call *calls);

/* Launches both; the output of silu_and_mul is stored only in BF16. */
cuda_left cuda_linear_stream_leaves(const cuda_ops *ops, const op_call *calls, cuda_address x);
qp_status cuda_linear_stream_silu(cuda_ops *ops, const op_call *calls, const cuda_forms *forms,
                                  qp_error *error);

/* Makes a tensor map at `at`: of `rank` dimensions, of these sizes, bytes from one to the next but
 * for the first, and elements of a box. */
qp_status cuda_stream_make_map(const cuda_ops *ops, char *at, uint32_t rank, cuda_address address,
                               const uint64_t *sizes, const uint64_t *strides, const uint32_t *box,
                               qp_error *error);

/* Describes a weight's tiles to the GPU: neighbouring rows or, in `pairs`, eights of gates and of
 * ups alternating. Gives a tensor map with rows of 128 bytes, the dimension that counts tiles, and
 * its increment. `rows`: of a tile, in `pairs` LINEAR_STREAM_ROWS. */
qp_status cuda_stream_map_weight(const cuda_ops *ops, const tensor *weight, bool pairs, int rows,
                                 char *map, int32_t *dimension, int32_t *step, qp_error *error);

/* Describes tiles of this many rows and 64 columns of a matrix in BF16, `pitch` bytes from row to
 * row.
 */
qp_status cuda_stream_map_rows(const cuda_ops *ops, cuda_address at, int64_t rows, int64_t columns,
                               int64_t pitch, int tile_rows, char *map, qp_error *error);

/* Describes tiles of `columns` rows of x, which lies at `at` in BF16, contiguous. */
qp_status cuda_stream_map_x(const cuda_ops *ops, const tensor *x, cuda_address at, int columns,
                            char *map, qp_error *error);

/* Describes tiles of this many rows and `depths` times 64 columns, one after another, of a matrix
 * in BF16 whose number of columns is a multiple of 64: a tensor map of three dimensions, whose last
 * dimension counts the 64s. */
qp_status cuda_stream_map_deep(const cuda_ops *ops, cuda_address at, int64_t rows, int64_t columns,
                               int64_t pitch, int tile_rows, int depths, char *map,
                               qp_error *error);

/* Describes a cache, (n_pages, page_size, heads, head_dim), in boxes of 16 positions of a head: of
 * 64 elements, or in FP8 of the whole head, two elements as one of 16 bits. */
qp_status cuda_stream_map_cache(const cuda_ops *ops, const tensor *cache, char *map,
                                qp_error *error);
