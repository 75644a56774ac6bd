/* The megakernel's tables, the same for the host and the GPU.
 *
 * A program is one queue of entries a block: the schedule's instruction record, as every machine
 * has it, with a KV head's part and parts besides, and the addresses of its weights. Three things
 * flow between blocks, and each carries what says that it is complete, so that a reader needs no
 * counter and a writer no fence:
 *
 *     x        the residual, in fixed point (op/fixed.h): every block adds its part with an
 *              integer reduction, in any order to the same bits; the top bits count the parts
 *     q, k, v  of a KV head: pairs of a value and the pass that made it
 *     states   of a part of a long context: pairs of a value and a number of pass and layer
 */
#ifndef QUIPU_VM_MEGA_MEGA_H
#define QUIPU_VM_MEGA_MEGA_H

#include "schedule/instruction.h"
#include "vm/mega/bricks.h"

enum {
    MEGA_WARPS = 16, /* that compute; one more fetches, the last ones choose tokens */
    MEGA_CONSUMERS = 32 * MEGA_WARPS,
    MEGA_THREADS = MEGA_CONSUMERS + 128,
    MEGA_TILE = 8,         /* rows of weights in a chunk */
    MEGA_COLUMNS = 2048,   /* columns of them; of more half as many rows */
    MEGA_STAGE = 33 << 10, /* bytes of a stage of the ring: 8 rows, or a box of 32 KB */
    /* Bytes from row to row in it, where they are not as in memory: no bank conflicts for W_down,
     * and for rows of several sequences. */
    MEGA_PITCH = 2 * MEGA_COLUMNS + 16,
    MEGA_BATCH_PITCH = 2 * MEGA_COLUMNS + 64,
    MEGA_BOX = 32 << 10,
    MEGA_CACHE_BRICKS = 16 << 10, /* keys and values in a stage that is made for bricks */
    MEGA_CACHE_GAPS = 256,        /* between their pieces */
    MEGA_MAX_STAGES = 14,
    MEGA_SLOTS = 4,           /* entries of the program in shared memory */
    MEGA_IN_FLIGHT = 2,       /* chunks; more only lengthens everybody's queue to memory */
    MEGA_IN_FLIGHT_SMALL = 4, /* of those of half the size: */
    MEGA_SMALL_STAGE = 24 << 10,
    MEGA_PREFETCH_CONTEXT = 4096, /* positions from which on waits are so long that a scout pays, */
    MEGA_PREFETCH_FROM = 3,       /* which is that many chunks ahead of the ring */
    MEGA_PREFETCH_TO = 10,
    MEGA_MAX_GROUP = 8, /* query heads of a KV head */
    MEGA_MAX_HIDDEN = 2 * MEGA_COLUMNS,
    MEGA_PARTS = 3,            /* bf16 that make up a float32 */
    MEGA_COUNTER_WORDS = 32,   /* a counter has a cache line of its own */
    MEGA_MAX_PARTITIONS = 160, /* of a KV head's context */
    MEGA_MAP_BYTES = 128,
    MEGA_STOPS = 16,      /* tokens that end a launch */
    MEGA_SLOT_WORDS = 12, /* words of 8 bytes that a block tells the others at once */
    MEGA_PART_BYTES = 40, /* of a warp's part in the choice, and of what is known of a row */
    MEGA_VIEW_BYTES = 80,
    MEGA_ROWS = 8,               /* sequences a pass of the kernels for several */
    MEGA_PUBLISHERS = 64,        /* threads of theirs that keep the residual, */
    MEGA_PUBLISHED_COLUMNS = 32, /* that many columns of a block at most */
    MEGA_FEATURES = 32,          /* of theirs that W_down is multiplied by at once */
    MEGA_TURNS = 32,             /* chunks of W_down at most, of 64 columns or more */
    MEGA_PEERS = 4,              /* blocks at most that share what W_down is multiplied by */
    MEGA_EARLY_BYTES = 32,       /* of a pair of QKV, for what is fetched early: two pairs a warp */
    MEGA_EARLY_PAIRS = 256,      /* of QKV, whose RoPE factors and pages are fetched early */
};

