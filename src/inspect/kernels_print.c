/* Kernels by module: see kernels_print.h. A row is a step's operators of one kind; the layers that
 * have it are counted, and those rows of a step that come later follow it. */
#include "inspect/kernels_print.h"

#include "base/cpu.h"
#include "base/json.h"
#include "base/output.h"
#include "inspect/modules.h"

#include <stdlib.h>
#include <string.h>

/* What FlashInfer, or PyTorch where it leaves that to it, calls an operator's kernel. */
static const struct {
    op_code op;
    const char *kernel;
} flashinfer[] = {
    {OP_EMBEDDING, "F.embedding"},
    {OP_RMS_NORM, "rmsnorm"},
    {OP_ADD_RMS_NORM, "fused_add_rmsnorm"},
    {OP_ADD_RESIDUAL_RMS_NORM, "fused_add_rmsnorm"},
    {OP_HEAD_NORM, "rmsnorm"},
    {OP_LINEAR, "F.linear"},
    {OP_ROPE, "apply_rope_with_cos_sin_cache_inplace"},
    {OP_KV_APPEND, "append_paged_kv_cache"},
    {OP_RAGGED_PREFILL, "BatchPrefillWithRaggedKVCacheWrapper"},
    {OP_PAGED_PREFILL, "BatchPrefillWithPagedKVCacheWrapper"},
    {OP_PAGED_DECODE, "BatchDecodeWithPagedKVCacheWrapper"},
    {OP_MERGE_STATE, "merge_state"},
    {OP_SILU_AND_MUL, "act_and_mul_kernel (silu_and_mul)"},
    {OP_GELU_AND_MUL, "act_and_mul_kernel (gelu_tanh_and_mul)"},
    {OP_SAMPLING, "top_k_top_p_sampling_from_logits"},
};

/* The module that a step belongs to; depth is that of the tree. */
typedef struct step_module {
    const char *step, *name, *class;
} step_module;

static const step_module of_steps[] = {
    {"embedding", "embed_tokens", "VocabParallelEmbedding"},
    {"attn_norm", "input_layernorm", "RMSNorm"},
    {"attn_qkv", "self_attn.qkv_proj", "QKVParallelLinear"},
    {"qk_norm", "self_attn.q_norm, k_norm", "RMSNorm"},
    {"rope", "self_attn.rotary_emb", "RotaryEmbedding"},
    {"attention", "self_attn.attn", "RadixAttention"},
    {"attn_output", "self_attn.o_proj", "RowParallelLinear"},
    {"ffn_norm", "post_attention_layernorm", "RMSNorm"},
    {"ffn_up", "mlp.gate_up_proj", "MergedColumnParallelLinear"},
    {"activation", "mlp.act_fn", "SiluAndMul"},
    {"ffn_down", "mlp.down_proj", "RowParallelLinear"},
    {"final_norm", "norm", "RMSNorm"},
    {"lm_head", "logits_processor", "LogitsProcessor"},
    {"sample", "sampler", "Sampler"},
};

typedef struct kernel_row {
    const char *step;
    const step_module *module; /* NULL: a step that such engines have not */
    op_code op;
    int count; /* nodes of the step, one after another */
    int first_node;
    layer_set layers; /* that have the row; none: it is outside of them */
} kernel_row;

typedef struct kernel_rows {
    const program *program;
    kernel_row *rows;
    int n;
} kernel_rows;

static const char *flashinfer_of(const kernel_row *row)
{
    if (strcmp(row->step, "lm_head") == 0 && row->op == OP_LINEAR) return "torch.matmul";
    if (row->op == OP_EMBEDDING && strcmp(row->step, "embedding") != 0) return "x[rows]";
    for (size_t i = 0; i < sizeof flashinfer / sizeof *flashinfer; i++)
        if (flashinfer[i].op == row->op) return flashinfer[i].kernel;
    return "";
}

static const step_module *module_of(const char *step)
{
    for (size_t i = 0; i < sizeof of_steps / sizeof *of_steps; i++)
        if (strcmp(of_steps[i].step, step) == 0) return &of_steps[i];
    return NULL;
}

