/* Makes tokens by the megakernel whose warps sleep at random, and counts those that differ.
 *
 * Usage: tool_delays MODEL TOKENS DELAY: the same 960 greedy tokens again and again until there are
 * TOKENS, each warp sleeping up to DELAY nanoseconds before one entry in sixteen, other ones in
 * every run. MODEL has heads of 64, such as synthetic:tiny:BF16. The exit status is 0 where each
 * token is that of the usual kernel.
 */
#include "base/clock.h"
#include "likeliest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RUN = 960, LAUNCH = 128 };

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
    TRY(generate(engine, RUN, LAUNCH, &expected, error));
    TRY(dawdle(engine, delay, error));
    uint64_t begin = clock_ns();
    int64_t made = 0;
    for (*changed = 0; made < tokens; made += found.count) {
        TRY(generate(engine, RUN, LAUNCH, &found, error));
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
