/* linear_experts: products of each row with the weights of the experts that route has chosen for
 * it.
 *
 * One operator is both halves of a mixture's feed-forward network. With an up_weight it computes
 * gate and up of every choice and their activation; with shares it adds up the choices' outputs, on
 * the residual. Rows are grouped by expert, so an expert's weights are read once for all tokens
 * that chose it, and those of experts that none chose are not read. A token's sum is taken in the
 * order of the experts' numbers, so it does not depend on the other tokens.
 */
#include "op/linear_experts/linear_experts.h"

#include "base/checked.h"
#include "base/hash.h"
#include "op/cuda_ops.h"
#include "op/element.h"
#include "op/linear/linear.h"
#include "op/row.h"
#include "op/silu_and_mul/silu_and_mul.h"
#include "op/table.h"

#include <string.h>

enum { ROWS = 16, TILE = 64 }; /* choices of an expert and output features at a time */

static int64_t units(const op_call *call)
{
    return call->tensors[LINEAR_EXPERTS_WEIGHT].shape[1];
}

/* Of out where each choice has its own features, a unit touches one element in each of them: from
 * the first to the last. */
static op_columns columns(const op_call *call, int t, int64_t begin, int64_t end)
{
    const tensor *of = &call->tensors[t];
    if (t == LINEAR_EXPERTS_RESIDUAL) return (op_columns){begin, end};
    if (t == LINEAR_EXPERTS_OUT)
        return (op_columns){begin, (of->shape[1] - 1) * of->shape[2] + end};
    return (op_columns){0, tensor_elements(of) / (of->shape[0] > 0 ? of->shape[0] : 1)};
}

static int64_t period(const op_call *call, int t)
{
    return t == LINEAR_EXPERTS_OUT ? call->tensors[t].shape[2] : 0;
}

static qp_status check_weight(const tensor *weight, qp_error *error)
{
    if (!weight->rank || weight->shape[2] % dtype_block_elements(weight->type) == 0) return QP_OK;
    return error_set(error, QP_INVALID,
                     "linear_experts: in_features %lld is not whole blocks of %s",
                     (long long)weight->shape[2], dtype_name(weight->type));
}

static qp_status check_ids(const op_call *call, qp_error *error)
{
    const tensor *ids = &call->tensors[LINEAR_EXPERTS_IDS];
    const int64_t n_experts = call->tensors[LINEAR_EXPERTS_WEIGHT].shape[0];
    for (int64_t t = 0; ids->data && t < ids->shape[0]; t++) {
        const int32_t *id = tensor_row(ids, t);
        for (int64_t j = 0; j < ids->shape[1]; j++)
            if (id[j] < -1 || id[j] >= n_experts)
                return error_set(error, QP_INVALID,
                                 "linear_experts: ids[%lld, %lld] = %d is none of %lld experts, "
                                 "and not -1",
                                 (long long)t, (long long)j, id[j], (long long)n_experts);
    }
    return QP_OK;
}

static qp_status check(const op_call *call, qp_error *error)
{
    const tensor *t = call->tensors;
    const int64_t top_k = t[LINEAR_EXPERTS_IDS].shape[1], each = t[LINEAR_EXPERTS_X].shape[1];
    const int64_t outputs = t[LINEAR_EXPERTS_SHARES].rank ? 1 : top_k;
    if (each != 1 && each != top_k)
        return error_set(error, QP_INVALID,
                         "linear_experts: a token has 1 row of x or top_k = %lld, found %lld",
                         (long long)top_k, (long long)each);
    if (t[LINEAR_EXPERTS_OUT].shape[1] != outputs)
        return error_set(error, QP_INVALID,
                         "linear_experts: a token has %lld rows of out, %s shares, found %lld",
                         (long long)outputs, outputs == 1 ? "with" : "without",
                         (long long)t[LINEAR_EXPERTS_OUT].shape[1]);
    if (t[LINEAR_EXPERTS_RESIDUAL].rank && !t[LINEAR_EXPERTS_SHARES].rank)
        return error_set(error, QP_INVALID, "linear_experts: a residual needs shares");
    TRY(check_weight(&t[LINEAR_EXPERTS_WEIGHT], error));
    TRY(check_weight(&t[LINEAR_EXPERTS_UP_WEIGHT], error));
    return check_ids(call, error);
}