/* The row of these nodes in a layer before; a new one goes after the rows of its step. */
static kernel_row *find_row(kernel_rows *r, const program_step *step, int node, int count)
{
    const op_code op = r->program->nodes[node].op;
    int at = r->n;
    for (int i = 0; i < r->n; i++) {
        kernel_row *row = &r->rows[i];
        if (strcmp(row->step, step->name) != 0) continue;
        if (row->op == op && row->count == count) return row;
        at = i + 1;
    }
    memmove(&r->rows[at + 1], &r->rows[at], (size_t)(r->n++ - at) * sizeof *r->rows);
    r->rows[at] = (kernel_row){.step = step->name,
                               .module = module_of(step->name),
                               .op = op,
                               .count = count,
                               .first_node = node};
    return &r->rows[at];
}

static void add_step(kernel_rows *r, const program_step *step)
{
    const program *p = r->program;
    const int end = step->first_node + step->n_nodes;
    for (int node = step->first_node, next; node < end; node = next) {
        for (next = node + 1; next < end && p->nodes[next].op == p->nodes[node].op;)
            next++;
        if (program_is_noop(p, node)) continue;
        kernel_row *row = find_row(r, step, node, next - node);
        if (step->layer >= 0) layer_set_add(&row->layers, step->layer);
    }
}

/* The weights of a row's nodes: "q_proj, k_proj, v_proj". */
static void print_weights(const kernel_rows *r, const kernel_row *row, strbuf *out)
{
    const program *p = r->program;
    const char *between = "";
    for (int node = row->first_node; node < row->first_node + row->count; node++) {
        for (int i = 0; i < op_n_tensors(op_get(row->op)); i++) {
            const program_weight *weight = program_weight_of(p, node, i);
            if (!weight || weight->bias) continue;
            const char *stem = module_stem(&p->config, (weight_slot)weight->slot);
            const char *dot = strrchr(stem, '.');
            strbuf_printf(out, "%s%s", between, dot ? dot + 1 : stem);
            between = ", ";
        }
    }
}

/* The variant that this CPU runs for the pass. */
static const char *variant_of(const kernel_rows *r, const kernel_row *row)
{
    op_call call;
    const op_variant *variant = NULL;
    program_sizes sizes = r->program->capacity;
    program_set_phase(&sizes);
    program_bind(r->program, row->first_node, NULL, sizes.of, &call);
    op_select(op_get(row->op), cpu_features(0), &call, &variant);
    return variant ? variant->name : "reference";
}

static void print_layers(const kernel_rows *r, const kernel_row *row, strbuf *out)
{
    const int64_t n = r->program->config.n_layers, count = layer_set_count(&row->layers, n);
    if (count == 0 || count == n) return;
    strbuf_puts(out, count == 1 ? ", layer " : ", layers ");
    layer_set_print(&row->layers, n, out);
}

static void print_row(const kernel_rows *r, const kernel_row *row, bool first, strbuf *out)
{
    strbuf module = {0}, theirs = {0}, ours = {0}, weights = {0};
    const bool in_layers = layer_set_count(&row->layers, r->program->config.n_layers) > 0;
    const step_module *m = row->module;
    if (first && m)
        strbuf_printf(&module, "%s%s: %s", in_layers ? "  " : "", m->name, m->class);
    else if (first)
        strbuf_printf(&module, "%s(%s)", in_layers ? "  " : "", row->step);
    strbuf_puts(&theirs, flashinfer_of(row));
    if (theirs.length) print_layers(r, row, &theirs);
    strbuf_puts(&ours, op_get(row->op)->name);
    print_weights(r, row, &weights);
    if (row->count > 1) strbuf_printf(&ours, " x %d", row->count);
    if (row->count > 1 && weights.length) strbuf_printf(&ours, ": %s", weights.data);
    print_layers(r, row, &ours);
    strbuf_printf(out, "%-50s %-46s %-44s %s\n", strbuf_text(&module), strbuf_text(&theirs),
                  strbuf_text(&ours), variant_of(r, row));
    out->failed |= module.failed || theirs.failed || ours.failed || weights.failed;
    strbuf_free(&weights);
    strbuf_free(&module);
    strbuf_free(&theirs);
    strbuf_free(&ours);
}

