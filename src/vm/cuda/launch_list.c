/* Makes launch lists: decides which of the program's nodes are one launch. See launch_list.h and
 * launch_builder.h; launch_chain.c has the chains.
 *
 * The time of a pass of few rows depends on the number of launches. At each node the list takes the
 * first of these that is possible: a chain, as long as possible; a product merged with the products
 * after it, with a fusion of its kernel; a single kernel.
 */
#include "vm/cuda/launch_builder.h"

#include "op/all_gather/all_gather.h"
#include "op/argmax/argmax.h"
#include "op/attention/attention_cuda.h"
#include "op/exchange_cuda.h"
#include "op/linear/linear.h"
#include "op/linear/linear_f8_rows_cuda.h"
#include "op/linear/linear_summed_cuda.h"
#include "op/linear/linear_wide_cuda.h"
#include "op/paged_prefill/paged_prefill.h"
#include "op/rope/rope.h"
#include "op/rows_cuda.h"

#include <stdlib.h>

/* ---- fused launches ------------------------------------------------------------------------ */

/* Whether the node after those of a fusion is attention that reads the q that the fusion moves, and
 * feeds a product. */
static bool is_read_moved(const launch_builder *b, int node, const tensor *q)
{
    op_call attention;
    if (node >= b->end || b->program->nodes[node].op != OP_PAGED_PREFILL || launch_all_decode(b))
        return false;
    launch_bind_node(b, node, &attention);
    const cuda_kernel *reader = cuda_ops_choose(&b->ops, OP_PAGED_PREFILL, &attention);
    const tensor out = launch_output_of(OP_PAGED_PREFILL, &attention);
    return attention.tensors[PAGED_PREFILL_Q].data == q->data && reader && reader->takes_moved_q &&
           launch_feeds_product(b, node, &out);
}

/* Whether the nodes from `next` on are those of a fusion; then their calls follow calls[0]. */
static bool fuses(const launch_builder *b, const cuda_kernel *kernel, const cuda_fusion *fusion,
                  int next, op_call *calls)
{
    const program_node *nodes = b->program->nodes;
    if (next + fusion->n_with > b->end) return false;
    for (int i = 0; i < fusion->n_with; i++) {
        if (nodes[next + i].op != fusion->with[i]) return false;
        launch_bind_node(b, next + i, &calls[1 + i]);
        if (launch_is_custom(b, fusion->with[i], &calls[1 + i])) return false;
    }
    const int last = next + fusion->n_with - 1;
    if (fusion->with[0] == OP_ROPE && !cuda_rope_is_appended(&b->ops, &calls[1])) return false;
    if (fusion->sums && !(launch_ranks_are_alike(b->program) &&
                          launch_feeds_alone(b, last, launch_multiplies_narrowed)))
        return false;
    if (!fusion->accepts(&b->ops, calls)) return false;
    if (fusion->moves_q && !is_read_moved(b, last + 1, &calls[1].tensors[ROPE_Q])) return false;
    const tensor out = launch_output_of(nodes[last].op, &calls[fusion->n_with]);
    if (fusion->rounds)
        return launch_is_multiplied(b, last, &out) &&
               (kernel->takes_f8 == CUDA_F8_ROWS ? launch_multiplies_f8_rows(b, last + 1)
                                                 : launch_multiplies_f8_groups(b, last + 1));
    return !fusion->narrows || launch_feeds_product(b, last, &out);
}

static const cuda_fusion *fusion_of(const launch_builder *b, const cuda_kernel *kernel, int next,
                                    op_call *calls)
{
    for (const cuda_fusion *f = kernel ? kernel->fusions : NULL; f && f->name; f++)
        if (fuses(b, kernel, f, next, calls)) return f;
    return NULL;
}

/* A fusion of the chosen kernel, or of one that only runs so, which *kernel then is. */
static const cuda_fusion *find_fusion(const launch_builder *b, const cuda_kernel **kernel, int next,
                                      op_call *calls)
{
    const cuda_kernel *fusing = cuda_ops_fusing(&b->ops, *kernel, &calls[0]);
    const cuda_fusion *fusion = fusion_of(b, *kernel, next, calls);
    if (fusion) return fusion;
    fusion = fusion_of(b, fusing, next, calls);
    if (fusion) *kernel = fusing;
    return fusion;
}

/* The form in which a product reads x. Afterwards x is in BF16. */
static cuda_forms take_x(launch_builder *b, const tensor *x, launch_entry *entry)
{
    cuda_forms forms = {0};
    bool there = launch_same_view(&b->narrowed, x);
    entry->input = !there ? LAUNCH_ROUNDS : b->narrowed_in_f8 ? LAUNCH_F8 : LAUNCH_BF16;
    if (there) forms.x = b->narrowed_at, forms.x_in_f8 = b->narrowed_in_f8;
    if (!there) launch_leave_narrowed(b, x, cuda_narrow_place(&b->ops));
    return forms;
}

