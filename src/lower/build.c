/* Page, rules, memory: see lower.h. */
#include "lower/lower.h"

#include "lower/draft.h"

#include "base/suggest.h"
#include "model/family/family.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct named_rule {
    const char *name;
    lower_when when;
    const rewrite *rule; /* NULL: a launch rule */
    const char *summary; /* of a launch rule */
} named_rule;

static const named_rule rules[] = {
#define RULE(name, when)           {#name, LOWER_##when, &rewrite_##name, NULL},
#define LAUNCH_RULE(name, summary) {#name, LOWER_GPU, NULL, summary},
#include "lower/rules.def"
#undef RULE
#undef LAUNCH_RULE
};
_Static_assert((int)LOWER_RULES <= 32, "a bit each");

/* ---- which rules ---------------------------------------------------------------------------- */

uint32_t lower_rules_of(const plan_options *o)
{
    uint32_t taken = 0;
    for (int i = 0; i < LOWER_RULES && o->form == PLAN_PAGED; i++) {
        const lower_when when = rules[i].when;
        const bool usual = (when == LOWER_CPU && o->target == PLAN_FOR_CPU) ||
                           (when == LOWER_FUSE && (o->fuse || o->sums)) ||
                           (when == LOWER_SUMS && o->sums);
        taken |= (uint32_t)usual << i;
    }
    uint32_t mine = 0;
    for (int i = 0; i < LOWER_RULES; i++)
        mine |= (uint32_t)(rules[i].when != LOWER_GPU) << i;
    return (taken | (o->rules_added & mine)) & ~o->rules_left_out;
}

uint32_t lower_launch_rules(const program *p)
{
    const plan_options *o = &p->options;
    uint32_t taken = 0;
    for (int i = 0, n = p->n_matches; i < LOWER_RULES; i++) {
        if (rules[i].when != LOWER_GPU || o->rules_left_out >> i & 1) continue;
        if (!o->rules_end || ++n < o->rules_end) taken |= UINT32_C(1) << i;
    }
    return taken;
}

const char *lower_rule_name(int rule)
{
    return rules[rule].name;
}

void lower_tell_rule(int rule, int count, strbuf *out)
{
    const char *summary = rules[rule].rule ? rules[rule].rule->summary : rules[rule].summary;
    strbuf_printf(out, "%-13s %4d times: %s\n", rules[rule].name, count, summary);
}

bool lower_fuses(const plan_options *o)
{
    uint32_t fusing = 0;
    for (int i = 0; i < LOWER_RULES; i++)
        fusing |= (uint32_t)(rules[i].when == LOWER_FUSE || rules[i].when == LOWER_SUMS) << i;
    return (lower_rules_of(o) & fusing) != 0;
}

static int find_rule(const char *name, size_t length, suggestion *near)
{
    for (int i = 0; i < LOWER_RULES; i++) {
        suggest_offer(near, rules[i].name);
        if (strlen(rules[i].name) == length && strncmp(rules[i].name, name, length) == 0) return i;
    }
    return -1;
}

static qp_status unknown_rule(const char *name, const suggestion *near, qp_error *error)
{
    strbuf all = {0};
    for (int i = 0; i < LOWER_RULES; i++)
        strbuf_printf(&all, "%s%s", i ? ", " : "", rules[i].name);
    const qp_status status =
        near->best ? error_set(error, QP_INVALID, "there is no rule \"%s\"; did you mean %s?", name,
                               near->best)
                   : error_set(error, QP_INVALID, "there is no rule \"%s\"; there are %s", name,
                               strbuf_text(&all));
    strbuf_free(&all);
    return status;
}

qp_status lower_parse_rules(const char *text, plan_options *o, qp_error *error)
{
    const uint32_t all = UINT32_MAX >> (32 - LOWER_RULES);
    for (const char *at = text; at && *at;) {
        const char sign = *at;
        char name[32];
        const size_t length = strcspn(at, ",");
        if (strspn(at, "0123456789") == length && length > 0 && length < 10) {
            o->rules_end = 1 + atoi(at);
            at += length + (at[length] == ',');
            continue;
        }
        if ((sign != '+' && sign != '-') || length < 2)
            return error_set(error, QP_INVALID,
                             "rules are a list such as +norm_up,-parts, each with + or -, or the "
                             "number of matches to take; found \"%s\"",
                             text);
        snprintf(name, sizeof name, "%.*s", (int)length - 1, at + 1);
        suggestion near = {.word = name};
        const int rule = find_rule(name, strlen(name), &near);
        if (rule < 0 && strcmp(name, "all") != 0) return unknown_rule(name, &near, error);
        const uint32_t bits = rule < 0 ? all : UINT32_C(1) << rule;
        o->rules_added = sign == '+' ? o->rules_added | bits : o->rules_added & ~bits;
        o->rules_left_out = sign == '+' ? o->rules_left_out & ~bits : o->rules_left_out | bits;
        at += length + (at[length] == ',');
    }
    return QP_OK;
}

