/* Building a program, counting its bytes. See plan.h. */
#include "plan/plan.h"

#include "base/checked.h"
#include "model/family/family.h"
#include "plan/builder.h"
#include "plan/lifetime.h"
#include "plan/shard.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

plan_options plan_default_options(const model_config *config)
{
    return (plan_options){.max_tokens = 512,
                          .max_sequences = 1,
                          .max_outputs = 1,
                          .context = config_usual_context(config),
                          .page_size = 16,
                          .kv_type = DTYPE_F16,
                          .act_type = DTYPE_F32,
                          .ranks = 1,
                          .kv_partitions = 1};
}

static qp_status check_range(const char *name, int64_t value, int64_t most, qp_error *error)
{
    if (value >= 1 && value <= most) return QP_OK;
    return error_set(error, QP_INVALID, "%s must be 1 to %lld, found %lld", name, (long long)most,
                     (long long)value);
}

/* Operators of the paged plan take activations in either type; those of other plans, fused ones and
 * exchanges between ranks take float32. */
static qp_status check_act_type(const model_config *c, const plan_options *o, qp_error *error)
{
    const char *excludes = c->n_experts            ? "mixtures of experts"
                           : o->fuse || o->sums    ? "fused operators"
                           : o->ranks > 1          ? "several ranks"
                           : o->form != PLAN_PAGED ? "plans other than paged"
                                                   : NULL;
    if (o->act_type == DTYPE_F32) return QP_OK;
    if (o->act_type != DTYPE_BF16)
        return error_set(error, QP_INVALID, "activations must be F32 or BF16, found %s",
                         dtype_name(o->act_type));
    if (!excludes) return QP_OK;
    return error_set(error, QP_UNSUPPORTED,
                     "activations in BF16 exclude %s: leave one of the two out", excludes);
}

static qp_status check_options(const model_config *c, const plan_options *o, qp_error *error)
{
    TRY(check_range("tokens in a batch", o->max_tokens, 1 << 20, error));
    TRY(check_range("sequences", o->max_sequences, 1 << 16, error));
    TRY(check_range("rows of logits", o->max_outputs, 1 << 20, error));
    TRY(check_range("the context", o->context, 1 << 26, error));
    TRY(check_range("the page size", o->page_size, 1 << 16, error));
    TRY(check_range("ranks", o->ranks, 1 << 10, error));
    TRY(check_range("parts of the KV cache", o->kv_partitions, 1 << 10, error));
    if (o->rank < 0 || o->rank >= o->ranks)
        return error_set(error, QP_INVALID, "rank must be 0 to %d, found %d", o->ranks - 1,
                         o->rank);
    const int64_t pages_each = (o->context + o->page_size - 1) / o->page_size;
    if (o->n_pages != 0 && (o->n_pages < pages_each || o->n_pages > INT32_MAX))
        return error_set(error, QP_INVALID,
                         "the KV cache must have the pages of one context of %lld at least, which "
                         "are %lld, found %lld",
                         (long long)o->context, (long long)pages_each, (long long)o->n_pages);
    if (o->kv_type != DTYPE_F32 && o->kv_type != DTYPE_F16 && o->kv_type != DTYPE_BF16 &&
        o->kv_type != DTYPE_F8)
        return error_set(error, QP_INVALID, "the KV cache must be F32, F16, BF16 or F8, found %s",
                         dtype_name(o->kv_type));
    return check_act_type(c, o, error);
}

static const char *const form_names[PLAN_FORMS] = {"paged", "flashinfer", "padded"};

const char *plan_form_name(plan_form form)
{
    return form_names[form];
}

qp_status plan_form_find(const char *name, plan_form *out, qp_error *error)
{
    for (int form = 0; form < PLAN_FORMS; form++) {
        *out = (plan_form)form;
        if (strcmp(name, form_names[form]) == 0) return QP_OK;
    }
    return error_set(error, QP_INVALID,
                     "the plan must be paged, flashinfer or padded, found \"%s\"", name);
}

/* What the other forms have as a Llama does, and the model has not; NULL: nothing. */
static const char *other_arithmetic(const model_config *c)
{
    const model_scales *s = &c->scales;
    if (c->family->activation != FAMILY_SILU) return "SiLU as its activation";
    if (family_has(c->family, WEIGHT_ATTN_POST_NORM) || !family_has(c->family, WEIGHT_FFN_NORM))
        return "a norm before attention and one before the MLP";
    if (c->rope_local.dim) return "one table of angles";
    if (s->embedding != 0 || s->residual != 0 || s->logits != 0 || s->logits_cap != 0 ||
        s->attention_cap != 0)
        return "no multipliers and no soft caps";
    return NULL;
}

