/* What a machine leaves after its passes, compared between the second and the third round: see
 * diff_runner.h. */
#include "inspect/diff/diff_runner.h"

#include "base/hash.h"
#include "op/linear/linear_sizes.h"
#include "op/linear/linear_stream.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Logits of a pass at once: the most difference in norm, as rounding x to BF16 or to FP8 in one
 * layer makes, or to FP8 in all layers. */
#define MOST_AT_ONCE 0.05
#define MOST_IN_F8   0.2

static uint64_t hash_bytes(const void *data, size_t bytes)
{
    uint64_t hash = bytes, word;
    for (size_t i = 0; i < bytes; i += sizeof word) {
        word = 0;
        memcpy(&word, (const char *)data + i, bytes - i < sizeof word ? bytes - i : sizeof word);
        hash = hash_mix(hash ^ word);
    }
    return hash;
}

/* Stores the hash in round two, and compares with it in round three. */
static void hold(const runner *r, diff_round round, uint64_t *kept, uint64_t now, const char *name,
                 int64_t layer)
{
    diff_report *report = r->report;
    if (round == ROUND_TOGETHER)
        *kept = now;
    else if (*kept != now && !report->at_once_differs) {
        report->at_once_differs = true;
        int used = snprintf(report->at_once, sizeof report->at_once, "%s", name);
        if (layer >= 0)
            snprintf(report->at_once + used, sizeof report->at_once - (size_t)used,
                     " of layer %lld", (long long)layer);
        else
            snprintf(report->at_once + used, sizeof report->at_once - (size_t)used, " in pass %d",
                     r->pass);
    }
}

/* Whether b runs weights in FP8 in chains, which do not round x to FP8; a single step is no chain,
 * and rounds it. */
static bool has_f8_chains(const runner *r)
{
    const machine_copies copies = machine_copies_of(r->b.of);
    return copies.in_f8 && copies.made > 0;
}

/* Whether a GPU runs the norm before a router, its product and route as one launch at once, which
 * adds up in another order than the three one by one. */
static bool routes_at_once(const runner *r, int64_t tokens)
{
    return r->b.of->type->on_gpu && r->program->config.n_experts > 0 && tokens <= LINEAR_FEW_ROWS;
}

/* Whether a GPU runs the pass with other kernels at once: of a long pass its last layer then has
 * only the rows whose logits are wanted, and few rows have other bits than many. */
static bool may_differ_at_once(const runner *r)
{
    if (has_f8_chains(r) || routes_at_once(r, batch_tokens(&r->batch))) return true;
    return r->b.of->type->on_gpu && batch_tokens(&r->batch) > LINEAR_STREAM_MAX_X &&
           batch_outputs(&r->batch) < batch_tokens(&r->batch);
}

/* Keeps the logits in round two; in round three measures how far they are from those. True where
 * they are near enough, so that neither they nor what was chosen by them must have the same bits.
 */
static bool logits_are_near(runner *r, diff_round round)
{
    const size_t bytes = runner_bytes(r, PLAN_LOGITS), n = bytes / sizeof(float);
    const float *now = diff_side_copy(&r->b, PLAN_LOGITS);
    float *kept = r->left_logits[r->pass];
    double difference = 0, norm = 0;
    if (round == ROUND_TOGETHER) {
        kept = r->left_logits[r->pass] = malloc(bytes);
        if (kept) memcpy(kept, now, bytes);
        return false;
    }
    if (!kept || memcmp(kept, now, bytes) == 0) return false;
    for (size_t i = 0; i < n; i++) {
        const double d = (double)now[i] - (double)kept[i];
        difference += d * d;
        norm += (double)kept[i] * (double)kept[i];
    }
    const double found = norm > 0 ? sqrt(difference / norm) : INFINITY;
    if (!(found <= r->report->at_once_norm)) r->report->at_once_norm = found;
    return found <= (has_f8_chains(r) ? MOST_IN_F8 : MOST_AT_ONCE);
}

qp_status runner_hold_tensors(runner *r, diff_round round, qp_error *error)
{
    const program *p = r->program;
    int last = r->request->last - 1;
    bool near = false;
    for (int i = 0; i < p->n_tensors; i++) {
        plan_tensor_id id = (plan_tensor_id)i;
        bool output = p->tensors[id].kind == PLAN_OUTPUT, written = false;
        if (id == PLAN_X_OUT) continue; /* a GPU keeps it only as the logits' product reads it */
        if (!output && p->tensors[id].kind != PLAN_ACTIVATION) continue;
        for (int s = output ? r->request->first : last; s <= last; s++)
            written |= program_step_access(p, s, id).write;
        if (!written) continue;
        TRY(runner_fetch(r, &r->b, id, -1, error));
        uint64_t now = hash_bytes(diff_side_copy(&r->b, id), runner_bytes(r, id));
        if (id == PLAN_LOGITS && may_differ_at_once(r)) near = logits_are_near(r, round);
        if (!near)
            hold(r, round, &r->left[r->pass * p->n_tensors + id], now, p->tensors[id].name, -1);
    }
    return QP_OK;
}

qp_status runner_hold_caches(const runner *r, diff_round round, qp_error *error)
{
    if (has_f8_chains(r) || (r->request->singles > 0 && routes_at_once(r, 1))) return QP_OK;
    for (int64_t layer = 0; layer < r->program->config.n_layers; layer++) {
        for (int i = 0; i < 2; i++) {
            plan_tensor_id id = i ? PLAN_V_CACHE : PLAN_K_CACHE;
            TRY(runner_fetch(r, &r->b, id, layer, error));
            uint64_t now = hash_bytes(diff_side_copy(&r->b, id), r->program->tensors[id].bytes);
            hold(r, round, &r->left_cache[2 * layer + i], now, r->program->tensors[id].name, layer);
        }
    }
    return QP_OK;
}