/* Operators that run to the end of what they add up, as they are called here. */
enum { MEGA_ATTENTION_OUTPUT = OP_ATTENTION_OUTPUT, MEGA_MLP = OP_NORM_MLP };

/* Where an instruction's weights lie: rows as stored, or bricks; and what else of the program is
 * not in its record. */
typedef struct mega_weights {
    uint64_t norm;      /* (hidden) */
    uint64_t matrix[3]; /* q, k, v; gate, up, down transposed; the output projection */
    uint32_t norm_is_f32, map;
    uint8_t kinds[8];       /* of bricks: each matrix's */
    uint32_t parts;         /* that the x which it reads is complete with */
    instruction_span share; /* of x, that an MLP brings along */
    uint16_t begins, ends;  /* the block's pass */
    int32_t kv_head, row;   /* of attention; and of its output, the first row: divisions are slow */
    uint32_t skippable;     /* 1: passed over in short contexts, without a barrier */
    instruction_span peers[MEGA_PEERS - 1]; /* several sequences: features of the blocks behind this
                                             * one, around its mates */
    uint16_t down_first, down_shift; /* the first chunk of the block's share of W_down, and which
                                      * of them it begins with */
    uint32_t zero[2];
} mega_weights;

/* Where in its program a block is: filled in by the block itself. */
typedef struct mega_place {
    uint32_t pass;
    int32_t entry, length; /* of the block's queue */
    int32_t left;          /* entries of this launch, this one too */
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
};

/* What a block reports that waited for longer than a second. */
typedef struct mega_report {
    int32_t state; /* 2: filled in */
    int32_t block, entry, opcode, layer, waits_for;
    uint32_t expected, found, pass;
} mega_report;

/* When a block ran an entry: its computing warps, then how long its fetching warp waited for room
 * in the ring, which is full while they wait, and for the memory. 0: a moment that the entry does
 * not have; all but a block's first begin to wait when the one before has ended. */
typedef struct mega_timing {
    instruction_timing of;
    uint32_t room_ns, memory_ns;
} mega_timing;

/* How tiles of 16 rows, `across` bricks wide, lie in chunks of up to 16 bricks, one a warp: a wide
 * tile takes several chunks, a chunk several narrow tiles. Known to the host, since divisions are
 * slow. */
typedef struct mega_tiles {
    int32_t across, chunks, beside;
    int32_t inverse; /* 256 / across, rounded up: warp * inverse / 256 is the warp's tile */
} mega_tiles;

/* How tokens are chosen: as the plan's step "sample" has it, behind the penalties that
 * engine/sampler.c describes. */
typedef struct mega_sampling {
    float temperature, top_p, min_p;
    float repetition, presence, frequency;
    int32_t top_k, penalises; /* penalises: 0 if the penalties are neutral */
    uint64_t seed;
    uint64_t bias; /* float [vocab], added to the logits; 0: none */
} mega_sampling;

/* In shared memory: how the computing warps, the fetching one, those that choose tokens and the
 * host agree on when to go on, and when to end. Barriers: each pass is a phase. */
typedef struct mega_flow {
    uint64_t begun;     /* a barrier: the pass before has left its keys and values */
    uint64_t to_choose; /* a barrier: the block has its logits */
    uint64_t chosen;    /* a barrier: the token is there */
    int32_t token;      /* that the pass reads */
    int32_t next;       /* that was chosen */
    uint32_t stop;      /* the computing warps go on to no further pass */
    uint64_t added; /* a barrier, a phase a step: several sequences' block has added to its sums */
} mega_flow;

/* Offsets in shared memory, behind the ring. */
typedef struct mega_shared {
    uint32_t planes, heads, features, sums, squares, qkv, states, keys, full, empty, entries, flow;
    uint32_t plane, head_plane, feature_plane; /* elements (of digits: bytes) from plane to plane */
    uint32_t sum_pitch;                        /* floats from warp to warp */
    uint32_t results, result_pitch; /* of several sequences: floats from sequence to sequence */
    uint32_t head_row, feature_row; /* elements from sequence to sequence in a plane */
    uint32_t bytes;
} mega_shared;