static qp_status check_form(const model_config *c, const plan_options *o, qp_error *error)
{
    enum { LARGEST_PAGE = 1 << 16 };
    if (o->form == PLAN_PAGED) return QP_OK;
    if (o->form == PLAN_PADDED && o->context > LARGEST_PAGE)
        return error_set(error, QP_UNSUPPORTED,
                         "the plan padded keeps each sequence in one page: its context must be at "
                         "most %d positions, found %lld",
                         LARGEST_PAGE, (long long)o->context);
    if (o->form == PLAN_PADDED && layer_set_count(&c->no_rope, c->n_layers))
        return error_set(
            error, QP_UNSUPPORTED,
            "the plan padded rotates q and k in every layer, which this model does not; "
            "choose the plan paged or flashinfer");
    const char *other = other_arithmetic(c);
    if (other)
        return error_set(error, QP_UNSUPPORTED,
                         "the plan %s has %s, which this model computes otherwise; choose the plan "
                         "paged",
                         plan_form_name(o->form), other);
    if (o->fuse || o->sums)
        return error_set(error, QP_UNSUPPORTED,
                         "the plan %s is not fused: leave fuse and sums out, or choose the plan "
                         "paged",
                         plan_form_name(o->form));
    if (o->ranks > 1)
        return error_set(error, QP_UNSUPPORTED,
                         "the plan %s is for a model on one rank, found %d ranks; choose the plan "
                         "paged",
                         plan_form_name(o->form), o->ranks);
    return QP_OK;
}

/* What adapters are not applied in. */
static qp_status check_adapters(const model_config *c, const plan_options *o, qp_error *error)
{
    const char *what = o->ranks > 1               ? "by several ranks: choose one rank"
                       : o->sums                  ? "in a plan of sums: leave sums out"
                       : o->form != PLAN_PAGED    ? "in other plans than paged: choose that one"
                       : o->act_type != DTYPE_F32 ? "to activations in BF16: choose F32"
                                                  : NULL;
    if (c->adapters.n == 0 || !what) return QP_OK;
    return error_set(error, QP_UNSUPPORTED,
                     "LoRA adapters are not applied %s, or merge the adapters into the weights",
                     what);
}

/* What mixtures of experts are not fused for. */
static qp_status check_experts(const model_config *c, const plan_options *o, qp_error *error)
{
    const char *what = o->sums                 ? "a plan of sums: leave sums out"
                       : o->form != PLAN_PAGED ? "other plans than paged: choose the plan paged"
                                               : NULL;
    if (c->n_experts == 0 || !what) return QP_OK;
    return error_set(error, QP_UNSUPPORTED, "a mixture of experts is not made for %s", what);
}

/* Up to its window, sliding attention reads every position. */
static qp_status check_window(const model_config *c, const plan_options *o, qp_error *error)
{
    const char *why = c->windowed_unknown     ? "in layers that quipu does not know"
                      : o->form != PLAN_PAGED ? "which only the plan paged computes"
                                              : NULL;
    if (c->window == 0 || o->context <= c->window || !why) return QP_OK;
    return error_set(error, QP_UNSUPPORTED,
                     "a context of %lld: this model's attention slides over the latest %lld "
                     "positions, %s; choose a context of at most %lld",
                     (long long)o->context, (long long)c->window, why, (long long)c->window);
}

/* Where a norm spans all heads, each KV head is of one rank. */
static qp_status check_ranks(const model_config *c, const plan_options *o, qp_error *error)
{
    if (o->ranks <= c->n_kv_heads || !c->norms_span_heads) return QP_OK;
    return error_set(
        error, QP_UNSUPPORTED,
        "%d ranks: a norm spans all %lld KV heads of this model, of which each rank has "
        "its own; choose at most %lld ranks",
        o->ranks, (long long)c->n_kv_heads, (long long)c->n_kv_heads);
}

bool program_is_other(const program *p)
{
    return other_arithmetic(&p->config) || p->config.scales.attention != 0;
}

const char *program_exchanges_more(const program *p)
{
    const model_config *c = &p->config;
    return c->n_experts          ? "a mixture of experts"
           : c->norms_span_heads ? "a norm that spans the heads of all ranks"
           : family_has(c->family, WEIGHT_ATTN_POST_NORM)
               ? "a norm between a product and the residual"
               : NULL;
}

int64_t program_window(const program *p, int64_t layer)
{
    const model_config *c = &p->config;
    const bool slides = c->window > 0 && p->options.context > c->window;
    return slides && layer_set_has(&c->windowed, layer) ? c->window : 0;
}