/* Makes x whole, if ranks have their own rows of it alone. */
static qp_status join_rows(launch_builder *b, qp_error *error)
{
    const tensor x = b->cut_x;
    b->cut_x.rank = 0;
    return x.rank ? cuda_linear_summed_rows(&b->ops, &x, NULL, &x, error) : QP_OK;
}

/* Whether a call reads or writes the x that is cut. */
static bool touches_cut(const launch_builder *b, op_code op, const op_call *call)
{
    for (int t = 0; t < op_n_tensors(op_get(op)) && b->cut_x.rank; t++)
        if (call->tensors[t].rank && call->tensors[t].data == b->cut_x.data) return true;
    return false;
}

static qp_status add_fused(launch_builder *b, const cuda_fusion *fusion, const op_call *calls,
                           launch_entry *entry, qp_error *error)
{
    const tensor none = {0};
    cuda_forms forms = {0};
    cuda_left left = {0};
    entry->n_nodes += fusion->n_with;
    entry->epilogue = fusion->name;
    if (entry->kernel->takes_narrowed) forms = take_x(b, &calls[0].tensors[LINEAR_X], entry);
    if (fusion->leaves) left = fusion->leaves(&b->ops, calls, b->narrowed_at);
    TRY(fusion->launch(&b->ops, calls, &forms, error));
    if (left.narrowed) {
        const tensor out =
            launch_output_of(fusion->with[fusion->n_with - 1], &calls[fusion->n_with]);
        launch_leave_narrowed(b, &out, left.narrowed);
        b->narrowed_in_f8 = left.in_f8;
        entry->output = left.in_f8 ? LAUNCH_F8 : LAUNCH_BF16;
    } else {
        launch_leave_narrowed(b, &none, 0);
    }
    if (fusion->sums) b->cut_x = calls[0].tensors[LINEAR_OUT];
    if (left.q.rank) {
        b->q = calls[1].tensors[ROPE_Q];
        b->moved_q = left.q;
        entry->output = LAUNCH_Q;
    }
    return launch_add_entry(b, entry, error);
}

/* ---- single launches ----------------------------------------------------------------------- */

static cuda_forms forms_of(launch_builder *b, op_code op, const op_call *call, launch_entry *entry)
{
    const tensor none = {0}, out = launch_output_of(op, call);
    cuda_forms forms = {.n_chunks = b->of->n_chunks};
    const cuda_kernel *kernel = entry->kernel;
    if (kernel->takes_narrowed) {
        forms = take_x(b, &call->tensors[LINEAR_X], entry);
        return forms;
    }
    launch_leave_narrowed(b, &none, 0);
    if (!kernel->narrows || !kernel->narrows(call) || !launch_feeds_product(b, entry->node, &out))
        return forms;
    forms.out = cuda_narrow_place(&b->ops);
    forms.out_alone = launch_feeds_alone(b, entry->node, launch_multiplies_narrowed);
    forms.out_by_rows = kernel->rounds && kernel->rounds(call) &&
                        launch_feeds_alone(b, entry->node, launch_multiplies_f8_rows);
    forms.out_in_f8 =
        forms.out_by_rows || (kernel->rounds && kernel->rounds(call) &&
                              launch_feeds_alone(b, entry->node, launch_multiplies_f8_groups));
    launch_leave_narrowed(b, &out, forms.out);
    b->narrowed_in_f8 = forms.out_in_f8;
    const bool alone = kernel->narrow_form == CUDA_NARROWS_ALONE ||
                       (kernel->narrow_form == CUDA_NARROWS_EITHER && forms.out_alone);
    entry->output = !alone ? LAUNCH_BOTH : forms.out_in_f8 ? LAUNCH_F8 : LAUNCH_BF16;
    return forms;
}

static void take_moved_q(launch_builder *b, tensor *q, launch_entry *entry)
{
    if (b->q.rank && b->q.rank == q->rank && launch_same_rows(&b->q, q)) {
        *q = b->moved_q;
        entry->input = LAUNCH_Q;
    }
    b->q.rank = 0;
}

/* Whether attention is two launches: of prompts, and of the sequences that decode beside them. A
 * tile of paged_prefill has a hundred rows, of which a sequence with one token uses a few. Only
 * kernels with tiles let the other launch begin at the right time. */
static bool is_split(const launch_builder *b, const launch_entry *entry, const op_call *call)
{
    op_call decode, others;
    if (entry->kernel->launch != cuda_prefill || b->of->n_decode == 0 ||
        entry->kernel->custom_launch)
        return false;
    cuda_split_prefill(call, b->of->n_decode, &decode, &others);
    return !launch_is_custom(b, OP_PAGED_DECODE, &decode) && cuda_decode_accepts(&decode) &&
           cuda_decode_pays(&b->ops, &decode) &&
           cuda_ops_choose(&b->ops, OP_PAGED_PREFILL, &others) == entry->kernel;
}

