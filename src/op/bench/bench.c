/* Timing kernels: see bench.h. */
#include "op/bench/bench.h"

#include "base/checked.h"
#include "base/clock.h"
#include "base/paired.h"
#include "op/bench/copies.h"
#include "op/element.h"
#include "op/run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_COPIES = 256,
    CHECKED_UNITS = 32,
    READ_BYTES = 64 << 20,        /* of a sample */
    READ_FROM_COPIES = 512 << 20, /* bytes; fewer would stay in the caches */
};

/* A candidate and the memory that it runs on. */
typedef struct contestant {
    const bench_candidate *candidate;
    call_copies copies;
    int next; /* copy */
    buffer scratch;
    size_t scratch_bytes; /* a worker's */
    double *seconds;      /* (rounds) */
} contestant;

typedef struct bench_state {
    const op_info *op;
    thread_pool *pool;
    hardware *hardware;
    const bench_options *options;
    int n;
    contestant *contestants;         /* (n) */
    double *samples;                 /* results of all rounds */
    double *limits[HARDWARE_LIMITS]; /* (rounds) */
    double *sorted, *ratios;         /* (rounds), scratch */
} bench_state;

/* Of n values. */
static bench_figure figure_of(const double *values, int n, double *sorted)
{
    memcpy(sorted, values, (size_t)n * sizeof *sorted);
    sort_times(sorted, n);
    return (bench_figure){sorted[n / 2], sorted[n / 4], sorted[n - 1 - n / 4]};
}

static size_t scratch_of(const op_info *op, const bench_candidate *candidate, const op_call *call)
{
    const op_variant *variant = candidate->variant;
    if (variant && variant->scratch_bytes) return variant->scratch_bytes(call);
    return op->scratch_bytes ? op->scratch_bytes(call) : 0;
}

/* Whether an input lies in the output's memory, so that it must not be poisoned. */
static bool shares_memory(const op_info *op, const op_call *call, int output)
{
    for (int t = 0; t < op_n_tensors(op); t++) {
        if (t != output && call->tensors[t].data == call->tensors[output].data) return true;
    }
    return false;
}

int bench_copies(const op_info *op, const op_call *call, size_t rotate_bytes)
{
    const size_t touched = (size_t)op_cost_of(op, call).bytes + 1;
    const size_t whole = copies_bytes(op, call, NULL) + 1;
    size_t copies = (rotate_bytes + touched - 1) / touched;
    if (copies > rotate_bytes / whole + 1) copies = rotate_bytes / whole + 1;
    if (copies > MAX_COPIES) copies = MAX_COPIES;
    return copies < 1 ? 1 : (int)copies;
}

static qp_status prepare(bench_state *state, const op_call *call, const bench_candidate *candidates,
                         bench_report *report, qp_error *error)
{
    int rounds = state->options->rounds;
    state->contestants = calloc((size_t)state->n, sizeof *state->contestants);
    state->samples =
        calloc((size_t)(state->n + HARDWARE_LIMITS + 2) * (size_t)rounds, sizeof(double));
    if (!state->contestants || !state->samples)
        return error_no_memory(error, "a benchmark's figures",
                               (size_t)(state->n + HARDWARE_LIMITS) * (size_t)rounds * 8);
    for (int limit = 0; limit < HARDWARE_LIMITS; limit++)
        state->limits[limit] = state->samples + limit * rounds;
    state->sorted = state->samples + HARDWARE_LIMITS * rounds;
    state->ratios = state->sorted + rounds;

    report->copies = bench_copies(state->op, call, state->options->rotate_bytes);
    for (int i = 0; i < state->n; i++) {
        contestant *c = &state->contestants[i];
        c->candidate = &candidates[i];
        c->seconds = state->ratios + (1 + i) * rounds;
        c->scratch_bytes = round_up(scratch_of(state->op, c->candidate, call), 64);
        TRY(buffer_alloc(&c->scratch, c->scratch_bytes * (size_t)thread_pool_size(state->pool),
                         "scratch", error));
        TRY(copies_create(state->op, call, candidates[i].variant, report->copies, state->pool,
                          &c->copies, error));
    }
    return QP_OK;
}

static void run_call(const bench_state *state, contestant *c, const op_call *call)
{
    op_run(state->op, c->candidate->kernel, call, state->pool, c->scratch.data, c->scratch_bytes);
}

