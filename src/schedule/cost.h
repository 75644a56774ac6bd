/* What instructions cost on one machine, as measured there.
 *
 * For each operator and type of weight there is a roofline: nanoseconds per byte that an
 * instruction touches, at several ratios of FLOPs to bytes, measured while all workers work and
 * while one works alone, and the fixed cost of an instruction. inspect/measure.c fills such a
 * table; it is kept in a file and passed with the options.
 */
#pragma once

#include "base/strbuf.h"
#include "schedule/schedule.h"

enum { COST_POINTS = 24, COST_CURVES = 128, COST_READS = 12 };

typedef struct cost_point {
    double intensity;   /* FLOPs a byte */
    double ns_per_byte; /* of one worker, while all work */
    double alone;       /* ns_per_byte of a worker while no other works, over that */
} cost_point;

/* Bytes a second of plain reads of memory, which other programs and a host's neighbours change from
 * minute to minute; zeros: not known. */
typedef struct cost_rates {
    double all; /* of all workers together */
    double one; /* of a worker while no other works */
} cost_rates;

typedef struct cost_curve {
    op_code op;
    dtype type; /* of the weights; else of the KV cache; DTYPE_F32 where there is neither */
    double fixed_ns;
    double pass_bytes; /* weights read in a pass when it was measured */
    double signal_ns;  /* time from the end of the awaited instructions to the start of work, on a
                          machine where that depends on the operator; 0: the machine's value */
    int n_points;
    cost_point points[COST_POINTS]; /* by rising intensity */
    /* The same of a small model, whose weights and activations may stay in the caches from pass to
     * pass: it reads `small_bytes` of weights in a pass. */
    int n_small;
    cost_point small[COST_POINTS];
    double small_bytes, small_fixed_ns;
    /* The same of both in tiles of rows, as throughput schedules have them: a worker finds the
     * weights of a tile in its caches for the next one, and the rows of all tiles are more than a
     * cache holds. */
    int n_tiles, n_small_tiles;
    cost_point tiles[COST_POINTS], small_tiles[COST_POINTS];
} cost_curve;

/* The speed of repeated plain reads of `bytes` bytes: data that stay in a cache are read faster. */
typedef struct cost_read {
    double bytes, bytes_per_second; /* of all workers together */
} cost_read;

typedef struct cost_table {
    char device[16];        /* "cpu" */
    char machine[256];      /* what was measured: the processor's name and features */
    char version[32];       /* the version of quipu whose kernels were measured */
    int workers;            /* that worked at the same time */
    machine_profile limits; /* the machine's, where there is no curve */
    cost_rates rates;       /* that the points are for */
    cost_rates now;         /* that costs are predicted for; zeros: the same. Not kept in a file */
    int n_reads, n_curves;
    cost_read reads[COST_READS]; /* by rising bytes */
    cost_curve curves[COST_CURVES];
} cost_table;

/* The curve of an operator and type; NULL when it was not measured. */
const cost_curve *cost_find(const cost_table *table, op_code op, dtype type);

/* The type by which a node's costs are measured: that of its largest matrix of weights, else of the
 * cache that it reads. *weights (may be NULL): whether there is such a matrix. */
dtype cost_type_of(const schedule *schedule, int node, bool *weights);

/* Bytes of weights that a pass reads. */
double cost_pass_bytes(const schedule *schedule);

/* A point that was measured while plain reads had the rates `from`, as it would be at the rates
 * `to`. One worker takes as long as its arithmetic, or as its core reads memory; all take at
 * least as long as their bytes do at the rate of all. */
cost_point cost_at_rates(cost_point point, int workers, cost_rates from, cost_rates to);

/* Bytes per second of all workers together, while they read `bytes` repeatedly. */
double cost_read_rate(const cost_table *table, double bytes);

typedef struct cost_estimate {
    double fixed_ns; /* of each instruction */
    double ns;       /* of all of the work, done by one worker while all others work too */
    double alone;    /* both while no other works, divided by both while all work: 1/workers .. 1 */
    double signal_ns;  /* of the curve */
    bool memory_bound; /* the bytes take longer than the arithmetic */
} cost_estimate;

/* The cost of `work` of an operator, which a pass does in tiles of rows or not; `pass_bytes` of
 * weights are read in a pass. `table` may be NULL: only from the limits. */
cost_estimate cost_estimate_of(const cost_table *table, const machine_profile *limits, int workers,
                               op_code op, dtype type, op_cost work, double pass_bytes, bool tiled);

/* A table as text: a line with format and checksum, then JSON. */
qp_status cost_print(const cost_table *table, strbuf *out, qp_error *error);

/* What costs depend on besides device and workers: the processor's name and the features that are
 * used, as a table's `machine` has them. */
void cost_machine(char *text, size_t size);

/* The origin that a file of costs must have. */
typedef struct cost_origin {
    const char *device;  /* NULL: "cpu" */
    const char *machine; /* NULL: this processor, as cost_machine() has it */
    int workers;
} cost_origin;

/* Reads a file of costs. QP_IO if there is none, QP_FORMAT when it is damaged or was measured on
 * another machine, by another version, or with another number of workers. */
qp_status cost_load(const char *path, const cost_origin *origin, cost_table *out, qp_error *error);

/* Reads the text again. QP_FORMAT, with what is wrong, when it is damaged. `where` names it. */
qp_status cost_parse(const char *text, size_t length, const char *where, cost_table *out,
                     qp_error *error);