/* Experts that some token chose; without ids as many as could be. */
static double derive(const op_call *call, const char *axis)
{
    const tensor *ids = &call->tensors[LINEAR_EXPERTS_IDS];
    const int64_t n_experts = call->tensors[LINEAR_EXPERTS_WEIGHT].shape[0];
    const int64_t choices = ids->shape[0] * ids->shape[1];
    (void)axis;
    if (!ids->data) return (double)(choices < n_experts ? choices : n_experts);
    int64_t used = 0;
    for (int64_t e = 0; e < n_experts; e++) {
        bool found = false;
        for (int64_t c = 0; c < choices && !found; c++)
            found = ((const int32_t *)tensor_row(ids, c / ids->shape[1]))[c % ids->shape[1]] == e;
        used += found;
    }
    return (double)used;
}

/* Distinct experts for each token: neighbours, from a random one on. In sums some choices are none.
 */
static void prepare(op_call *call, uint64_t seed)
{
    const tensor *ids = &call->tensors[LINEAR_EXPERTS_IDS];
    const int64_t n_experts = call->tensors[LINEAR_EXPERTS_WEIGHT].shape[0];
    for (int64_t t = 0; t < ids->shape[0]; t++) {
        int32_t *id = tensor_row(ids, t);
        const int64_t first = (int64_t)(hash_random(seed, 0, (uint64_t)t) % (uint64_t)n_experts);
        for (int64_t j = 0; j < ids->shape[1]; j++)
            id[j] = (int32_t)((first + j) % n_experts);
        if (call->tensors[LINEAR_EXPERTS_SHARES].rank && t % 4 == 2) id[ids->shape[1] - 1] = -1;
    }
}

/* ---- Rows by expert ------------------------------------------------------------------------- */

static int64_t choices_of(const op_call *call)
{
    const tensor *ids = &call->tensors[LINEAR_EXPERTS_IDS];
    return ids->shape[0] * ids->shape[1];
}

size_t expert_rows_bytes(const op_call *call)
{
    const int64_t n_experts = call->tensors[LINEAR_EXPERTS_WEIGHT].shape[0];
    return round_up((size_t)(n_experts + 1 + choices_of(call)) * sizeof(int32_t), 64);
}

expert_rows expert_rows_find(const op_call *call, void *memory)
{
    const tensor *ids = &call->tensors[LINEAR_EXPERTS_IDS]; /* (n_tokens, top_k) */
    const int64_t n_experts = call->tensors[LINEAR_EXPERTS_WEIGHT].shape[0], k = ids->shape[1];
    expert_rows rows = {.first = memory, .n_experts = n_experts, .top_k = k};
    rows.choices = rows.first + n_experts + 1;
    int32_t n = 0;
    memset(rows.first, 0, (size_t)(n_experts + 1) * sizeof *rows.first);
    for (int64_t c = 0; c < choices_of(call); c++) {
        const int32_t id = ((const int32_t *)tensor_row(ids, c / k))[c % k];
        if (id >= 0 && id < n_experts) rows.first[id]++;
    }
    for (int64_t e = 0; e <= n_experts; e++) {
        const int32_t count = rows.first[e];
        rows.first[e] = n += count; /* where the expert's choices end */
    }
    for (int64_t c = choices_of(call) - 1; c >= 0; c--) {
        const int32_t id = ((const int32_t *)tensor_row(ids, c / k))[c % k];
        if (id >= 0 && id < n_experts) rows.choices[--rows.first[id]] = (int32_t)c;
    }
    return rows;
}

const void *expert_rows_x(const op_call *call, const expert_rows *rows, int32_t choice)
{
    const tensor *x = &call->tensors[LINEAR_EXPERTS_X];
    return tensor_row2(x, choice / rows->top_k, x->shape[1] == 1 ? 0 : choice % rows->top_k);
}

