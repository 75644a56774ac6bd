/* The megakernel's tables, the same for the host and the GPU.
 *
 * A block (CUDA thread block, one per multiprocessor) is a worker. Its 16 consumer warps compute, a
 * producer warp copies weights and KV pages into a ring of stages in shared memory, and the rest
 * prefetch into L2 or sample tokens. Its queue has entries: an instruction of the schedule, the
 * addresses of its weights and what else the kernels must not look up or divide for.
 *
 * Three kinds of data flow between blocks. Each says itself when it is complete, so a reader needs
 * no counter and a writer no fence:
 *
 *     x        the residual, int64 in fixed point (op/fixed.h): blocks add to it with red, in any
 *              order to the same bits; the top bits of each element count the parts added
 *     q, k, v  of a KV head: pairs of a value and the number of the pass that made it; where heads
 *              have norms, q and k before those: readers normalise and turn whole heads
 *     states   of a part of a long context: pairs of a value and a number of pass and layer
 *
 * Of several ranks, each has a GPU, its own megakernel over its shard, and its own x, which holds
 * its part of the sums. A warp of each block pushes the complete elements of a share of the columns
 * to the other ranks (ranks.cuh); x is the sum of what all ranks have.
 */
#pragma once

#include "cuda/exchange.h"
#include "schedule/instruction.h"
#include "vm/mega/fragments.h"

enum {
    MEGA_WARPS = 16, /* consumer warps */
    MEGA_CONSUMERS = 32 * MEGA_WARPS,
    MEGA_THREADS = MEGA_CONSUMERS + 128,
    MEGA_TILE = 8, /* rows of weights in a chunk, the contents of one stage */
    /* Columns of weights in a chunk; of longer rows a chunk holds half as many. */
    MEGA_COLUMNS = 2048,
    MEGA_HALF_ROW = 4 * MEGA_COLUMNS, /* bytes of half of a row of MEGA_WIDE columns */
    MEGA_WIDE = 4 * MEGA_COLUMNS,
    MEGA_STAGE = 33 << 10, /* bytes of a stage of the ring: 8 rows, or a box of 32 KB */
    /* Bytes from row to row of W_down in a stage, so that it is read without bank conflicts. */
    MEGA_PITCH = 2 * MEGA_COLUMNS + 16,
    /* Kernels for several rows: rows of weights in odd stages begin so many bytes later. */
    MEGA_SHIFT = 64,
    MEGA_BOX = 32 << 10,
    /* Bytes of keys and values in a stage, where weights are quantised. */
    MEGA_CACHE_FRAGMENTS = 16 << 10,
    MEGA_CACHE_GAPS = 256, /* bytes between the pieces of a chunk of keys and values */
    MEGA_MAX_STAGES = 14,
    MEGA_SLOTS = 4, /* entries of the queue in shared memory: a power of two */
    /* Chunks that are being copied to a block; more only lengthen the memory system's queue. */
    MEGA_IN_FLIGHT = 2,
    MEGA_IN_FLIGHT_SMALL = 4, /* the same for stages smaller than MEGA_SMALL_STAGE */
    MEGA_SMALL_STAGE = 24 << 10,
    /* Positions from which on the prefetch warp runs: waits are long then. */
    MEGA_PREFETCH_CONTEXT = 4096,
    MEGA_PREFETCH_FROM = 3, /* it prefetches chunks from so many to so many after the ring's last */
    MEGA_PREFETCH_TO = 10,
    MEGA_MAX_GROUP = 8, /* query heads per KV head */
    MEGA_MAX_HIDDEN = 2 * MEGA_COLUMNS,
    MEGA_PARTS = 3,            /* BF16 numbers whose sum is a float32 */
    MEGA_COUNTER_WORDS = 32,   /* a counter fills a cache line */
    MEGA_MAX_PARTITIONS = 160, /* parts of a KV head's context */
    MEGA_MAP_BYTES = 128,
    MEGA_STOPS = 16,      /* tokens that end a launch */
    MEGA_SLOT_WORDS = 12, /* 8-byte words that a block sends in one exchange of the choice */
    /* sizeof sample_part and, rounded up, of sample_view: op/sampling/sampling.cuh. */
    MEGA_PART_BYTES = 40,
    MEGA_VIEW_BYTES = 80,
    MEGA_ROWS = 8, /* sequences in a pass of the kernels for several */
    /* Threads of those kernels that publish the residual: see batch_x.cuh. */
    MEGA_PUBLISHERS = 64,
    MEGA_PUBLISHED_COLUMNS = 32, /* columns of the residual that a block publishes at most */
    MEGA_FEATURES = 32, /* features that W_down is multiplied by at once, for several sequences */
    MEGA_TURNS = 32,    /* turns (mega_turn) of a block in W_down, at most */
    MEGA_PEERS = 4,     /* blocks that share their features of the MLP, at most */
    MEGA_EARLY_BYTES = 32, /* bytes per pair of QKV for inputs copied early; two pairs a warp */
    /* Pairs of QKV, several sequences, whose RoPE factors and page are copied early: so many words
     * each. Not biases, for which the ring would have a stage less. */
    MEGA_EARLY_PAIRS = 256,
    MEGA_EARLY_WORDS = 3,
};

