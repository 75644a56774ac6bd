/* embedding_clear: stores the residual's first value, and zeros where the next pass will add its
 * sums.
 *
 * A sum must be zero before anything is added to it. Clearing it in the pass before makes no worker
 * wait, since a pass begins after all of the previous pass has ended. A unit is a column of x, so
 * that many workers share one token's row; the unit also clears the same share of x_next.
 */
#include "op/embedding_clear/embedding_clear.h"

#include "base/checked.h"
#include "op/embedding/embedding.h"
#include "op/fixed.h"
#include "op/table.h"

#include <string.h>

static int64_t units(const op_call *call)
{
    return call->tensors[EMBEDDING_CLEAR_X].shape[1];
}

static op_columns columns(const op_call *call, int t, int64_t begin, int64_t end)
{
    int64_t hidden_size = call->tensors[EMBEDDING_CLEAR_X].shape[1];
    int64_t each = hidden_size ? call->tensors[EMBEDDING_CLEAR_X_NEXT].shape[1] / hidden_size : 0;
    if (t == EMBEDDING_CLEAR_X) return (op_columns){begin, end};
    if (t == EMBEDDING_CLEAR_X_NEXT) return (op_columns){begin * each, end * each};
    return (op_columns){0, t == EMBEDDING_CLEAR_IDS ? 1 : hidden_size};
}

/* A token's row as embedding makes it, in float64; its ids are set later. */
static op_call embedding_call(const op_call *call, double *row, void *scratch)
{
    op_call embed = {.end = 1, .scratch = scratch};
    embed.tensors[EMBEDDING_TABLE] = call->tensors[EMBEDDING_CLEAR_TABLE];
    embed.tensors[EMBEDDING_OUT] =
        tensor_2d(row, DTYPE_F64, 1, call->tensors[EMBEDDING_CLEAR_X].shape[1]);
    return embed;
}

static qp_status check(const op_call *call, qp_error *error)
{
    op_call embed = {0};
    embed.tensors[EMBEDDING_IDS] = call->tensors[EMBEDDING_CLEAR_IDS];
    embed.tensors[EMBEDDING_TABLE] = call->tensors[EMBEDDING_CLEAR_TABLE];
    int64_t hidden_size = call->tensors[EMBEDDING_CLEAR_X].shape[1];
    int64_t n_next = call->tensors[EMBEDDING_CLEAR_X_NEXT].shape[1];
    if (hidden_size > 0 && n_next % hidden_size != 0)
        return error_set(error, QP_INVALID,
                         "embedding_clear: rows of x_next must be whole ones of x, of %lld, found "
                         "%lld elements",
                         (long long)hidden_size, (long long)n_next);
    return op_embedding.check(&embed, error);
}

static void prepare(op_call *call, uint64_t seed)
{
    op_call embed = {0};
    embed.tensors[EMBEDDING_IDS] = call->tensors[EMBEDDING_CLEAR_IDS];
    embed.tensors[EMBEDDING_TABLE] = call->tensors[EMBEDDING_CLEAR_TABLE];
    op_embedding.prepare(&embed, seed);
}

static size_t row_bytes(const op_call *call)
{
    return round_up((size_t)call->tensors[EMBEDDING_CLEAR_X].shape[1] * sizeof(double), 64);
}

static size_t scratch_bytes(const op_call *call)
{
    op_call embed = embedding_call(call, NULL, NULL);
    return row_bytes(call) + op_embedding.scratch_bytes(&embed);
}

void embedding_clear_reference(const op_call *call)
{
    const tensor *x = &call->tensors[EMBEDDING_CLEAR_X];         /* (n_tokens, hidden_size) */
    const tensor *next = &call->tensors[EMBEDDING_CLEAR_X_NEXT]; /* (n_rows, n_next) */
    op_columns cleared = columns(call, EMBEDDING_CLEAR_X_NEXT, call->begin, call->end);
    double *row = call->scratch;

    op_call embed = embedding_call(call, row, (char *)call->scratch + row_bytes(call));
    for (int64_t t = 0; t < x->shape[0] && call->begin < call->end; t++) {
        embed.tensors[EMBEDDING_IDS] = tensor_slice(call->tensors[EMBEDDING_CLEAR_IDS], 0, t, 1);
        embedding_reference(&embed);
        int64_t *to = tensor_row(x, t);
        for (int64_t i = call->begin; i < call->end; i++)
            to[i] = fixed_from(row[i]);
    }
    for (int64_t r = 0; r < next->shape[0] && cleared.begin < cleared.end; r++)
        memset((int64_t *)tensor_row(next, r) + cleared.begin, 0,
               (size_t)(cleared.end - cleared.begin) * sizeof(int64_t));
}