/* A sequence of several. */
typedef struct mega_row {
    int32_t token, position; /* of the first pass */
    int32_t first_page;      /* of its list in the array of pages */
} mega_row;

/* A turn of W_down's: of a block's share of its chunks, for its own features or those of one of the
 * blocks behind it, around its mates. */
typedef struct mega_turn {
    uint8_t peer, share;
} mega_turn;

typedef struct mega_arguments {
    uint64_t program; /* mega_entry [blocks][longest] */
    uint64_t lengths; /* int32 [blocks] */
    uint64_t maps;    /* CUtensorMap [layers]: W_o, 64 columns of some rows a box */
    uint64_t embedding, rope_table, k_cache, v_cache, pages;
    uint64_t x, qkv, states, counters, key; /* the machine's own */
    uint64_t logits;
    uint64_t tokens_out; /* int32 [passes][n_rows], of the host; each is written once it is known */
    uint64_t stop_request; /* uint32, by the host: the launch that is to end behind a pass or two */
    uint64_t ended;     /* int64 [2]: by a pass's parity, the pass behind which the host's wish ends
                         * the launch, plus 1 */
    uint64_t slots;     /* int64 [2][blocks][MEGA_SLOT_WORDS]: what blocks tell each other
                         * about the choice; the number of the exchange in the upper halves */
    uint64_t exchanges; /* uint32: their number before the launch */
    uint64_t history;   /* uint32 [vocab]: twice a token's times in the answer, plus 1 if
                         * it was seen there or in the prompt */
    uint64_t report;    /* mega_report, of the host */
    uint64_t timings;   /* mega_timing [passes][blocks][longest]; 0: nobody asked for them */
    mega_shared shared;
    mega_tiles tiles[2]; /* of bricks: over the hidden size or a KV head's columns */
    int32_t longest, stages, stage_bytes;
    int32_t hidden, n_layers, group, n_kv_heads, vocab, page_size, pages_per_layer;
    int32_t interleaved;
    int32_t embedding_type, embedding_bytes; /* a dtype; of a row */
    int32_t box_rows;                        /* rows of W_o in a box */
    int32_t recompute;                       /* contexts up to here: each block its own attention */
    int32_t group_inverse;                   /* 256 / group, rounded up */
    uint32_t parts_inverse;                  /* 2^32 / parts of a long context, rounded up */
    uint32_t delay; /* ns: that a warp of a kernel with delays sleeps at most; not 0 */
    int32_t token, first_position, n_passes;
    uint32_t launch; /* its number */
    uint32_t first_pass;
    int32_t n_stops, stops[MEGA_STOPS]; /* their launch ends behind the pass that makes one */
    mega_sampling sampling;             /* for the kernels that choose */
    float eps, scale;                   /* of RMSNorm; of scores, times log2 e */
    uint64_t heads;     /* several sequences: outputs of attention, as q, k and v come */
    uint64_t down_maps; /* CUtensorMap [layers]: W_down transposed, 64 columns of all rows of a */
    int32_t down_rows, down_groups; /* block a group, and how many groups are a box */
    int32_t down_share, peers; /* boxes of a block's share; blocks that share them and features */
    int32_t n_features;        /* of the model's MLP */
    uint64_t features; /* int64 [MEGA_ROWS][n_features]: with the numbers of pass and layer */
    int32_t n_rows;    /* sequences; more than one only for the kernels made for it */
    mega_row rows[MEGA_ROWS];
    int32_t n_turns; /* the order in which they come, in every block */
    mega_turn turns[MEGA_TURNS];
    uint64_t published; /* float [2][steps][hidden][MEGA_ROWS]: x of each step, as it is read */
} mega_arguments;

#ifdef __cplusplus
static_assert(sizeof(mega_entry) == 256, "an entry is two records long");
#else
_Static_assert(sizeof(mega_entry) == 256, "an entry is two records long");
#endif

#endif