void *expert_rows_out(const op_call *call, const expert_rows *rows, int32_t choice)
{
    const tensor *out = &call->tensors[LINEAR_EXPERTS_OUT];
    const bool sums = call->tensors[LINEAR_EXPERTS_SHARES].rank != 0;
    return tensor_row2(out, choice / rows->top_k, sums ? 0 : choice % rows->top_k);
}

double expert_rows_share(const op_call *call, const expert_rows *rows, int32_t choice)
{
    const tensor *shares = &call->tensors[LINEAR_EXPERTS_SHARES];
    return element_load(shares->type, tensor_row(shares, choice / rows->top_k),
                        choice % rows->top_k);
}

/* ---- The reference -------------------------------------------------------------------------- */

/* Its scratch: rows of x and outputs of a tile in float64, and the sums of all tokens. */
typedef struct work {
    const op_call *call;
    expert_rows rows;
    double *x;       /* (ROWS, in_features) */
    double *outputs; /* (ROWS, 2 * TILE): of gate, then of up */
    double *sums;    /* (n_tokens, TILE) */
    void *scratch;   /* of linear */
} work;

static size_t lay_out(const op_call *call, char *at, work *out)
{
    op_call linear = {0};
    const tensor *x = &call->tensors[LINEAR_EXPERTS_X];
    const size_t n_tokens = (size_t)x->shape[0], in_features = (size_t)x->shape[2];
    const size_t sizes[] = {expert_rows_bytes(call),
                            round_up(ROWS * in_features * sizeof(double), 64),
                            ROWS * 2 * TILE * sizeof(double), n_tokens * TILE * sizeof(double)};
    linear.tensors[LINEAR_X] = tensor_2d(NULL, DTYPE_F64, ROWS, x->shape[2]);
    const size_t before[] = {sizes[0], sizes[0] + sizes[1], sizes[0] + sizes[1] + sizes[2]};
    const size_t all = before[2] + sizes[3];
    if (at)
        *out = (work){.call = call,
                      .rows = expert_rows_find(call, at),
                      .x = (double *)(at + before[0]),
                      .outputs = (double *)(at + before[1]),
                      .sums = (double *)(at + before[2]),
                      .scratch = at + all};
    return all + op_linear.scratch_bytes(&linear);
}

static size_t scratch_bytes(const op_call *call)
{
    return lay_out(call, NULL, NULL);
}

/* Features [first, first + n) of an expert for `count` rows of x: columns [at, at + n) of outputs.
 */
static void project(const work *w, int weight, int bias, int64_t expert, int64_t count,
                    int64_t first, int64_t n, int64_t at)
{
    const tensor *all = &w->call->tensors[weight], *biases = &w->call->tensors[bias];
    op_call linear = {.end = n, .scratch = w->scratch};
    tensor matrix = tensor_slice(*all, 0, expert, 1), out;
    matrix = (tensor){.data = matrix.data,
                      .type = all->type,
                      .rank = 2,
                      .shape = {all->shape[1], all->shape[2]},
                      .stride = {all->stride[1], all->stride[2]}};
    out = tensor_2d(w->outputs, DTYPE_F64, count, 2 * TILE);
    linear.tensors[LINEAR_X] = tensor_2d(w->x, DTYPE_F64, count, all->shape[2]);
    linear.tensors[LINEAR_WEIGHT] = tensor_slice(matrix, 0, first, n);
    if (biases->rank)
        linear.tensors[LINEAR_BIAS] = tensor_slice(
            tensor_1d(tensor_row(biases, expert), biases->type, biases->shape[1]), 0, first, n);
    linear.tensors[LINEAR_OUT] = tensor_slice(out, 1, at, n);
    linear_reference(&linear);
}

/* Gate over up becomes their activation, in place. */
static void activate(const work *w, int64_t count, int64_t n)
{
    op_call silu = {.end = count * n};
    tensor both = tensor_2d(w->outputs, DTYPE_F64, count, 2 * TILE);
    silu.tensors[SILU_AND_MUL_X] = tensor_slice(both, 1, 0, 2 * n);
    silu.tensors[SILU_AND_MUL_OUT] = tensor_slice(both, 1, 0, n);
    memcpy(silu.params, w->call->params, LINEAR_EXPERTS_PARAMS * sizeof *silu.params);
    silu_and_mul_reference(&silu);
}

