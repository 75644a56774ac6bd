/* Makes tokens by the megakernel whose warps sleep at random, and counts those that differ.
 *
 * Usage: tool_delays MODEL TOKENS DELAY: the same 960 greedy tokens again and again until there are
 * TOKENS, each warp sleeping up to DELAY nanoseconds before one entry in sixteen, other ones in
 * every run. MODEL has heads of 64, such as synthetic:tiny:BF16. The exit status is 0 where each
 * token is that of the usual kernel.
 */
#include "base/clock.h"
#include "generate/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PROMPT = 21, RUN = 960, LAUNCH = 128 };

typedef struct token_list {
    int32_t of[RUN];
    int count;
} token_list;

static qp_status keep_token(void *context, int32_t token, const char *text, size_t length)
{
    token_list *list = context;
    (void)text, (void)length;
    if (token >= 0 && list->count < RUN) list->of[list->count++] = token;
    return QP_OK;
}

static qp_status generate(qp_engine *engine, token_list *out, qp_error *error)
{
    int32_t prompt[PROMPT];
    for (int i = 0; i < PROMPT; i++)
        prompt[i] = (i * 97 + 5) % 500;
    qp_session *session;
    qp_sampling sampling;
    TRY(qp_session_open(engine, &session, error));
    qp_sampling_defaults(engine, &sampling);
    sampling.n_stop_tokens = 0;
    out->count = 0;
    qp_generate_options options = {.prompt = prompt,
                                   .n_prompt = PROMPT,
                                   .sampling = &sampling,
                                   .max_tokens = RUN,
                                   .eos_interval = LAUNCH,
                                   .on_token = keep_token,
                                   .context = out};
    qp_status status = qp_sampling_set(&sampling, QP_TEMPERATURE, 0, QP_FROM_COMMAND_LINE, error);
    if (status == QP_OK) status = qp_generate(session, &options, NULL, error);
    qp_session_close(session);
    return status;
}

/* The kernel that dawdles in place of the usual one. */
static qp_status dawdle(qp_engine *engine, uint32_t delay, qp_error *error)
{
    cuda_mega *mega = &engine->mega;
    if (!mega->kernel) return error_set(error, QP_UNSUPPORTED, "%s", mega->why_not);
    mega->arguments.delay = delay;
    return cuda_device_function(&engine->device, mega->quantized ? "mega_bricks" : "mega",
                                mega->quantized ? "mega_64_F16_0_dawdling"
                                                : "mega_64_F16_1_dawdling",
                                cuda_mega_shared_bytes(mega), &mega->kernel, error);
}

static qp_status repeat(qp_engine *engine, int64_t tokens, uint32_t delay, int64_t *changed,
                        qp_error *error)
{
    token_list expected, found;
    TRY(generate(engine, &expected, error));
    TRY(dawdle(engine, delay, error));
    uint64_t begin = clock_ns();
    int64_t made = 0;
    for (*changed = 0; made < tokens; made += found.count) {
        TRY(generate(engine, &found, error));
        for (int i = 0; i < expected.count; i++)
            *changed += i >= found.count || expected.of[i] != found.of[i];
        if (made / 100000 != (made + found.count) / 100000) {
            printf("%lld tokens, %lld changed, %.1f s\n", (long long)(made + found.count),
                   (long long)*changed, (double)(clock_ns() - begin) * 1e-9);
            fflush(stdout);
        }
    }
    return QP_OK;
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        fprintf(stderr, "usage: tool_delays MODEL TOKENS DELAY\n");
        return 2;
    }
    int64_t changed = 0;
    qp_error error;
    qp_engine *engine = NULL;
    qp_engine_options options = {
        .model = argv[1], .device = "cuda", .exec = "mk", .context = PROMPT + RUN};
    qp_status status = qp_engine_open(&options, &engine, &error);
    if (status == QP_OK)
        status = repeat(engine, strtoll(argv[2], NULL, 10), (uint32_t)strtoul(argv[3], NULL, 10),
                        &changed, &error);
    if (status != QP_OK) fprintf(stderr, "tool_delays: %s\n", error.message);
    qp_engine_close(engine);
    return status != QP_OK || changed ? 1 : 0;
}