int64_t program_any_window(const program *p)
{
    int64_t window = 0;
    for (int64_t layer = 0; layer < p->config.n_layers && !window; layer++)
        window = program_window(p, layer);
    return window;
}

static qp_status check_sums(const plan_options *o, qp_error *error)
{
    if (!o->sums || o->ranks == 1) return QP_OK;
    if (!o->own_sums)
        return error_set(error, QP_UNSUPPORTED,
                         "a plan of sums is for a model on one rank, found %d ranks", o->ranks);
    if (o->cut == PLAN_REDUCE) return QP_OK;
    return error_set(error, QP_UNSUPPORTED,
                     "ranks with a plan of sums add partial sums: take the cut reduce, not gather");
}

/* The sizes as the rank sees them. */
static qp_status take_share(program *p, const model *model, qp_error *error)
{
    TRY(shard_of_rank(&p->whole, model, &p->options, &p->shard, error));
    p->config.n_heads = p->shard.heads.count;
    p->config.n_kv_heads = p->shard.kv_heads.count;
    p->config.intermediate_size = p->shard.intermediate.count;
    return QP_OK;
}

static void count_capacity(program *p)
{
    plan_options *o = &p->options;
    int64_t pages_each = (o->context + o->page_size - 1) / o->page_size;
    if (o->n_pages == 0) o->n_pages = pages_each * o->max_sequences;
    int64_t *of = p->capacity.of;
    of[AXIS_TOKENS] = o->max_tokens;
    of[AXIS_SEQUENCES] = o->max_sequences;
    of[AXIS_SEQUENCE_ENDS] = o->max_sequences + 1;
    of[AXIS_PAGE_REFS] = pages_each * o->max_sequences; /* sequences may share pages */
    of[AXIS_OUTPUTS] = o->max_outputs;
    of[AXIS_WANTED] = o->max_outputs + o->max_tokens;
    of[AXIS_PREFILL_TOKENS] = of[AXIS_DECODE_TOKENS] = o->max_tokens;
    of[AXIS_PREFILL_ENDS] = of[AXIS_DECODE_ENDS] = o->max_sequences + 1;
    of[AXIS_PAST_REFS] = of[AXIS_PAGE_REFS];
    of[AXIS_LONGEST_Q] = o->max_tokens < o->context ? o->max_tokens : o->context;
    of[AXIS_LONGEST_KV] = o->context;
    of[AXIS_PAGES] = o->n_pages;
    /* Dynamic scaling gives every token's angles their own row, by the length of its sequence. */
    of[AXIS_POSITIONS] = program_has_dynamic_rope(p) ? o->max_tokens : o->context;
}

static int64_t dim_size(plan_dim dim, const program_sizes *sizes)
{
    return dim.size < 0 ? sizes->of[-dim.size] : dim.size;
}

static qp_status count_tensor_bytes(program *p, qp_error *error)
{
    for (int id = 0; id < p->n_tensors; id++) {
        plan_tensor *t = &p->tensors[id];
        if (t->kind == PLAN_ABSENT) continue;
        size_t bytes = dtype_block_bytes(t->type);
        for (int d = 0; d < t->rank; d++) {
            if (!checked_mul(bytes, (size_t)dim_size(t->dims[d], &p->capacity), &bytes))
                return error_set(error, QP_NO_MEMORY, "tensor \"%s\" is too large to address",
                                 t->name);
        }
        t->bytes = bytes;
    }
    return QP_OK;
}

qp_status plan_take_layers(model_config *config, int64_t layers, qp_error *error)
{
    if (layers < 0 || layers > config->n_layers)
        return error_set(error, QP_INVALID, "the model has %lld layers, --layers asks for %lld",
                         (long long)config->n_layers, (long long)layers);
    if (layers > 0) config->n_layers = layers;
    return QP_OK;
}

/* The step after the one that writes the logits, and after the one that scales them. */
static int find_logits_end(const program *p)
{
    int i = 0;
    while (i < p->n_steps && !program_step_access(p, i, PLAN_LOGITS).write)
        i++;
    if (i == p->n_steps) return 0;
    const bool scales = p->nodes[p->steps[i + 1].first_node].op == OP_SCALE;
    return i + 1 + scales;
}

