/* The steps of a pass in mathematical words: see steps_print.h. tests/test_cli_process.py compares
 * the parts that are named here with those of a trace. */
#include "inspect/steps_print.h"

#include "base/output.h"
#include "inspect/modules.h"

#include <string.h>

typedef struct step_part {
    op_code op;
    const char *part, *what;
} step_part;

/* In the order in which an operator's parts run. */
static const step_part parts[] = {
    {OP_EMBEDDING, "Embedding", "x = the table's row of each token"},
    {OP_RMS_NORM, "RMSNorm", "x_ = x / sqrt(mean(x^2) + eps) * weight"},
    {OP_HEAD_NORM, "RMSNorm", "the same norm of each head of Q and K"},
    {OP_LINEAR, "Linear", "rows times the transposed weight, one chunk of features a track"},
    {OP_ROPE, "RoPE", "each pair of elements of Q and K turns by its position's angle"},
    {OP_KV_APPEND, "MemCopy", "K and V of the new tokens into the cache"},
    {OP_PAGED_PREFILL, "Concat", "pages of past K and V put together, for each head"},
    {OP_PAGED_PREFILL, "RepeatKV", "K and V copied for each query head that shares them"},
    {OP_PAGED_PREFILL, "MatMul", "scores = Q K^T"},
    {OP_PAGED_PREFILL, "Mask", "scores of later positions = -inf (prompts)"},
    {OP_PAGED_PREFILL, "ReduceMax", "softmax 1: m = the largest score of each row"},
    {OP_PAGED_PREFILL, "ElementwiseExp", "softmax 2: e = exp((score - m) / sqrt(head_dim))"},
    {OP_PAGED_PREFILL, "Normalize", "softmax 3: p = e / sum(e)"},
    {OP_PAGED_PREFILL, "MatMul", "out = p V"},
    {OP_PAGED_PREFILL, "Concat", "heads put together in rows"},
    {OP_SILU_AND_MUL, "SiLU", "gate / (1 + exp(-gate))"},
    {OP_SILU_AND_MUL, "Mul", "that times up"},
    {OP_SAMPLING, "Sample", "the next token from the logits"},
};

static void print_line(const char *step, const char *what, const char *part, const char *module,
                       strbuf *out)
{
    strbuf_printf(out, "%-15s %-66s %-15s %s", step, what, part, module);
    while (out->length && out->data[out->length - 1] == ' ')
        out->data[--out->length] = '\0';
    strbuf_putc(out, '\n');
}

/* "self_attn.q_proj", of the first weight that is no bias; else nothing. */
static const char *module_of(const program *p, int node)
{
    for (int i = 0; i < op_n_tensors(op_get(p->nodes[node].op)); i++) {
        const program_weight *weight = program_weight_of(p, node, i);
        if (weight && !weight->bias) return module_stem(&p->config, (weight_slot)weight->slot);
    }
    return "";
}

static bool has_operand(const program *p, int node, const char *name)
{
    const op_info *op = op_get(p->nodes[node].op);
    for (int i = 0; i < op_n_tensors(op); i++)
        if (strcmp(op->tensors[i].name, name) == 0) return p->nodes[node].operands[i] != 0;
    return false;
}

/* The parts of one node; *step is the name of the step until it has been printed. */
static void print_node(const program *p, int node, const char **step, strbuf *out)
{
    const op_code op = p->nodes[node].op;
    const bool gathers = op == OP_EMBEDDING && strcmp(module_of(p, node), "") == 0;
    int found = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts && !gathers; i++) {
        if (parts[i].op != op) continue;
        if (strcmp(parts[i].part, "RepeatKV") == 0 && p->config.n_heads == p->config.n_kv_heads)
            continue;
        print_line(*step, parts[i].what, parts[i].part, found++ ? "" : module_of(p, node), out);
        *step = "";
    }
    if (op == OP_LINEAR && has_operand(p, node, "residual"))
        print_line("", "plus the residual", "Add", "", out);
    if (gathers)
        print_line(*step, "the rows whose logits are wanted", "MemCopy", "", out);
    else if (found == 0)
        print_line(*step, op_get(op)->summary, op_get(op)->name, module_of(p, node), out);
    *step = "";
}

static void print_step(const program *p, int index, strbuf *out)
{
    const program_step *step = &p->steps[index];
    const char *name = step->name;
    for (int n = 0; n < step->n_nodes; n++)
        if (!program_is_noop(p, step->first_node + n))
            print_node(p, step->first_node + n, &name, out);
}

qp_status steps_print(const plan_print_options *o, strbuf *out, qp_error *error)
{
    model *model;
    program p;
    TRY(plan_print_open(o, &model, &p, error));
    print_line("step", "what happens mathematically", "operator (op=)", "module", out);
    for (int i = 0; i < p.n_steps; i++) {
        if (p.steps[i].layer > 0) continue;
        if (p.steps[i].layer == 0 && (i == 0 || p.steps[i - 1].layer < 0))
            strbuf_printf(out, "--- each of %lld layers\n", (long long)p.config.n_layers);
        if (p.steps[i].layer < 0 && i > 0 && p.steps[i - 1].layer >= 0)
            strbuf_puts(out, "--- after the layers\n");
        print_step(&p, i, out);
    }
    program_free(&p);
    model_close(model);
    return output_done(out, error);
}