/* Seconds a call. */
static double take_sample(const bench_state *state, contestant *c)
{
    uint64_t start = clock_ns(), aim = (uint64_t)(state->options->sample_seconds * 1e9), spent;
    int calls = 0;
    do {
        run_call(state, c, &c->copies.calls[c->next]);
        c->next = (c->next + 1) % c->copies.count;
        calls++;
        spent = clock_ns() - start;
    } while (spent < aim);
    return (double)spent * 1e-9 / calls;
}

/* Reads memory like the calls do. Some physical memory is slower than other, so this reads the
 * candidate's own copies, far from those that it uses next, and the machine's memory; the faster of
 * the two is the limit. */
static double read_limit(const bench_state *state)
{
    double most = hardware_sample(state->hardware, HARDWARE_READ);
    const contestant *c = &state->contestants[0];
    size_t bytes = c->copies.memory.bytes, copies = (size_t)c->copies.count;
    if (bytes < READ_FROM_COPIES) return most;
    size_t copy = bytes / copies, at = (size_t)c->next + copies / 2;
    size_t position = at % copies * copy / 64 * 64;
    if (position > bytes - READ_BYTES) position = 0;
    double found =
        hardware_read(state->hardware, (const char *)c->copies.memory.data + position, READ_BYTES);
    return found > most ? found : most;
}

static void take_rounds(bench_state *state)
{
    for (int i = 0; i < state->n; i++)
        take_sample(state, &state->contestants[i]); /* warm-up */
    for (int round = 0; round < state->options->rounds; round++) {
        for (int limit = 0; limit < HARDWARE_LIMITS; limit++)
            state->limits[limit][round] = limit == HARDWARE_READ
                                              ? read_limit(state)
                                              : hardware_sample(state->hardware, limit);
        for (int i = 0; i < state->n; i++)
            state->contestants[i].seconds[round] = take_sample(state, &state->contestants[i]);
    }
}

/* An output's memory as it is before the check's call, and as the reference changes it. */
typedef struct checked_output {
    int index; /* of the tensor */
    size_t bytes;
    char *before, *expected;
} checked_output;

typedef struct check_state {
    const op_info *op;
    op_call call;
    int count;
    checked_output outputs[OP_MAX_TENSORS];
} check_state;

static void check_close(check_state *check)
{
    for (int i = 0; i < check->count; i++)
        free(check->outputs[i].before);
}

/* Poisons the outputs and saves their contents. */
static qp_status check_open(check_state *check, const op_info *op, const op_call *call,
                            qp_error *error)
{
    *check = (check_state){.op = op, .call = *call};
    for (int t = 0; t < op_n_tensors(op); t++) {
        const tensor *view = &call->tensors[t];
        if (op->tensors[t].direction == OP_IN || copies_span(view) == 0) continue;
        checked_output *out = &check->outputs[check->count++];
        *out = (checked_output){.index = t, .bytes = copies_span(view)};
        out->before = malloc(2 * out->bytes);
        if (!out->before) {
            check_close(check);
            return error_no_memory(error, "expected outputs", 2 * out->bytes);
        }
        out->expected = out->before + out->bytes;
        if (op->tensors[t].direction == OP_OUT && !shares_memory(op, call, t))
            memset(view->data, 0xff, out->bytes); /* NaN, -1 */
        memcpy(out->before, view->data, out->bytes);
        memcpy(out->expected, view->data, out->bytes);
    }
    return QP_OK;
}

/* The reference's answer for some units, spread over all. */
static qp_status check_expect(check_state *check, qp_error *error)
{
    const op_info *op = check->op;
    op_call oracle = check->call;
    for (int i = 0; i < check->count; i++) {
        /* A residual that shares the output's memory is copied with it. */
        const void *data = check->call.tensors[check->outputs[i].index].data;
        for (int t = 0; t < op_n_tensors(op); t++) {
            if (check->call.tensors[t].data == data)
                oracle.tensors[t].data = check->outputs[i].expected;
        }
    }
    size_t bytes = op->scratch_bytes ? op->scratch_bytes(&oracle) : 0;
    oracle.scratch = malloc(bytes + 1);
    if (!oracle.scratch) return error_no_memory(error, "scratch", bytes);
    int64_t units = op->units(&oracle), step = units > CHECKED_UNITS ? units / CHECKED_UNITS : 1;
    for (int64_t unit = units - 1; unit >= 0; unit -= step) {
        oracle.begin = unit;
        oracle.end = unit + 1;
        op->reference(&oracle);
    }
    free(oracle.scratch);
    return QP_OK;
}

/* Relative error against the reference; infinite where the kernel wrote a number that is not
 * finite. */