/* Opcodes of entries, for the operators of opcodes.c. They are numbers of their own, because the
 * kernels' machine code contains them: a new operator in ops.def does not change it. */
enum {
    MEGA_QKV = 13,
    MEGA_ATTENTION_PART = 14,
    MEGA_LOGITS = 17,
    MEGA_EMBEDDING = 18,
    MEGA_ATTENTION_OUTPUT = 19,
    MEGA_MLP = 20,
};

/* How the heads of an entry's layer turn; flags of mega_weights.turning. */
enum {
    MEGA_UNTURNED = 1, /* not at all: the angles are those of position 0 */
    MEGA_NORMED = 2,   /* after their norms: attention normalises, turns and appends */
};

/* Where an instruction's weights are, as stored or as fragments (fragments.h), and what else of an
 * entry is not in the instruction. */
typedef struct mega_weights {
    uint64_t norm; /* address of (hidden) */
    /* Addresses: q, k, v; or gate, up, down transposed; or W_o, and the norms of q and k. */
    uint64_t matrix[3];
    uint32_t norm_is_f32, map;
    uint8_t kinds[3];       /* FRAGMENT_... of each matrix */
    uint8_t turning;        /* QKV and attention: MEGA_UNTURNED, MEGA_NORMED */
    int32_t window;         /* attention: the latest positions that it sees; INT32_MAX: all */
    uint32_t parts;         /* count of x, when it is complete */
    instruction_span share; /* columns of x that an MLP adds to its own sums: x + MLP(x) */
    uint16_t begins, ends;  /* 1: the block's first, or last, entry of a pass */
    /* Attention: KV head, and for W_o the first row. Here because divisions are slow. */
    int32_t kv_head, row;
    /* 1: has nothing to do in short contexts, and is then skipped without a barrier. */
    uint32_t skippable;
    /* Several sequences: features of the other blocks of the group that shares them, in order from
     * the next one on, round the group. */
    instruction_span peers[MEGA_PEERS - 1];
    /* The first chunk of the block's share of W_down, and which chunk of the share is its first
     * turn. */
    uint16_t down_first, down_shift;
    /* Address of float; 0: none. QKV: two for each pair; W_o: (hidden); MLP: of gate, up and down,
     * one after the other. */
    uint64_t biases;
} mega_weights;

/* Where in its program a block is; the block itself fills it in. */
typedef struct mega_place {
    uint32_t pass;
    int32_t entry, length; /* entry of the block's queue; entries in it */
    int32_t left;          /* entries to run in this launch, with this one */
} mega_place;

typedef struct mega_entry {
    instruction in;
    mega_weights weights;
    mega_place place;
} mega_entry;

/* What a block waited for, as mega_report.waits_for has it; from 0 on it is a counter's number. */
enum {
    MEGA_WAIT_X = -1,
    MEGA_WAIT_QKV = -2,
    MEGA_WAIT_STATES = -3,
    MEGA_WAIT_CHOICE = -4,
    MEGA_WAIT_FEATURES = -5,
    MEGA_WAIT_RANK = -6, /* x of rank 0; those of the other ranks follow downwards */
};

/* What a block reports that waited for longer than a second. */
typedef struct mega_report {
    int32_t state; /* 2: the other fields are filled in */
    int32_t block, entry, opcode, layer, waits_for;
    uint32_t expected, found, pass;
} mega_report;

/* When a block ran an entry: moments of its consumer warps, then how long its producer warp waited
 * for room in the ring (which is full while consumers wait) and for memory. A moment of 0 was not
 * recorded. Only a block's first entry records when it begins to wait; the others begin when the
 * one before ends. */
