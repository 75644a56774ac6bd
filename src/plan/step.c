/* Steps by their labels: "embedding", "5.attn_qkv". See plan.h. */
#include "base/suggest.h"
#include "plan/plan.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *program_step_label(const program *p, int step, char *text, size_t size)
{
    const program_step *s = &p->steps[step];
    if (s->layer < 0)
        snprintf(text, size, "%s", s->name);
    else
        snprintf(text, size, "%lld.%s", (long long)s->layer, s->name);
    return text;
}

/* The first step of that name in any layer; -1: there is none. */
static int find_anywhere(const program *p, const char *name)
{
    for (int i = 0; i < p->n_steps; i++) {
        if (strcmp(p->steps[i].name, name) == 0) return i;
    }
    return -1;
}

static qp_status no_such_name(const program *p, const char *text, const char *name, int64_t layer,
                              qp_error *error)
{
    suggestion near = {.word = name};
    for (int i = 0; i < p->n_steps; i++)
        suggest_offer(&near, p->steps[i].name);
    if (!near.best)
        return error_set(error, QP_INVALID,
                         "the plan has no step \"%s\"; `quipu plan` lists them: embedding, "
                         "0.attn_norm and so on",
                         text);
    int found = program_find_step(p, near.best, layer);
    char label[64];
    if (found < 0) found = find_anywhere(p, near.best);
    return error_set(error, QP_INVALID, "the plan has no step \"%s\"; did you mean %s?", text,
                     program_step_label(p, found, label, sizeof label));
}

qp_status program_parse_step(const program *p, const char *text, int *step, qp_error *error)
{
    const char *name = text;
    int64_t layer = -1;
    if (isdigit((unsigned char)*text)) {
        char *end;
        layer = strtoll(text, &end, 10);
        name = *end == '.' ? end + 1 : end;
    }
    *step = program_find_step(p, name, layer);
    if (*step >= 0) return QP_OK;
    int found = find_anywhere(p, name);
    if (found < 0) return no_such_name(p, text, name, layer, error);
    if (p->steps[found].layer < 0)
        return error_set(error, QP_INVALID, "%s stands outside the layers: say %s, found \"%s\"",
                         name, name, text);
    return error_set(error, QP_INVALID,
                     "%s is a step of every layer: say 0.%s to %lld.%s, found \"%s\"", name, name,
                     (long long)p->config.n_layers - 1, name, text);
}