/* `count` choices of an expert, features [first, first + n): to out, or added to the sums. */
static void run_rows(const work *w, int64_t expert, const int32_t *choices, int64_t count,
                     int64_t first, int64_t n)
{
    const tensor *x = &w->call->tensors[LINEAR_EXPERTS_X], *t = w->call->tensors;
    for (int64_t r = 0; r < count; r++)
        row_load(x->type, expert_rows_x(w->call, &w->rows, choices[r]), x->shape[2],
                 w->x + r * x->shape[2]);
    project(w, LINEAR_EXPERTS_WEIGHT, LINEAR_EXPERTS_BIAS, expert, count, first, n, 0);
    if (t[LINEAR_EXPERTS_UP_WEIGHT].rank) {
        project(w, LINEAR_EXPERTS_UP_WEIGHT, LINEAR_EXPERTS_UP_BIAS, expert, count, first, n, n);
        activate(w, count, n);
    }
    for (int64_t r = 0; r < count; r++) {
        const double *from = w->outputs + r * 2 * TILE;
        void *to = expert_rows_out(w->call, &w->rows, choices[r]);
        const bool sums = t[LINEAR_EXPERTS_SHARES].rank != 0;
        const double share = sums ? expert_rows_share(w->call, &w->rows, choices[r]) : 0;
        for (int64_t i = 0; i < n; i++) {
            if (sums)
                w->sums[choices[r] / w->rows.top_k * TILE + i] += share * from[i];
            else
                element_store(t[LINEAR_EXPERTS_OUT].type, to, first + i, from[i]);
        }
    }
}

/* The sums of a tile, plus the residual. */
static void store_sums(const work *w, int64_t first, int64_t n)
{
    const tensor *residual = &w->call->tensors[LINEAR_EXPERTS_RESIDUAL];
    const tensor *out = &w->call->tensors[LINEAR_EXPERTS_OUT];
    for (int64_t t = 0; t < out->shape[0]; t++)
        for (int64_t i = 0; i < n; i++) {
            double sum = w->sums[t * TILE + i];
            if (residual->rank)
                sum += element_load(residual->type, tensor_row(residual, t), first + i);
            element_store(out->type, tensor_row(out, t), first + i, sum);
        }
}

void linear_experts_reference(const op_call *call)
{
    work w;
    lay_out(call, call->scratch, &w);
    const bool sums = call->tensors[LINEAR_EXPERTS_SHARES].rank != 0;
    const size_t n_tokens = (size_t)call->tensors[LINEAR_EXPERTS_OUT].shape[0];
    for (int64_t first = call->begin; first < call->end; first += TILE) {
        const int64_t n = call->end - first < TILE ? call->end - first : TILE;
        if (sums) memset(w.sums, 0, n_tokens * TILE * sizeof *w.sums);
        for (int64_t e = 0; e < w.rows.n_experts; e++)
            for (int32_t c = w.rows.first[e]; c < w.rows.first[e + 1]; c += ROWS) {
                const int32_t count = w.rows.first[e + 1] - c;
                run_rows(&w, e, w.rows.choices + c, count < ROWS ? count : ROWS, first, n);
            }
        if (sums) store_sums(&w, first, n);
    }
}

