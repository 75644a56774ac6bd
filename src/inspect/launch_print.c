/* Lists of launches as text: see launch_print.h. */
#include "inspect/launch_print.h"

#include "plan/plan.h"
#include "vm/cuda/chain_check.h"

static const char *const forms[] = {
    [LAUNCH_PLAIN] = "plain",
    [LAUNCH_BF16] = "BF16",
    [LAUNCH_BOTH] = "plain and BF16",
    [LAUNCH_ROUNDS] = "plain, rounded to BF16 first",
    [LAUNCH_F8] = "FP8",
    [LAUNCH_Q] = "q as the cache",
};

static void print_node_step(const program *program, int node, strbuf *out)
{
    char label[64];
    strbuf_puts(out, program_step_label(program, program->nodes[node].step, label, sizeof label));
}

/* "3.attn_qkv", or "3.attn_qkv..4.attn_norm". */
static void print_steps(const program *program, const launch_entry *entry, strbuf *out)
{
    const int last = entry->node + entry->n_nodes - 1;
    if (entry->n_nodes == 0) {
        strbuf_puts(out, "likeliest tokens");
        return;
    }
    print_node_step(program, entry->node, out);
    if (program->nodes[entry->node].step == program->nodes[last].step) return;
    strbuf_puts(out, "..");
    print_node_step(program, last, out);
}

/* "cublaslt + silu_and_mul". */
static void print_kernel(const launch_entry *entry, strbuf *out)
{
    strbuf_puts(out, entry->chain ? "chain" : entry->kernel ? entry->kernel->name : "nothing");
    if (entry->epilogue) strbuf_printf(out, " + %s", entry->epilogue);
}

static const linear_chain *chain_of(const launch_list *list, const launch_entry *entry)
{
    return entry->chain ? cuda_recording_argument(&list->recording, entry->record, 0) : NULL;
}

/* ---- text ---------------------------------------------------------------------------------- */

static void print_record(const cuda_record *record, strbuf *out)
{
    const cuda_start *s = &record->start;
    const cuda_product *p = &record->product;
    strbuf_printf(out, "    %s", launch_kernel_name(record));
    if (record->is_product)
        strbuf_printf(out, " n %lld m %lld k %lld%s\n", (long long)p->n, (long long)p->m,
                      (long long)p->k, p->residual ? " + residual" : "");
    else if (record->host)
        strbuf_puts(out, " by its own launcher\n");
    else
        strbuf_printf(out, " grid %u %u %u block %u shared %u cluster %u%s\n", s->grid[0],
                      s->grid[1], s->grid[2], s->threads, s->shared_bytes,
                      s->cluster > 1 ? s->cluster : 1, s->cluster && record->early ? " early" : "");
}

static void print_chain(const program *program, const launch_list *list, const launch_entry *entry,
                        strbuf *out)
{
    const linear_chain *chain = chain_of(list, entry);
    for (int i = 0; chain && i < chain->n_steps; i++) {
        strbuf_printf(out, "      %2d  ", i);
        chain_step_print(&chain->steps[i], out);
        strbuf_puts(out, "  (");
        print_node_step(program, list->step_nodes[entry->step + i], out);
        strbuf_puts(out, ")\n");
    }
}

static void print_entry(const program *program, const launch_list *list, int i, strbuf *out)
{
    const launch_entry *entry = &list->entries[i];
    strbuf_printf(out, "%d  ", i);
    print_steps(program, entry, out);
    strbuf_puts(out, ": ");
    print_kernel(entry, out);
    strbuf_printf(out, ", %s -> %s\n", forms[entry->input], forms[entry->output]);
    for (int r = 0; r < entry->n_records; r++)
        print_record(&list->recording.records[entry->record + r], out);
    print_chain(program, list, entry, out);
}

void launch_list_print(const launch_setting *setting, const launch_list *list, strbuf *out)
{
    for (int i = 0; i < list->n_entries; i++)
        if (list->entries[i].n_records > 0) print_entry(setting->program, list, i, out);
}

/* ---- JSON ---------------------------------------------------------------------------------- */

static cJSON *record_json(const cuda_record *record)
{
    cJSON *o = cJSON_CreateObject();
    const cuda_start *s = &record->start;
    cJSON_AddStringToObject(o, "kernel", launch_kernel_name(record));
    if (record->is_product) {
        cJSON_AddNumberToObject(o, "n", (double)record->product.n);
        cJSON_AddNumberToObject(o, "m", (double)record->product.m);
        cJSON_AddNumberToObject(o, "k", (double)record->product.k);
        cJSON_AddBoolToObject(o, "residual", record->product.residual != 0);
        return o;
    }
    const int grid[] = {(int)s->grid[0], (int)s->grid[1], (int)s->grid[2]};
    cJSON_AddItemToObject(o, "grid", cJSON_CreateIntArray(grid, 3));
    cJSON_AddNumberToObject(o, "block", s->threads);
    cJSON_AddNumberToObject(o, "shared", s->shared_bytes);
    cJSON_AddNumberToObject(o, "cluster", s->cluster > 1 ? s->cluster : 1);
    cJSON_AddBoolToObject(o, "early", s->cluster && record->early);
    return o;
}

static void add_text(cJSON *o, const char *key, strbuf *text)
{
    cJSON_AddStringToObject(o, key, strbuf_text(text));
    strbuf_free(text);
}

static cJSON *chain_json(const program *program, const launch_list *list, const launch_entry *entry)
{
    const linear_chain *chain = chain_of(list, entry);
    cJSON *steps = cJSON_CreateArray();
    for (int i = 0; i < chain->n_steps; i++) {
        cJSON *o = cJSON_CreateObject();
        strbuf step = {0}, text = {0};
        print_node_step(program, list->step_nodes[entry->step + i], &step);
        chain_step_print(&chain->steps[i], &text);
        add_text(o, "step", &step);
        add_text(o, "does", &text);
        cJSON_AddItemToArray(steps, o);
    }
    return steps;
}

static cJSON *entry_json(const program *program, const launch_list *list, const launch_entry *entry)
{
    cJSON *o = cJSON_CreateObject(), *launches;
    strbuf steps = {0}, kernel = {0};
    print_steps(program, entry, &steps);
    print_kernel(entry, &kernel);
    add_text(o, "steps", &steps);
    add_text(o, "kernel", &kernel);
    cJSON_AddStringToObject(o, "input", forms[entry->input]);
    cJSON_AddStringToObject(o, "output", forms[entry->output]);
    launches = cJSON_AddArrayToObject(o, "launches");
    for (int r = 0; r < entry->n_records; r++)
        cJSON_AddItemToArray(launches, record_json(&list->recording.records[entry->record + r]));
    if (entry->chain) cJSON_AddItemToObject(o, "chain", chain_json(program, list, entry));
    return o;
}

cJSON *launch_list_json(const launch_setting *setting, const launch_list *list)
{
    cJSON *entries = cJSON_CreateArray();
    for (int i = 0; i < list->n_entries; i++)
        if (list->entries[i].n_records > 0)
            cJSON_AddItemToArray(entries, entry_json(setting->program, list, &list->entries[i]));
    return entries;
}