/* The second launch runs while the first one's last blocks do. */
static qp_status launch_split(launch_builder *b, const launch_entry *entry, const op_call *call,
                              const cuda_forms *forms, qp_error *error)
{
    op_call decode, others;
    cuda_forms own = *forms, first = *forms;
    own.beside = first.beside = true;
    first.out_rows = call->tensors[PAGED_PREFILL_Q].shape[0];
    cuda_split_prefill(call, b->of->n_decode, &decode, &others);
    TRY(entry->kernel->launch(&b->ops, entry->kernel, &others, &own, error));
    const cuda_kernel *kernel = cuda_ops_choose(&b->ops, OP_PAGED_DECODE, &decode);
    return kernel->launch(&b->ops, kernel, &decode, &first, error);
}

/* Gathers the rows that go on to the end of the pass from attention's output, which may be there in
 * BF16 alone, and from x, of which ranks may have their own rows alone. */
static qp_status gather_wanted(launch_builder *b, op_call *output, qp_error *error)
{
    tensor attended = output->tensors[LINEAR_X];
    if (launch_same_view(&b->narrowed, &attended))
        attended = tensor_2d(cuda_host_form(b->narrowed_at), DTYPE_BF16, attended.shape[0],
                             attended.shape[1]);
    const tensor cut_x = b->cut_x;
    b->cut_x.rank = 0;
    return wanted_rows_gather(&b->wanted, b->setting, &b->ops, &attended, &cut_x, output, error);
}

/* Whether a node gathers logits of which only the likeliest tokens are wanted. */
static bool gathers_for_likeliest(const launch_builder *b, int node)
{
    return b->finds && !b->ops.carrier && node + 1 == b->end &&
           b->program->nodes[node].op == OP_ALL_GATHER && !program_is_noop(b->program, node);
}

/* Each rank finds the likeliest of its own columns: logits are not gathered. */
static qp_status add_likeliest_of_ranks(launch_builder *b, int node, qp_error *error)
{
    const op_call ids = launch_likeliest_call(b);
    launch_entry entry = launch_entry_at(b, node);
    op_call call;
    launch_bind_node(b, node, &call);
    entry.kernel = cuda_ops_choose(&b->ops, OP_ALL_GATHER, &call);
    entry.epilogue = "argmax";
    b->finds = false;
    TRY(cuda_exchange_likeliest(&b->ops, &call.tensors[ALL_GATHER_PART],
                                (int64_t)call.params[ALL_GATHER_FIRST], &ids.tensors[ARGMAX_IDS],
                                error));
    return launch_add_entry(b, &entry, error);
}

/* Whether a product, the last node, makes logits of which only the likeliest tokens are wanted, and
 * can find them itself; then entry->kernel does. */
static bool finds_likeliest(const launch_builder *b, launch_entry *entry, const op_call *call,
                            int end)
{
    const op_call argmax = launch_likeliest_call(b);
    if (!b->finds || end != b->end || entry->kernel->op != OP_LINEAR) return false;
    const cuda_kernel *fusing = cuda_ops_fusing(&b->ops, entry->kernel, call);
    if (!fusing || launch_is_custom(b, OP_ARGMAX, &argmax) ||
        !cuda_linear_wide_finds(call, &argmax))
        return false;
    entry->kernel = fusing;
    return true;
}

static qp_status add_likeliest_product(launch_builder *b, const op_call *call, launch_entry *entry,
                                       qp_error *error)
{
    const op_call argmax = launch_likeliest_call(b);
    const cuda_forms forms = take_x(b, &call->tensors[LINEAR_X], entry);
    entry->epilogue = "argmax";
    b->finds = false;
    TRY(cuda_linear_wide_likeliest(&b->ops, call, &argmax, &forms, error));
    return launch_add_entry(b, entry, error);
}