static void print_notes(const kernel_rows *r, strbuf *out)
{
    strbuf_puts(
        out, "\nlinear x N is F.linear of one merged weight in engines that join q, k and v, and "
             "gate and up, when they load. quipu leaves the weights where the file has them, "
             "because each output feature is a product of its own and has the same bits either "
             "way; on a GPU the rule `merge` makes one launch of those that lie side by side.\n");
    if (r->program->options.form != PLAN_FLASHINFER)
        strbuf_puts(out, "--plan flashinfer has FlashInfer's kernels one for one.\n");
}

static void print_text(const kernel_rows *r, strbuf *out)
{
    const int64_t n = r->program->config.n_layers;
    const char *before = "";
    bool in_layers = false;
    strbuf_printf(out, "%-50s %-46s %-44s %s\n", "module", "FlashInfer, PyTorch", "quipu",
                  "on this CPU");
    for (int i = 0; i < r->n; i++) {
        const kernel_row *row = &r->rows[i];
        const bool inside = layer_set_count(&row->layers, n) > 0;
        if (inside && !in_layers) strbuf_printf(out, "layers: %lld x DecoderLayer\n", (long long)n);
        in_layers = inside;
        print_row(r, row, strcmp(before, row->step) != 0, out);
        before = row->step;
    }
    print_notes(r, out);
}

static qp_status print_json(const kernel_rows *r, strbuf *out, qp_error *error)
{
    const int64_t n = r->program->config.n_layers;
    cJSON *list = cJSON_CreateArray();
    for (int i = 0; i < r->n; i++) {
        const kernel_row *row = &r->rows[i];
        strbuf weights = {0};
        cJSON *item = cJSON_CreateObject(), *layers = cJSON_AddArrayToObject(item, "layers");
        for (int64_t layer = 0; layer < n; layer++)
            if (layer_set_has(&row->layers, layer))
                cJSON_AddItemToArray(layers, cJSON_CreateNumber((double)layer));
        cJSON_AddStringToObject(item, "step", row->step);
        if (row->module) cJSON_AddStringToObject(item, "module", row->module->name);
        if (row->module) cJSON_AddStringToObject(item, "class", row->module->class);
        cJSON_AddStringToObject(item, "flashinfer", flashinfer_of(row));
        cJSON_AddStringToObject(item, "operator", op_get(row->op)->name);
        cJSON_AddNumberToObject(item, "nodes", row->count);
        print_weights(r, row, &weights);
        cJSON_AddStringToObject(item, "weights", strbuf_text(&weights));
        cJSON_AddStringToObject(item, "variant", variant_of(r, row));
        cJSON_AddItemToArray(list, item);
        strbuf_free(&weights);
    }
    return output_json(list, out, error);
}

qp_status kernels_print(const plan_print_options *o, strbuf *out, qp_error *error)
{
    model *model;
    program p;
    TRY(plan_print_open(o, &model, &p, error));
    kernel_rows r = {.program = &p, .rows = calloc((size_t)p.n_nodes + 1, sizeof *r.rows)};
    qp_status status = r.rows ? QP_OK : error_no_memory(error, "the kernels", (size_t)p.n_nodes);
    for (int i = 0; r.rows && i < p.n_steps; i++)
        add_step(&r, &p.steps[i]);
    if (status == QP_OK && o->json)
        status = print_json(&r, out, error);
    else if (status == QP_OK)
        print_text(&r, out);
    free(r.rows);
    program_free(&p);
    model_close(model);
    return status == QP_OK ? output_done(out, error) : status;
}

qp_status kernels_of_plan(const plan_print_options *o, uint64_t *operators, qp_error *error)
{
    model *model;
    program p;
    TRY(plan_print_open(o, &model, &p, error));
    *operators = 0;
    for (int node = 0; node < p.n_nodes; node++)
        if (!program_is_noop(&p, node)) *operators |= UINT64_C(1) << p.nodes[node].op;
    program_free(&p);
    model_close(model);
    return QP_OK;
}