static const char *const cases[] = {
    "n_tokens=1 n_experts=8 top_k=2 x_each=1 out_each=2 in_features=64 out_features=48 bias:- "
    "up_bias:- shares:- residual:-",
    "n_tokens=9 n_experts=5 top_k=2 x_each=1 out_each=2 in_features=111 out_features=70 "
    "shares:- residual:- weight:F16 up_weight:F32 alpha=1.702 limit=0.5 added=1",
    "n_tokens=9 n_experts=5 top_k=2 x_each=1 out_each=2 in_features=111 out_features=70 "
    "shares:- residual:- weight:BF16 up_weight:BF16",
    "n_tokens=1 n_experts=16 top_k=4 x_each=1 out_each=4 in_features=256 out_features=96 "
    "shares:- residual:- weight:Q4_K up_weight:Q4_K bias:- up_bias:-",
    "n_tokens=40 n_experts=6 top_k=3 x_each=1 out_each=3 in_features=256 out_features=160 "
    "shares:- residual:- weight:Q4_K up_weight:Q6_K bias:- up_bias:- out+8",
    "n_tokens=3 n_experts=4 top_k=3 x_each=1 out_each=3 in_features=160 out_features=33 "
    "shares:- residual:- weight:Q8_0 up_weight:Q4_0",
    "n_tokens=1 n_experts=8 top_k=2 x_each=2 out_each=1 in_features=96 out_features=80 bias:- "
    "up_weight:- up_bias:-",
    "n_tokens=17 n_experts=8 top_k=4 x_each=4 out_each=1 in_features=136 out_features=45 "
    "up_weight:- up_bias:- weight:BF16",
    "n_tokens=1 n_experts=32 top_k=8 x_each=8 out_each=1 in_features=256 out_features=128 bias:- "
    "up_weight:- up_bias:- weight:Q6_K",
    "n_tokens=20 n_experts=4 top_k=2 x_each=2 out_each=1 in_features=512 out_features=97 bias:- "
    "up_weight:- up_bias:- weight:Q4_K residual:-",
    "n_tokens=300 n_experts=3 top_k=2 x_each=2 out_each=1 in_features=32 out_features=530 "
    "up_weight:- up_bias:- weight:Q5_1",
    "n_tokens=5 n_experts=3 top_k=1 x_each=1 out_each=1 in_features=64 out_features=24 "
    "up_weight:- up_bias:- x:BF16 weight:BF16 out:BF16 residual:BF16",
    "n_tokens=5 n_experts=4 top_k=2 x_each=1 out_each=2 in_features=256 out_features=64 "
    "shares:- residual:- weight:F8_128 up_weight:F8_128 bias:- up_bias:-",
    "n_tokens=7 n_experts=3 top_k=2 x_each=2 out_each=1 in_features=16 out_features=96 bias:- "
    "up_weight:- up_bias:- weight:BF16",
    "n_tokens=7 n_experts=3 top_k=2 x_each=1 out_each=2 in_features=160 out_features=16 bias:- "
    "up_weight:- up_bias:- shares:- residual:- weight:F16",
    "n_tokens=0 n_experts=4 top_k=2 x_each=1 out_each=2 in_features=64 out_features=24 shares:- "
    "residual:-",
    NULL,
};

static const char *const workloads[] = {
    "qwen3-30b-a3b ffn_up: n_tokens=1 n_experts=128 top_k=8 x_each=1 out_each=8 in_features=2048 "
    "out_features=768 weight:Q4_K up_weight:Q4_K bias:- up_bias:- shares:- residual:-",
    "qwen3-30b-a3b ffn_down: n_tokens=1 n_experts=128 top_k=8 x_each=8 out_each=1 "
    "in_features=768 out_features=2048 weight:Q4_K up_weight:- bias:- up_bias:-",
    "olmoe-1b-7b ffn_up: n_tokens=512 n_experts=64 top_k=8 x_each=1 out_each=8 in_features=2048 "
    "out_features=1024 weight:Q4_K up_weight:Q4_K bias:- up_bias:- shares:- residual:-",
    "olmoe-1b-7b ffn_down: n_tokens=512 n_experts=64 top_k=8 x_each=8 out_each=1 "
    "in_features=1024 out_features=2048 weight:Q6_K up_weight:- bias:- up_bias:-",
    NULL,
};

static const op_tolerance tolerances[] = {
    {DTYPE_F32, 2e-6, 2e-6}, {DTYPE_F16, 1e-3, 1e-3}, {DTYPE_BF16, 8e-3, 8e-3}, {0}};

