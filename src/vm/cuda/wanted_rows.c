/* The rows of a pass that its end works on: see wanted_rows.h. */
#include "vm/cuda/wanted_rows.h"

#include "base/checked.h"
#include "op/embedding/embedding.h"
#include "op/linear/linear.h"
#include "op/linear/linear_stream.h"
#include "op/linear/linear_summed_cuda.h"
#include "op/rms_norm/rms_norm.h"

static bool is_gather(const program *p, int node)
{
    return p->nodes[node].op == OP_EMBEDDING &&
           program_tensor_of(p, node, EMBEDDING_IDS) == PLAN_OUTPUT_ROWS &&
           program_tensor_of(p, node, EMBEDDING_TABLE) == PLAN_X;
}

/* Whether a node between attention and the gather works on each row by itself. */
static bool goes_by_rows(const program *p, int node)
{
    const op_code op = p->nodes[node].op;
    return op == OP_LINEAR || op == OP_RMS_NORM || op == OP_SILU_AND_MUL || op == OP_ALL_REDUCE ||
           program_is_noop(p, node);
}

/* Of several ranks that add partial sums the first one alone has a residual. */
static bool adds_attention(const program *p, int node)
{
    const bool others = p->options.rank > 0 && p->options.cut == PLAN_REDUCE;
    return p->nodes[node].op == OP_LINEAR && program_tensor_of(p, node, LINEAR_X) == PLAN_ATTN &&
           (others || program_tensor_of(p, node, LINEAR_RESIDUAL) == PLAN_X) &&
           program_tensor_of(p, node, LINEAR_OUT) == PLAN_X;
}

/* Whether the gathered rows of x and of attention's output fit where norms leave their rows: the
 * same on all ranks. */
static bool fits(const program *p, const int64_t *sizes)
{
    const int64_t columns = p->whole.n_heads * p->whole.head_dim;
    const int64_t hidden = p->config.hidden_size, rows = sizes[AXIS_OUTPUTS];
    return rows > 0 && 2 * rows <= sizes[AXIS_TOKENS] &&
           rows * (hidden + columns) + CUDA_ALIGNMENT <= sizes[AXIS_TOKENS] * hidden;
}

wanted_rows wanted_rows_find(const program *p, const launch_class *of, int begin, int end)
{
    wanted_rows found = {.output = -1, .gather = -1, .sizes = of->sizes};
    int gather = end - 1;
    if (of->sizes.of[AXIS_TOKENS] <= LINEAR_STREAM_MAX_X) return found; /* chains are faster */
    while (gather > begin && !is_gather(p, gather))
        gather--;
    int output = gather - 1;
    while (output > begin && goes_by_rows(p, output) && !adds_attention(p, output))
        output--;
    if (output <= begin || gather + 1 >= end || !adds_attention(p, output) ||
        p->nodes[output - 1].op != OP_PAGED_PREFILL || p->nodes[gather + 1].op != OP_RMS_NORM ||
        program_tensor_of(p, gather + 1, RMS_NORM_X) != PLAN_X_OUT || !fits(p, of->sizes.of))
        return found;
    found.output = output;
    found.gather = gather;
    found.sizes.of[AXIS_TOKENS] = of->sizes.of[AXIS_OUTPUTS];
    return found;
}

void wanted_rows_bind(const wanted_rows *w, const launch_setting *setting, const launch_class *of,
                      int node, op_call *call)
{
    const bool within = w->output >= 0 && node > w->output && node <= w->gather + 1;
    launch_bind(setting, within ? &w->sizes : &of->sizes, node, call);
    if (!within || node != w->gather + 1) return;
    op_call gather; /* x has just the rows that this would gather */
    launch_bind(setting, &w->sizes, w->gather, &gather);
    call->tensors[RMS_NORM_X] = gather.tensors[EMBEDDING_TABLE];
}

static qp_status gather_rows(cuda_ops *ops, const tensor *ids, const tensor *from, const tensor *to,
                             qp_error *error)
{
    op_call call = {.end = to->shape[0]};
    call.tensors[EMBEDDING_IDS] = *ids;
    call.tensors[EMBEDDING_TABLE] = *from;
    call.tensors[EMBEDDING_OUT] = *to;
    return cuda_ops_launch(ops, cuda_ops_choose(ops, OP_EMBEDDING, &call), &call, error);
}

qp_status wanted_rows_gather(const wanted_rows *w, const launch_setting *setting, cuda_ops *ops,
                             const tensor *attended, const tensor *cut_x, op_call *output,
                             qp_error *error)
{
    op_call few, gather;
    launch_bind(setting, &w->sizes, w->output, &few);
    launch_bind(setting, &w->sizes, w->gather, &gather);
    const tensor *ids = &gather.tensors[EMBEDDING_IDS], *out = &few.tensors[LINEAR_OUT];
    const int64_t rows = out->shape[0], hidden = out->shape[1];
    const bool adds = few.tensors[LINEAR_RESIDUAL].rank > 0;
    char *place = setting->memory.data[PLAN_X_NORM];
    const tensor x = tensor_2d(place, DTYPE_F32, rows, hidden);
    const size_t bytes = round_up((size_t)(rows * hidden) * sizeof(float), CUDA_ALIGNMENT);
    const tensor attention =
        tensor_2d(place + bytes, DTYPE_F32, rows, few.tensors[LINEAR_X].shape[1]);
    TRY(gather_rows(ops, ids, attended, &attention, error));
    if (cut_x->rank)
        TRY(cuda_linear_summed_rows(ops, cut_x, ids, &x, error));
    else if (adds)
        TRY(gather_rows(ops, ids, &output->tensors[LINEAR_RESIDUAL], &x, error));
    *output = few;
    output->tensors[LINEAR_X] = attention;
    if (adds) output->tensors[LINEAR_RESIDUAL] = x;
    return QP_OK;
}
