/* Exchange of rows between the GPUs of one host: what the host and the kernels share.
 *
 * Every rank has a receive buffer, which its peers' kernels write. There are two protocols:
 *
 *     words   each 64-bit word holds a float32 and the number of its round, so a reader sees from
 *             the word itself whether it has arrived: for few rows, where latency counts
 *     chunks  float32 in chunks, and a flag for each chunk: for many rows, where bandwidth counts
 *
 * A block exchanges only with the blocks of the same number on the other ranks. It counts its
 * rounds in memory, so launches can be captured in graphs. Rounds use two buffers in turn. That is
 * enough because every thread (of chunks: every block) sends to and receives from every peer in
 * every round: a peer's part of round r - 1 shows that the peer has read round r - 2, whose buffer
 * round r uses.
 */
#pragma once

#include <stdint.h>

#ifdef __CUDACC__
#define EXCHANGE_FN __host__ __device__ static inline
#else
#define EXCHANGE_FN static inline
#endif

enum {
    EXCHANGE_RANKS = 8, /* at most */
    EXCHANGE_THREADS = 256,
    EXCHANGE_FOURS = 1,    /* of words: groups of four elements of a thread in a round */
    EXCHANGE_BLOCKS = 128, /* at most; all are resident at once, since they wait for each other */
    CHUNKS_FOURS = 4,      /* the same of chunks */
    CHUNKS_BLOCKS = 512,
    ROWS_FOURS = 2,      /* of whole rows, for a norm: words again, a row for each block */
    ROWS_THREADS = 1024, /* at most */
    ROWS_BLOCKS = 8,
    EXCHANGE_FLAG_BYTES = 32, /* from one flag to the next */
    EXCHANGE_WORDS_BYTES = EXCHANGE_THREADS * EXCHANGE_FOURS * 4 * 8, /* of a block and round */
    EXCHANGE_CHUNK_BYTES = EXCHANGE_THREADS * CHUNKS_FOURS * 4 * 4,
    EXCHANGE_ROW_BYTES = ROWS_THREADS * ROWS_FOURS * 4 * 8,
    EXCHANGE_COUNTERS = EXCHANGE_BLOCKS + CHUNKS_BLOCKS + ROWS_BLOCKS,
};

/* The first wait that took too long. In pinned memory. */
typedef struct exchange_failure {
    uint32_t failed;                 /* 1: the rest is valid */
    uint32_t from;                   /* the rank whose part did not arrive */
    uint32_t block, expected, found; /* rounds */
} exchange_failure;

/* A rank's view of the exchange; a part of kernels' parameters. */
typedef struct exchange {
    uint64_t receive[EXCHANGE_RANKS]; /* [rank]: addresses of the receive buffers: words
                                       * [2 rounds][from][block], words of rows and
                                       * chunks likewise, flags [from][block] */
    uint64_t rounds;                  /* address of this rank's counters: uint32_t
                                       * [EXCHANGE_COUNTERS]: of blocks with words, with chunks,
                                       * with rows */
    uint64_t failure;                 /* address of this rank's exchange_failure */
    uint64_t limit_ns;                /* the longest wait */
    int32_t rank, n_ranks;
} exchange;

EXCHANGE_FN uint64_t exchange_rows_offset(int n_ranks)
{
    return (uint64_t)2 * n_ranks * EXCHANGE_BLOCKS * EXCHANGE_WORDS_BYTES;
}
EXCHANGE_FN uint64_t exchange_chunks_offset(int n_ranks)
{
    return exchange_rows_offset(n_ranks) + (uint64_t)2 * n_ranks * ROWS_BLOCKS * EXCHANGE_ROW_BYTES;
}
EXCHANGE_FN uint64_t exchange_flags_offset(int n_ranks)
{
    return exchange_chunks_offset(n_ranks) +
           (uint64_t)2 * n_ranks * CHUNKS_BLOCKS * EXCHANGE_CHUNK_BYTES;
}

/* Bytes of a receive buffer. */
EXCHANGE_FN uint64_t exchange_receive_bytes(int n_ranks)
{
    return exchange_flags_offset(n_ranks) + (uint64_t)n_ranks * CHUNKS_BLOCKS * EXCHANGE_FLAG_BYTES;
}