static double check_error(const check_state *check)
{
    double difference = 0, norm = 0;
    for (int o = 0; o < check->count; o++) {
        const checked_output *out = &check->outputs[o];
        const tensor *view = &check->call.tensors[out->index];
        size_t size = dtype_block_bytes(view->type);
        for (size_t at = 0; at + size <= out->bytes; at += size) {
            if (memcmp(out->expected + at, out->before + at, size) == 0) continue;
            double right = element_load(view->type, out->expected + at, 0);
            double found = element_load(view->type, (char *)view->data + at, 0);
            if (!isfinite(right)) continue;
            if (!isfinite(found)) return INFINITY;
            difference += (found - right) * (found - right);
            norm += right * right;
        }
    }
    return norm > 0 ? sqrt(difference / norm) : sqrt(difference);
}

/* The allowed relative error: the tolerance of the widest output. Variants that round activations
 * to 8 bits for quantised weights have errors of about 0.005. */
static double allowed_error(const check_state *check)
{
    const op_info *op = check->op;
    double allowed = 0;
    for (int t = 0; t < op_n_tensors(op); t++) {
        dtype type = check->call.tensors[t].type;
        if (check->call.tensors[t].rank == 0) continue;
        if (dtype_is_quantized(type)) allowed = fmax(allowed, 0.02);
        if (op->tensors[t].direction == OP_IN) continue;
        for (const op_tolerance *entry = op->tolerances; entry && entry->relative > 0; entry++) {
            if (entry->type != type) continue;
            double terms = type == DTYPE_F32 ? op_evaluate(op, &check->call, op->reduction) : 1;
            allowed = fmax(allowed, entry->relative * sqrt(fmax(terms, 1)));
        }
    }
    return allowed;
}

static qp_status verify(const bench_state *state, contestant *c, bench_result *result,
                        qp_error *error)
{
    /* The copy that was used last, so that an answer saved from it would be detected. */
    int last = (c->next + c->copies.count - 1) % c->copies.count;
    op_call *call = &c->copies.calls[last];
    if (state->options->refill) state->options->refill(state->options->context, call);
    check_state check;
    TRY(check_open(&check, state->op, call, error));
    qp_status status = check_expect(&check, error);
    if (status == QP_OK) {
        run_call(state, c, call);
        result->error = check_error(&check);
        result->verified = result->error <= allowed_error(&check);
    }
    check_close(&check);
    return status;
}

/* Median over the rounds of amount / seconds, divided by the limit. */
static double share_of(const bench_state *state, const contestant *c, double amount,
                       hardware_limit limit)
{
    int rounds = state->options->rounds;
    for (int r = 0; r < rounds; r++) {
        double most = state->limits[limit][r];
        state->ratios[r] = most > 0 ? amount / c->seconds[r] / most : 0;
    }
    return figure_of(state->ratios, rounds, state->sorted).median;
}

static void summarize(const bench_state *state, bench_report *report, bench_result *results)
{
    int rounds = state->options->rounds;
    for (int limit = 0; limit < HARDWARE_LIMITS; limit++)
        report->limits[limit] = figure_of(state->limits[limit], rounds, state->sorted);
    for (int i = 0; i < state->n; i++) {
        const contestant *c = &state->contestants[i];
        bench_result *result = &results[i];
        result->seconds = figure_of(c->seconds, rounds, state->sorted);
        result->bytes = report->cost.bytes / result->seconds.median;
        result->flops = report->cost.flops / result->seconds.median;
        result->of_read = share_of(state, c, report->cost.bytes, HARDWARE_READ);
        result->of_float = share_of(state, c, report->cost.flops, HARDWARE_FLOAT);
        result->of_integer = share_of(state, c, report->cost.flops, HARDWARE_INTEGER);
    }
}

qp_status bench_run(const op_info *op, const op_call *call, const bench_candidate *candidates,
                    int n, hardware *hardware, thread_pool *pool, const bench_options *options,
                    bench_report *report, bench_result *results, qp_error *error)
{
    bench_state state = {.op = op, .pool = pool, .hardware = hardware, .options = options, .n = n};
    *report = (bench_report){.cost = op_cost_of(op, call)};
    qp_status status = prepare(&state, call, candidates, report, error);
    if (status == QP_OK) {
        take_rounds(&state);
        summarize(&state, report, results);
    }
    for (int i = 0; i < n && status == QP_OK; i++)
        status = verify(&state, &state.contestants[i], &results[i], error);
    for (int i = 0; state.contestants && i < n; i++) {
        copies_free(&state.contestants[i].copies);
        buffer_free(&state.contestants[i].scratch);
    }
    free(state.contestants);
    free(state.samples);
    return status;
}
