/* The parts of which a cuda_mega is made; for its own files. */
#ifndef QUIPU_GENERATE_CUDA_MEGA_PARTS_H
#define QUIPU_GENERATE_CUDA_MEGA_PARTS_H

#include "generate/cuda_mega.h"

/* ---- cuda_mega_memory.c ---- */

/* Bytes of its activations, lists, states, counters and keys. */
size_t mega_count_activations(const model_config *config);
/* Where things lie in shared memory, and how many stages of the ring fit before them. */
void mega_lay_out_shared(cuda_mega *mega);
/* Allocates what mega_count_activations() counts, and what the host reads. */
qp_status mega_take_memory(cuda_mega *mega, qp_error *error);

/* ---- cuda_mega_weights.c ---- */

size_t mega_count_down(const model_config *config);
/* W_down with its columns as rows: what a block's features add lies together. */
qp_status mega_transpose_down(cuda_mega *mega, qp_error *error);
/* W_o of each layer: a box is a KV head's columns of some rows, 64 columns of all rows after the
 * next 64, as the matrix units read it. */
qp_status mega_make_maps(cuda_mega *mega, qp_error *error);

/* ---- cuda_mega_program.c ---- */

size_t mega_count_program(const model_config *config, int n_blocks);
qp_status mega_make_program(cuda_mega *mega, qp_error *error);

/* ---- cuda_mega_timing.c ---- */

/* Gives the next launch its slots, or none; whether it gets some. */
bool mega_begin_timing(cuda_mega *mega, int n_passes);

/* To the GPU, and waits. */
qp_status mega_copy(const cuda_device *device, cuda_address to, const void *from, size_t bytes,
                    qp_error *error);

#endif
