/* Sizes of the kernels of paged_prefill_stream.cuh, for host and kernels. head_dim is 128.
 *
 * KERNEL(type, groups, registers, copy_registers): groups of four warps of 64 rows, registers of
 * their threads and of those that copy. The kernels' parameters are a paged_attention and tensor
 * maps of the two caches, with boxes of 64 elements of 16 positions; paged_attention.arrived counts
 * the tiles taken, and the blocks that have ended: zeros before and after. */
#ifndef QUIPU_OP_PAGED_PREFILL_STREAM_SIZES_H
#define QUIPU_OP_PAGED_PREFILL_STREAM_SIZES_H

enum {
    PAGED_STREAM_STEP = 128, /* positions that are taken at once */
    PAGED_STREAM_SLOTS = 4,  /* of tiles that the copying warp leaves to the others */
    PAGED_STREAM_V_STAGES = 2
};
#define PAGED_STREAM_KERNELS(KERNEL)                                                               \
    KERNEL(BF16, 2, 232, 40)                                                                       \
    KERNEL(BF16, 3, 160, 32) KERNEL(F16, 2, 232, 40) KERNEL(F16, 3, 160, 32)
/* Stages of keys, and tiles whose queries are there. */
#define PAGED_STREAM_K_STAGES(groups) ((groups) == 2 ? 3 : 2)
#define PAGED_STREAM_BUFFERS(groups)  ((groups) == 2 ? 2 : 1)
/* Dynamic shared memory: queries, stages, slots, and their barriers. */
#define PAGED_STREAM_STAGES(groups) (PAGED_STREAM_K_STAGES(groups) + PAGED_STREAM_V_STAGES)
#define PAGED_STREAM_SHARED(groups)                                                                \
    ((PAGED_STREAM_BUFFERS(groups) * (groups)*64 +                                                 \
      PAGED_STREAM_STAGES(groups) * PAGED_STREAM_STEP) *                                           \
         256 +                                                                                     \
     PAGED_STREAM_SLOTS * (64 + 16) + PAGED_STREAM_STAGES(groups) * 16)

#endif