typedef struct mega_timing {
    instruction_timing of;
    uint32_t room_ns, memory_ns;
} mega_timing;

/* How tiles of 16 rows, `across` fragments wide, lie in chunks of up to 16 fragments, one per warp:
 * a wide tile takes `chunks` chunks, and a chunk holds up to `beside` narrow tiles. The host
 * computes it because divisions are slow. */
typedef struct mega_tiles {
    int32_t across, chunks, beside;
    int32_t inverse; /* 256 / across, rounded up: warp * inverse / 256 is the warp's tile */
} mega_tiles;

/* How tokens are sampled: as the program's step "sample" does, after bias and penalties as
 * engine/sampler.c defines them. */
typedef struct mega_sampling {
    float temperature, top_p, min_p;
    float repetition, presence, frequency;
    int32_t top_k, penalises; /* penalises: 0 if the penalties are neutral */
    uint64_t seed;
    uint64_t bias; /* address of float [vocab], added to the logits; 0: none */
} mega_sampling;

/* In shared memory: how consumer warps, producer warp, sampling warps and host agree on when to go
 * on and when to end. The barriers are mbarriers with a phase per pass, unless said otherwise. */
typedef struct mega_flow {
    /* mbarrier: all blocks have ended the pass before, so its keys and values are in memory. */
    uint64_t begun;
    uint64_t to_choose; /* mbarrier: the block's logits are complete */
    uint64_t chosen;    /* mbarrier: the pass's token is chosen */
    int32_t token;      /* that this pass reads */
    int32_t next;       /* that this pass has chosen */
    uint32_t stop;      /* 1: the block runs no further pass */
    uint32_t over;      /* several ranks that sample: 1: none of them runs a further pass */
    /* mbarrier, a phase per step, several sequences: the block has added to its sums. */
    uint64_t added;
} mega_flow;

/* Offsets in shared memory, from the end of the ring. */
typedef struct mega_shared {
    uint32_t planes, heads, features, sums, squares, qkv, states, keys, full, empty, entries, flow;
    /* Pitch of planes: elements (of digits: bytes) from plane to plane. */
    uint32_t plane, head_plane, feature_plane;
    uint32_t sum_pitch; /* floats from warp to warp */
    /* Several sequences: offset; floats from sequence to sequence. */
    uint32_t results, result_pitch;
    uint32_t head_row, feature_row; /* elements from sequence to sequence in a plane */
    uint32_t bytes;
} mega_shared;

/* Several ranks: where each rank's receive buffer is, which the others write. In it, from each
 * rank: int64 [2][2 n_layers + 1][hidden], by a pass's parity; then, from all, mega_key [2][ranks];
 * then slots [2][ranks][blocks][MEGA_SLOT_WORDS] as in mega_arguments. */
typedef struct mega_ranks {
    uint64_t receive[EXCHANGE_RANKS];
    uint64_t parts;      /* uint32 [2 n_layers + 1]: counts of this rank's x when it is complete */
    int32_t rank, count; /* count: of ranks; 1: nothing is exchanged */
    int32_t vocab_first, vocab_count; /* the tokens of the rank's rows of logits */
} mega_ranks;

/* A rank's likeliest token of a pass: halves of its key; upper halves: 1 + the pass. */
typedef struct mega_key {
    uint64_t low, high;
} mega_key;

EXCHANGE_FN uint64_t mega_received_bytes(int n_layers, int hidden)
{
    return (uint64_t)2 * (2 * n_layers + 1) * hidden * sizeof(int64_t);
}
/* Offsets in a receive buffer: of the keys, of the slots, and of its end. */
EXCHANGE_FN uint64_t mega_keys_offset(int ranks, int n_layers, int hidden)
{
    return ranks * mega_received_bytes(n_layers, hidden);
}
EXCHANGE_FN uint64_t mega_slots_offset(int ranks, int n_layers, int hidden)
{
    return mega_keys_offset(ranks, n_layers, hidden) + 2 * ranks * sizeof(mega_key);
}
EXCHANGE_FN uint64_t mega_receive_bytes(int ranks, int n_layers, int hidden, int blocks)
{
    return mega_slots_offset(ranks, n_layers, hidden) +
           (uint64_t)2 * ranks * blocks * MEGA_SLOT_WORDS * sizeof(int64_t);
}

