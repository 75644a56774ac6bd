/* LoRA adapters of an engine: see adapters.h. */
#include "engine/adapters.h"

#include "base/hash.h"

#include <math.h>
#include <string.h>

enum { USUALLY_AT_ONCE = 4 };

static qp_status check_scale(const char *path, double scale, qp_error *error)
{
    if (isfinite(scale) && scale != 0) return QP_OK;
    return error_set(error, QP_INVALID,
                     "%s: the scale of an adapter must be a finite number other than 0, found %g",
                     path, scale);
}

static qp_status choose(const qp_adapter *given, bool merge, adapter_choice *out, qp_error *error)
{
    if (!given->path || !*given->path)
        return error_set(error, QP_INVALID, "an adapter has no path: name its file or directory");
    if (merge && given->waits)
        return error_set(error, QP_INVALID,
                         "%s: an adapter that is added to the weights cannot wait for sessions "
                         "that want it; leave out one of the two",
                         given->path);
    *out = (adapter_choice){given->path, given->scale == 0 ? 1 : given->scale};
    return check_scale(given->path, out->scale, error);
}

qp_status engine_choose_adapters(const qp_engine_options *o, adapter_choice *choices,
                                 adapter_choices *out, engine_adapters *own, qp_error *error)
{
    *out = (adapter_choices){choices, (int64_t)o->n_adapters, o->merge_adapters};
    *own = (engine_adapters){0};
    if (o->n_adapters > ADAPTER_MAX)
        return error_set(error, QP_INVALID, "an engine has at most %d adapters, found %zu",
                         ADAPTER_MAX, o->n_adapters);
    for (size_t i = 0; i < o->n_adapters; i++) {
        TRY(choose(&o->adapters[i], o->merge_adapters, &choices[i], error));
        own->scales[i] = choices[i].scale;
        if (!o->adapters[i].waits && !o->merge_adapters)
            own->begin[own->n_begin++] = (qp_adapter_use){i, choices[i].scale};
    }
    const int64_t n = o->merge_adapters ? 0 : (int64_t)o->n_adapters;
    const int64_t begin = (int64_t)own->n_begin;
    const int64_t usual = begin > USUALLY_AT_ONCE ? begin : USUALLY_AT_ONCE;
    own->at_once = o->adapters_at_once ? o->adapters_at_once : usual < n ? usual : n;
    if (own->at_once >= begin && own->at_once <= ADAPTER_MAX) return QP_OK;
    return error_set(error, QP_INVALID,
                     "adapters of a session at once must be %lld, with which sessions begin, to "
                     "%d, found %lld",
                     (long long)begin, ADAPTER_MAX, (long long)own->at_once);
}

/* Puts an adapter among those with smaller numbers; false: it is there already. */
static bool put_in_order(session_adapters *s, batch_adapter adapter)
{
    int64_t at = s->n;
    for (; at > 0 && s->of[at - 1].adapter >= adapter.adapter; at--)
        if (s->of[at - 1].adapter == adapter.adapter) return false;
    memmove(&s->of[at + 1], &s->of[at], (size_t)(s->n - at) * sizeof *s->of);
    s->of[at] = adapter;
    s->n++;
    return true;
}

static uint64_t key_of(const model *m, const session_adapters *s)
{
    uint64_t key = 0;
    for (int64_t i = 0; i < s->n; i++) {
        uint32_t share;
        memcpy(&share, &s->of[i].share, sizeof share);
        key = hash_random(key, model_get_adapter(m, s->of[i].adapter)->checksum, share);
    }
    return key;
}

qp_status engine_use_adapters(const model *m, const engine_adapters *own,
                              const qp_adapter_use *uses, size_t n, session_adapters *out,
                              qp_error *error)
{
    const size_t there = (size_t)model_get_config(m)->adapters.n;
    session_adapters found = {0};
    if (n > (size_t)own->at_once && there > 0)
        return error_set(error, QP_INVALID,
                         "%zu adapters for a session, and the engine was opened for at most %lld "
                         "at once",
                         n, (long long)own->at_once);
    for (size_t i = 0; i < n; i++) {
        if (uses[i].adapter >= there)
            return error_set(error, QP_INVALID,
                             "there is no adapter %zu: the engine has %zu, numbered from 0 on",
                             uses[i].adapter, there);
        const model_adapter *adapter = model_get_adapter(m, (int64_t)uses[i].adapter);
        TRY(check_scale(adapter->path, uses[i].scale, error));
        const float share = (float)(uses[i].scale * adapter->scaling);
        if (!isfinite(share) || share == 0)
            return error_set(error, QP_INVALID,
                             "%s: a scale of %g times alpha / rank, %g, is no float32 other than 0",
                             adapter->path, uses[i].scale, adapter->scaling);
        if (!put_in_order(&found, (batch_adapter){(int32_t)uses[i].adapter, share}))
            return error_set(error, QP_INVALID, "adapter %zu is named twice for a session",
                             uses[i].adapter);
    }
    found.key = key_of(m, &found);
    *out = found;
    return QP_OK;
}

uint64_t session_adapters_key(const session_adapters *s, uint64_t key)
{
    return s->n ? hash_random(s->key, key, 1) : key;
}