qp_status plan_draft(const model_config *config, const model *model, const plan_options *options,
                     program *out, plan_builder *draft, qp_error *error)
{
    *out = (program){.model = model, .whole = *config, .config = *config, .options = *options};
    if (out->options.kv_partitions == 0) out->options.kv_partitions = 1;
    if (out->options.form == PLAN_PADDED) out->options.page_size = out->options.context;
    TRY(check_form(config, &out->options, error));
    TRY(check_adapters(config, &out->options, error));
    TRY(check_experts(config, &out->options, error));
    TRY(check_options(config, &out->options, error));
    TRY(check_window(config, &out->options, error));
    TRY(check_ranks(config, &out->options, error));
    TRY(take_share(out, model, error));
    TRY(check_sums(&out->options, error));
    out->tensors = arena_alloc(&out->memory, PLAN_MAX_TENSORS, sizeof *out->tensors);
    out->n_tensors = PLAN_NAMED;
    if (!out->tensors) return error_no_memory(error, "the plan's tensors", PLAN_MAX_TENSORS);
    count_capacity(out);
    *draft = (plan_builder){.program = out};
    llama_forward(draft);
    return draft->failed
               ? error_no_memory(error, "the plan", (size_t)draft->n_nodes * sizeof *draft->nodes)
               : QP_OK;
}

qp_status plan_finish(const plan_builder *draft, const model *model, qp_error *error)
{
    program *out = draft->program;
    plan_cell *cells;
    TRY(count_tensor_bytes(out, error));
    TRY(program_build(draft, model, out, error));
    out->logits_end = find_logits_end(out);
    TRY(lifetime_compute(out, &cells, error));
    lifetime_place(out, cells);
    free(cells);
    program_place(out);
    program_take_fingerprints(out);
    return program_verify(out, error);
}

void program_free(program *p)
{
    free(p->steps);
    arena_free(&p->memory);
    *p = (program){0};
}

int program_find_step(const program *p, const char *name, int64_t layer)
{
    for (int i = 0; i < p->n_steps; i++) {
        if (p->steps[i].layer == layer && strcmp(p->steps[i].name, name) == 0) return i;
    }
    return -1;
}

program_access program_step_access(const program *p, int step, plan_tensor_id id)
{
    program_access access = {0};
    const program_step *s = &p->steps[step];
    for (int n = s->first_node; n < s->first_node + s->n_nodes; n++) {
        const op_info *op = op_get(p->nodes[n].op);
        bool written = access.write; /* a step may read what it wrote itself */
        for (int i = 0, n_tensors = op_n_tensors(op); i < n_tensors; i++) {
            if (program_tensor_of(p, n, i) != (int)id) continue;
            if (op->tensors[i].direction != OP_OUT && !(written && !access.read))
                access.read = true;
            if (op->tensors[i].direction != OP_IN) access.write = true;
        }
    }
    return access;
}

plan_tensor_id program_rope_table(const program *p, int64_t layer)
{
    const bool local = p->config.rope_local.dim && layer_set_has(&p->config.windowed, layer);
    return local ? PLAN_ROPE_LOCAL : PLAN_ROPE_TABLE;
}

void program_make_angles(const program *p, plan_tensor_id table, int64_t length, int64_t position,
                         int64_t count, float *rows)
{
    const rope_config *rope = table == PLAN_ROPE_LOCAL ? &p->config.rope_local : &p->config.rope;
    assert(rope->dim <= ROPE_MAX_DIM);
    if (rope->scaling == ROPE_LONGROPE) length = p->options.context;
    rope_table_rows(rope, length, position, count, rows);
}

void program_make_tables(const program *p, float *rows)
{
    const int64_t count = p->capacity.of[AXIS_POSITIONS];
    program_make_angles(p, PLAN_ROPE_TABLE, 0, 0, count, rows);
    if (p->config.rope_local.dim)
        program_make_angles(p, PLAN_ROPE_LOCAL, 0, 0, count, rows + count * p->config.rope.dim);
}

program_bytes program_count_bytes(const program *p, uint64_t weight_bytes)
{
    program_bytes bytes = {.weights = weight_bytes, .arena = p->arena_bytes};
    for (int id = 0; id < p->n_tensors; id++) {
        const plan_tensor *t = &p->tensors[id];
        if (t->kind == PLAN_INPUT) bytes.inputs += t->bytes;
        if (t->kind == PLAN_TABLE) bytes.rope_table += t->bytes;
        if (t->kind == PLAN_CARRIED) bytes.sums += t->bytes;
        if (t->kind == PLAN_STATE) bytes.state += t->bytes;
        if (t->kind == PLAN_CACHE) bytes.kv_cache += t->bytes * (uint64_t)p->config.n_layers;
    }
    bytes.total = bytes.weights + bytes.arena + bytes.sums + bytes.kv_cache + bytes.rope_table +
                  bytes.state + bytes.inputs;
    return bytes;
}