const op_info op_linear_experts = {
    .name = "linear_experts",
    .summary = "products with the weights of each token's experts: gate, up and activation, or "
               "their sum",
    .place =
        "ffn_up and ffn_down of a mixture of experts, after route. With few tokens only the "
        "chosen experts are read. Also LoRA: an adapter's A and B are an expert's weights, and "
        "each token chooses the adapters of its sequence.",
    .formula = "y[t, j, o] = sum_i x[t, j or 0, i] * weight[e, o, i] + bias[e, o], e = ids[t, j]; "
               "with an up_weight u[t, j, o] likewise, and y = silu_and_mul(y, u). Without shares "
               "out = y; with shares out[t, 0, o] = residual[t, o] + sum_j shares[t, j] * y[t, j, "
               "o]",
    .precision = "Weights are decoded exactly as their format defines; y, u and sums are float32 "
                 "or wider, with one rounding to the type of out. A token's experts are added in "
                 "the order of their numbers, by a GPU's kernel for few tokens in the order of its "
                 "warps: its result does not depend on other tokens.",
    .edge_cases =
        "out may be residual. Experts that no token chose are not read. An id of -1 is no "
        "expert: its row of out is not written, and a sum leaves it out. No tokens: "
        "nothing is written.",
    .source = "Shazeer et al.: Outrageously Large Neural Networks, 2017; the experts of Mixtral, "
              "OLMoE, Qwen3 and gpt-oss of transformers",
    .unit = "an output feature (a row of each expert's weight), for all tokens",
    .flops = "2 * n_tokens * top_k * in_features * out_features",
    .bytes = "n_tokens * x_each * in_features * sizeof_x + n_used * out_features * in_features * "
             "(sizeof_weight + sizeof_up_weight) + n_tokens * out_each * out_features * sizeof_out",
    .axes = {{"n_tokens", AXIS_VARIABLE, "tokens"},
             {"n_experts", AXIS_CONSTANT, "experts of a layer"},
             {"top_k", AXIS_CONSTANT, "experts that a token uses"},
             {"x_each", AXIS_CONSTANT,
              "rows of x for a token: one for all of its experts, or top_k"},
             {"out_each", AXIS_CONSTANT, "rows of out for a token: top_k, or with shares one"},
             {"in_features", AXIS_CONSTANT, "elements of a row of x"},
             {"out_features", AXIS_CONSTANT, "rows of an expert's weight"},
             {"n_used", AXIS_DERIVED, "experts that some token chose"}},
    .tensors = {{"x", OP_IN, OP_FLOATS, "n_tokens, x_each, in_features", false,
                 "rows may be strided"},
                {"ids", OP_IN, OP_TYPE(I32), "n_tokens, top_k", false, "the experts of a token"},
                {"weight", OP_IN, OP_WEIGHTS, "n_experts, out_features, in_features", false,
                 "a row is whole blocks of its type; with up_weight the gate"},
                {"up_weight", OP_IN, OP_WEIGHTS, "n_experts, out_features, in_features", true,
                 "as weight, of the same type or another"},
                {"bias", OP_IN, OP_FLOATS, "n_experts, out_features", true, "absent: zeros"},
                {"up_bias", OP_IN, OP_FLOATS, "n_experts, out_features", true, "absent: zeros"},
                {"shares", OP_IN, OP_FLOATS, "n_tokens, top_k", true,
                 "factors of the outputs, which are then added up"},
                {"residual", OP_IN, OP_FLOATS, "n_tokens, out_features", true,
                 "only with shares; absent: zeros"},
                {"out", OP_OUT, OP_FLOATS, "n_tokens, out_each, out_features", false,
                 "rows may be strided; may be residual, must not overlap x"}},
    .params = {{"alpha", PARAM_FLOAT, 1, "of silu_and_mul"},
               {"limit", PARAM_FLOAT, 0, "of silu_and_mul"},
               {"added", PARAM_FLOAT, 0, "of silu_and_mul"}},
    .grain = 32,
    .units = units,
    .columns = columns,
    .period = period,
    .check = check,
    .derive = derive,
    .scratch_bytes = scratch_bytes,
    .prepare = prepare,
    .reference = linear_experts_reference,
    .variants = linear_experts_variants,
    .cuda = linear_experts_cuda,
    .cases = cases,
    .workloads = workloads,
    .tolerances = tolerances,
    .reduction = "in_features",
    .fills = OP_FILL_NAN,
};