/* ---- building ------------------------------------------------------------------------------- */

/* The residual is in sums only if all of them apply. */
static qp_status check_sums(const program *p, const strbuf *why, qp_error *error)
{
    if (!p->options.sums || p->tensors[PLAN_SUMS].kind != PLAN_ABSENT) return QP_OK;
    return error_set(error, QP_UNSUPPORTED, "a plan of sums is not possible for this %s model: %s",
                     p->config.family->name,
                     why->length ? strbuf_text((strbuf *)(uintptr_t)why) : "a rule is left out");
}

static qp_status take_rules(plan_builder *draft, strbuf *out, qp_error *error)
{
    const uint32_t taken = lower_rules_of(&draft->program->options);
    strbuf why = {0};
    rewrite_log log = {.out = &why};
    for (int i = 0; i < LOWER_RULES; i++) {
        int count = 0;
        if (!(taken >> i & 1)) continue;
        if (!rewrite_draft(draft, rules[i].name, rules[i].rule, &log, &count))
            return error_no_memory(error, "the plan", (size_t)draft->n_nodes * sizeof(plan_node));
        if (out) lower_tell_rule(i, count, out);
    }
    rewrite_log_end(&log);
    draft_trim_tensors(draft);
    if (out) strbuf_puts(out, strbuf_text(&why));
    const qp_status status = check_sums(draft->program, &why, error);
    strbuf_free(&why);
    return status;
}

static qp_status build(const model_config *config, const model *model, const plan_options *options,
                       program *out, strbuf *explained, qp_error *error)
{
    plan_builder draft = {0};
    qp_status status = plan_draft(config, model, options, out, &draft, error);
    if (status == QP_OK) status = take_rules(&draft, explained, error);
    if (status == QP_OK) status = plan_finish(&draft, model, error);
    free(draft.nodes);
    return status;
}

qp_status lower_build(const model_config *config, const model *model, const plan_options *options,
                      program *out, qp_error *error)
{
    return build(config, model, options, out, NULL, error);
}

qp_status lower_rebuild(const program *of, const plan_options *options, program *out,
                        qp_error *error)
{
    return lower_build(&of->whole, of->model, options, out, error);
}

qp_status lower_explain(const model_config *config, const model *model, const plan_options *options,
                        strbuf *out, qp_error *error)
{
    program p;
    const qp_status status = build(config, model, options, &p, out, error);
    program_free(&p);
    return status;
}

/* ---- the largest context -------------------------------------------------------------------- */

static bool context_fits(const model_config *config, plan_options options, int64_t context,
                         uint64_t weight_bytes, uint64_t available)
{
    program p;
    options.context = context;
    options.n_pages = 0;
    bool fits = lower_build(config, NULL, &options, &p, NULL) == QP_OK &&
                program_count_bytes(&p, weight_bytes).total <= available;
    program_free(&p);
    return fits;
}

int64_t lower_largest_context(const model_config *config, const plan_options *options,
                              uint64_t weight_bytes, uint64_t available)
{
    /* Bisects whole pages, up to the model's own length or the longer one that is asked for, which
     * may end inside a page and is tried first. */
    enum { PADDED_STEP = 16 }; /* a padded sequence has one page, of any size */
    const int64_t step = options->form == PLAN_PADDED ? PADDED_STEP : options->page_size;
    int64_t most = config_usual_context(config);
    if (options->context > most) most = options->context;
    if (context_fits(config, *options, most, weight_bytes, available)) return most;
    int64_t low = 0, high = most / step + 1;
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        bool fits = context_fits(config, *options, middle * step, weight_bytes, available);
        *(fits ? &low : &high) = middle;
    }
    return low * step;
}