/* Adds a node and the nodes after it that are one launch with it; *count is their number. */
static qp_status add_node(launch_builder *b, int node, int *count, qp_error *error)
{
    op_code op = b->program->nodes[node].op;
    op_call calls[1 + CUDA_MAX_FUSED];
    launch_entry entry = launch_entry_at(b, node);
    *count = 1;
    if (program_is_noop(b->program, node) || node == b->wanted.gather)
        return launch_add_entry(b, &entry, error);
    launch_bind_node(b, node, &calls[0]);
    if (node == b->wanted.output) TRY(gather_wanted(b, &calls[0], error));
    if (op == OP_LINEAR) *count = entry.n_nodes = launch_join_products(b, node, &calls[0]);
    if (op == OP_PAGED_PREFILL) take_moved_q(b, &calls[0].tensors[PAGED_PREFILL_Q], &entry);
    op = launch_take_decoding(b, op, &calls[0]);
    entry.kernel = cuda_ops_choose(&b->ops, op, &calls[0]);
    if (!entry.kernel)
        return error_set(error, QP_UNSUPPORTED, "the GPU has no kernel of %s for this model: %s",
                         op_get(op)->name,
                         op_get(op)->cuda ? "use --device cpu"
                                          : "fused operators run on a CPU and in the megakernel; "
                                            "leave --fuse and --sums out");
    if (finds_likeliest(b, &entry, &calls[0], node + *count))
        return add_likeliest_product(b, &calls[0], &entry, error);
    const cuda_fusion *fusion = find_fusion(b, &entry.kernel, node + *count, calls);
    if (!(fusion && fusion->sums) && touches_cut(b, op, &calls[0])) TRY(join_rows(b, error));
    if (fusion) {
        *count += fusion->n_with;
        return add_fused(b, fusion, calls, &entry, error);
    }
    const cuda_forms forms = forms_of(b, op, &calls[0], &entry);
    if (is_split(b, &entry, &calls[0]))
        TRY(launch_split(b, &entry, &calls[0], &forms, error));
    else
        TRY(entry.kernel->launch(&b->ops, entry.kernel, &calls[0], &forms, error));
    return launch_add_entry(b, &entry, error);
}

/* Adds a launch that finds the likeliest token of each row of logits, if no kernel has found it. */
static qp_status add_likeliest(launch_builder *b, qp_error *error)
{
    const op_call call = launch_likeliest_call(b);
    launch_entry entry = launch_entry_at(b, b->end);
    entry.n_nodes = 0;
    entry.kernel = cuda_ops_choose(&b->ops, OP_ARGMAX, &call);
    b->early = false;
    TRY(entry.kernel->launch(&b->ops, entry.kernel, &call, &(cuda_forms){0}, error));
    return launch_add_entry(b, &entry, error);
}

/* Makes x whole at the end of the list. */
static qp_status add_join(launch_builder *b, qp_error *error)
{
    launch_entry entry = launch_entry_at(b, b->end);
    entry.n_nodes = 0;
    entry.kernel = &all_gather_cuda[0];
    TRY(join_rows(b, error));
    return launch_add_entry(b, &entry, error);
}

static qp_status build(launch_builder *b, int node, qp_error *error)
{
    b->finds = b->of->likeliest;
    for (int count; node < b->end; node += count) {
        count = 0;
        if (gathers_for_likeliest(b, node)) {
            TRY(add_likeliest_of_ranks(b, node, error));
            count = 1;
            continue;
        }
        TRY(launch_add_chain(b, node, &count, &b->finds, error));
        if (count == 0) TRY(add_node(b, node, &count, error));
    }
    if (b->cut_x.rank) TRY(add_join(b, error));
    return b->finds ? add_likeliest(b, error) : QP_OK;
}

/* ---- lists --------------------------------------------------------------------------------- */

/* At most one entry for each node, one for rows of x and one for the likeliest tokens. */
static qp_status allocate(launch_list *list, int n_nodes, qp_error *error)
{
    list->capacity = n_nodes + 2;
    list->entries = calloc((size_t)list->capacity, sizeof *list->entries);
    if (list->entries) return QP_OK;
    return error_no_memory(error, "a list of launches",
                           (size_t)list->capacity * sizeof *list->entries);
}

qp_status launch_list_make(const launch_setting *setting, const launch_class *of, launch_sink *sink,
                           void *context, launch_list *out, qp_error *error)
{
    const program_step *steps = setting->program->steps;
    *out = (launch_list){.of = *of};
    launch_builder b = {.setting = setting,
                        .of = of,
                        .program = setting->program,
                        .early = true,
                        .chains = of->sizes.of[AXIS_TOKENS] > setting->ops.few_rows &&
                                  !setting->without_chains,
                        .ops = setting->ops,
                        .list = out,
                        .sink = sink,
                        .context = context};
    if (of->first == of->last) return QP_OK;
    const int begin = steps[of->first].first_node;
    b.end = steps[of->last - 1].first_node + steps[of->last - 1].n_nodes;
    b.wanted = wanted_rows_find(b.program, of, begin, b.end);
    b.ops.recording = &out->recording;
    TRY(allocate(out, b.end - begin, error));
    return build(&b, begin, error);
}

void launch_list_free(launch_list *list)
{
    free(list->entries);
    free(list->step_nodes);
    cuda_recording_free(&list->recording);
    *list = (launch_list){0};
}

const char *launch_kernel_name(const cuda_record *record)
{
    return record->is_product ? "cublasLt" : record->start.name;
}