static const char *const cases[] = {
    "n_tokens=1 vocab_size=7 hidden_size=111 n_rows=1 n_next=555",
    "n_tokens=19 vocab_size=50 hidden_size=64 n_rows=20 n_next=64 table:F16",
    "n_tokens=5 vocab_size=33 hidden_size=96 n_rows=5 n_next=864 table:Q4_1 x+16 x_next+8",
    "n_tokens=2 vocab_size=9 hidden_size=512 n_rows=4 n_next=1536 table:Q6_K",
    "n_tokens=3 vocab_size=12 hidden_size=576 n_rows=3 n_next=1152 table:BF16 table+24",
    "n_tokens=0 vocab_size=4 hidden_size=32 n_rows=2 n_next=96 table:Q8_0",
    NULL,
};

static const char *const workloads[] = {
    "llama-3.1-8b: n_tokens=1 vocab_size=128256 hidden_size=4096 n_rows=1 n_next=266240 table:BF16",
    "llama-3.2-1b: n_tokens=1 vocab_size=128256 hidden_size=2048 n_rows=1 n_next=67584 table:BF16",
    "smollm2-135m: n_tokens=1 vocab_size=49152 hidden_size=576 n_rows=1 n_next=35136 table:Q8_0",
    NULL,
};

const op_info op_embedding_clear = {
    .name = "embedding_clear",
    .summary = "rows of a table as sums in fixed point, and zeros for the next pass's sums",
    .place = "The first step of the plan of sums: the residual's first value. The sums that the "
             "next pass adds up are cleared on the way.",
    .formula = "x[t, i] = round(table[ids[t], i] * 2^32), x_next[r, j] = 0",
    .precision = "The stored value is decoded exactly and rounded once, to fixed point with 32 "
                 "fraction bits (op/fixed.h).",
    .edge_cases = "Values of 2^20 and more become the largest value, NaN becomes 0. No "
                  "tokens: x_next is cleared all the same.",
    .source = "embedding, with the residual as the megakernel keeps it",
    .unit = "a column of x for all tokens, and n_next / hidden_size columns of x_next",
    .flops = "0",
    .bytes = "n_tokens * (4 + hidden_size * (sizeof_table + 8)) + n_rows * n_next * 8",
    .axes = {{"n_tokens", AXIS_VARIABLE, "rows to pick"},
             {"vocab_size", AXIS_CONSTANT, "rows of the table"},
             {"hidden_size", AXIS_CONSTANT, "elements in a row"},
             {"n_rows", AXIS_CONSTANT, "rows of sums: the most tokens that a pass has"},
             {"n_next", AXIS_CONSTANT, "hidden_size times the values of the residual in a pass"}},
    .tensors = {{"ids", OP_IN, OP_TYPE(I32), "n_tokens", false, "row of the table for each token"},
                {"table", OP_IN, OP_WEIGHTS | OP_TYPE(F64), "vocab_size, hidden_size", false,
                 "any weight type; rows may be strided"},
                {"x", OP_OUT, OP_TYPE(I64), "n_tokens, hidden_size", false,
                 "fixed point; rows may be strided"},
                {"x_next", OP_OUT, OP_TYPE(I64), "n_rows, n_next", false,
                 "all sums of the next pass; must not overlap x"}},
    .units = units,
    .columns = columns,
    .check = check,
    .scratch_bytes = scratch_bytes,
    .prepare = prepare,
    .reference = embedding_clear_reference,
    .cases = cases,
    .workloads = workloads,
};
