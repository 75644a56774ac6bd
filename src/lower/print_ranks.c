/* What each of several ranks holds: see print_ranks.h. */
#include "lower/print_ranks.h"

#include "lower/lower.h"

#include "plan/weights.h"

#include <stdlib.h>

qp_status plan_ranks_build(const program *p, program **out, qp_error *error)
{
    const int n = p->options.ranks;
    program *ranks = *out = calloc((size_t)n, sizeof *ranks);
    if (!ranks) return error_no_memory(error, "the plans of ranks", (size_t)n * sizeof *ranks);
    for (int i = 0; i < n; i++) {
        plan_options options = p->options;
        options.rank = i;
        TRY(lower_rebuild(p, &options, &ranks[i], error));
    }
    return QP_OK;
}

static const char *cut_name(const program *p)
{
    return p->options.cut == PLAN_REDUCE ? "reduce" : "gather";
}

void plan_ranks_print(const program *ranks, strbuf *out)
{
    strbuf_printf(
        out,
        "\ncut %s\nrank   heads  KV heads  weights, bytes  KV cache, bytes  everything, bytes\n",
        cut_name(ranks));
    for (int i = 0; i < ranks->options.ranks; i++) {
        const program *p = &ranks[i];
        const program_bytes b = program_count_bytes(p, program_weight_bytes(p));
        strbuf_printf(out, "%4d %7lld %9lld %15llu %16llu %18llu\n", i,
                      (long long)p->config.n_heads, (long long)p->config.n_kv_heads,
                      (unsigned long long)b.weights, (unsigned long long)b.kv_cache,
                      (unsigned long long)b.total);
    }
}

void plan_ranks_json(const program *ranks, cJSON *root)
{
    cJSON *list = cJSON_AddArrayToObject(root, "ranks");
    cJSON_AddStringToObject(root, "cut", cut_name(ranks));
    for (int i = 0; i < ranks->options.ranks; i++) {
        const program *p = &ranks[i];
        const program_bytes b = program_count_bytes(p, program_weight_bytes(p));
        cJSON *item = cJSON_CreateObject();
        cJSON_AddNumberToObject(item, "heads", (double)p->config.n_heads);
        cJSON_AddNumberToObject(item, "kv_heads", (double)p->config.n_kv_heads);
        cJSON_AddNumberToObject(item, "weights", (double)b.weights);
        cJSON_AddNumberToObject(item, "kv_cache", (double)b.kv_cache);
        cJSON_AddNumberToObject(item, "total", (double)b.total);
        cJSON_AddItemToArray(list, item);
    }
}

void plan_ranks_free(program *ranks, int n)
{
    for (int i = 0; ranks && i < n; i++)
        program_free(&ranks[i]);
    free(ranks);
}
