/* The files in which an engine keeps packed weights: what they depend on, and what is said of them.
 */
#include "base/platform.h"
#include "engine/open.h"
#include "engine/page_file.h"

#include <stdio.h>

pack_cache *engine_packed(qp_engine *e, const qp_engine_options *options, pack_cache *out)
{
    enum { USUAL_GIB = 64 };
    if (!options->cache_packed || e->device.context) return NULL;
    *out = (pack_cache){
        .folder = options->cache_packed,
        .most = options->cache_packed_size,
        .key = {hash_random(page_file_model(e), model_stamp(e->model), 0), platform_build_id()}};
    if (!out->most) out->most = (uint64_t)USUAL_GIB << 30;
    return out;
}

void engine_say_packed(const qp_engine *e, const pack_cache *c)
{
    char line[sizeof c->path + sizeof c->save_problem + 128];
    if (!c) return;
    const double gb = (double)c->bytes * 1e-9;
    if (!*c->path && model_get_config(e->model)->adapters.slots)
        engine_say(e, QP_LOG_NOTICE,
                   "packed weights are not kept where a model has LoRA adapters; quipu convert "
                   "--lora writes a model with the adapters in its weights");
    else if (!*c->path)
        engine_say(e, QP_LOG_NOTICE,
                   "packed weights are not kept: no file holds this model's weights as kernels "
                   "read them");
    if (*c->load_problem) {
        snprintf(line, sizeof line, "packed weights: %s %s; they are packed again", c->path,
                 c->load_problem);
        engine_say(e, QP_LOG_WARNING, line);
    }
    if (*c->save_problem) {
        snprintf(line, sizeof line, "packed weights are not kept: %s", c->save_problem);
        engine_say(e, QP_LOG_WARNING, line);
    } else if (c->saved) {
        snprintf(line, sizeof line, "packed weights: %.2f GB kept for the next start in %s", gb,
                 c->path);
        engine_say(e, QP_LOG_NOTICE, line);
    } else if (c->loaded) {
        snprintf(line, sizeof line, "packed weights: %.2f GB mapped from %s", gb, c->path);
        engine_say(e, QP_LOG_INFO, line);
    }
    if (c->removed == 0) return;
    snprintf(line, sizeof line,
             "packed weights: the %d files used longest ago made room within %.1f GB in %s",
             c->removed, (double)c->most * 1e-9, c->folder);
    engine_say(e, QP_LOG_NOTICE, line);
}