/* A row: a token of one of several sequences, or one of several tokens of a sequence. */
typedef struct mega_row {
    int32_t token, position; /* in the launch's first pass */
    int32_t first_page;      /* where its sequence's list begins in the array of pages */
} mega_row;

/* A block's step through W_down for several sequences: one of the chunks of its share, multiplied
 * by the features of one block of its group, 0 being itself. */
typedef struct mega_turn {
    uint8_t peer, share;
} mega_turn;

typedef struct mega_arguments {
    uint64_t program; /* mega_entry [blocks][longest] */
    uint64_t lengths; /* int32 [blocks] */
    /* CUtensorMap [layers]: W_o; a box has box_rows rows of a KV head's columns, 64 a group. */
    uint64_t maps;
    uint64_t embedding, rope_table, k_cache, v_cache, pages;
    uint64_t x, qkv, states, counters, key; /* the megakernel's own memory */
    uint64_t logits;
    /* int32 [passes][n_rows] in pinned host memory; each token is written once it is known. */
    uint64_t tokens_out;
    /* uint32: the number of the launch that the host asks to stop, within two passes. */
    uint64_t stop_request;
    /* int64 [2], by a pass's parity: 1 + the pass after which a stop request ends the launch. */
    uint64_t ended;
    /* int64 [2][blocks][MEGA_SLOT_WORDS]: what blocks exchange to choose a token; upper halves: the
     * number of the exchange. */
    uint64_t slots;
    uint64_t exchanges; /* uint32: exchanges before this launch */
    /* uint32 [vocab]: 2 * a token's occurrences in the answer, + 1 if the answer or the prompt has
     * it. */
    uint64_t history;
    uint64_t report;  /* mega_report in pinned host memory */
    uint64_t timings; /* mega_timing [passes][blocks][longest]; 0: not recorded */
    mega_shared shared;
    mega_tiles tiles[2]; /* fragments: of the hidden size, and of a KV head's columns */
    int32_t longest, stages, stage_bytes;
    int32_t hidden, n_layers, group, n_kv_heads, vocab, page_size, pages_per_layer;
    int32_t interleaved;
    int32_t embedding_type, embedding_bytes; /* a dtype; bytes per row */
    int32_t box_rows;                        /* rows of W_o in a box */
    /* Up to this many positions each block computes all of its KV head's attention. */
    int32_t recompute;
    int32_t group_inverse;  /* 256 / group, rounded up */
    uint32_t parts_inverse; /* 2^32 / parts of a long context, rounded up */
    uint32_t delay;         /* ns: that a warp of a kernel with delays sleeps at most; not 0 */
    int32_t token, first_position, n_passes;
    uint32_t launch; /* the launch's number */
    uint32_t first_pass;
    /* The launch ends after a pass that makes one of these tokens. */
    int32_t n_stops, stops[MEGA_STOPS];
    mega_sampling sampling; /* for the kernels that sample */
    float eps, scale;       /* of RMSNorm; of attention's scores, times log2 e */
    uint64_t heads;         /* several sequences: attention's outputs, tagged as q, k and v are */
    /* CUtensorMap [layers][blocks of 2,048 columns]: W_down transposed. */
    uint64_t down_maps;
    /* Rows of a box: a block's features; groups of 64 columns in a box. */
    int32_t down_rows, down_groups;
    int32_t down_share, peers; /* boxes in a block's share; blocks that share boxes and features */
    int32_t n_features;        /* intermediate_size */
    uint64_t features;         /* int64 [MEGA_ROWS][n_features], tagged with pass and layer */
    int32_t n_rows;            /* 1 but for the kernels for several */
    int32_t joins; /* 1: neighbouring rows of a sequence attend to parts of its context together */
    mega_row rows[MEGA_ROWS];
    int32_t n_turns; /* the same turns, in the same order, for every block */
    mega_turn turns[MEGA_TURNS];
    /* float [2][steps][hidden][MEGA_ROWS]: x of each step, published by its blocks. */
    uint64_t published;
    int32_t window; /* several rows: of all layers, as in mega_weights */
    /* float [n_layers][n_heads][head_dim]: the last pass's queries, where heads have norms. */
    uint64_t queries;
    mega_ranks ranks;
} mega_arguments;

#ifdef __cplusplus
static_assert(sizeof(mega_entry) == 256, "an entry is two records long");
#else
_Static_assert(sizeof(mega_entry) == 256, "an entry is two records long");
#endif
