/* Measures what waits between blocks cost the megakernel: the time of a token with waits, minus
 * that of a kernel whose blocks wait for their weights but not for each other.
 *
 * Usage: tool_waits MODEL CONTEXT [ROUNDS]: the median of ROUNDS (default 9) rounds, each of 128
 * tokens after CONTEXT with waits and then as many without. MODEL has heads of 64, a hidden size of
 * up to 2,048 and weights in BF16, such as synthetic:llama-3.2-1b:BF16.
 */
#include "base/clock.h"
#include "kernels_for_tests.h"

#include <stdio.h>
#include <stdlib.h>

enum { TOKENS = 128, MOST_ROUNDS = 99, VARIANTS = 2 };

/* Without waits data is left incomplete, so each variant has an engine of its own. */
typedef struct variant {
    qp_engine *engine;
    qp_session *session;
    double us[MOST_ROUNDS];
} variant;

static qp_status remove_waits(qp_engine *engine, qp_error *error)
{
    cuda_mega *m = mega_of(engine);
    TRY(check_kernels_for_tests(engine, false, error));
    if (m->quantized)
        return error_set(error, QP_UNSUPPORTED,
                         "the kernel without waits is for weights in BF16, such as "
                         "synthetic:llama-3.2-1b:BF16");
    return find_test_kernel(&engine->device, "mega_no_waits", "mega_64_F16_1_no_waits",
                            cuda_mega_shared_bytes(m), &m->kernel, error);
}

static qp_status open_variant(variant *v, const char *model, size_t context, bool waits,
                              qp_error *error)
{
    qp_engine_options options = {.size = sizeof options,
                                 .model = model,
                                 .device = "cuda",
                                 .exec = "megakernel",
                                 .kv_type = "F16",
                                 .context = (int64_t)context + TOKENS};
    TRY(qp_engine_open(&options, &v->engine, error));
    if (!waits) TRY(remove_waits(v->engine, error));
    TRY(qp_session_open(v->engine, &v->session, error));
    int32_t *tokens = malloc((context + !context) * sizeof *tokens);
    if (!tokens) return error_set(error, QP_NO_MEMORY, "there is no memory for %zu ids", context);
    for (size_t i = 0; i < context; i++)
        tokens[i] = (int32_t)((i * 97 + 5) % 500);
    qp_input input = {.session = v->session, .tokens = tokens, .count = context};
    qp_status status =
        context ? qp_eval(v->engine, &input, 1, NULL, NULL, NULL, error) : (qp_status)QP_OK;
    free(tokens);
    return status;
}

static qp_status time_tokens(variant *v, size_t context, double *us, qp_error *error)
{
    int32_t tokens[TOKENS + 1] = {7};
    qp_session_truncate(v->session, context, NULL);
    uint64_t begin = clock_ns();
    TRY(qp_decode(v->engine, &v->session, 1, TOKENS, tokens, NULL, error));
    *us = (double)(clock_ns() - begin) * 1e-3 / TOKENS;
    return QP_OK;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, compare);
    return (values[(count - 1) / 2] + values[count / 2]) / 2;
}

static qp_status measure(variant *variants, const char *model, size_t context, int rounds,
                         qp_error *error)
{
    double warm;
    for (int i = 0; i < VARIANTS; i++) {
        TRY(open_variant(&variants[i], model, context, i == 0, error));
        TRY(time_tokens(&variants[i], context, &warm, error));
    }
    for (int round = 0; round < rounds; round++)
        for (int i = 0; i < VARIANTS; i++)
            TRY(time_tokens(&variants[i], context, &variants[i].us[round], error));
    double with = median(variants[0].us, rounds), without = median(variants[1].us, rounds);
    printf("%s after %zu tokens: %.1f us a token, %.1f without waits; exposed synchronisation is "
           "%.1f us\n",
           model, context, with, without, with - without);
    return QP_OK;
}

int main(int argc, char **argv)
{
    static variant variants[VARIANTS];
    int rounds = argc == 4 ? atoi(argv[3]) : 9;
    if (argc < 3 || argc > 4 || rounds < 1 || rounds > MOST_ROUNDS) {
        fprintf(stderr, "usage: tool_waits MODEL CONTEXT [ROUNDS]\n");
        return 2;
    }
    qp_error error;
    qp_status status = measure(variants, argv[1], strtoul(argv[2], NULL, 10), rounds, &error);
    if (status != QP_OK) fprintf(stderr, "tool_waits: %s\n", error.message);
    for (int i = 0; i < VARIANTS; i++) {
        qp_session_close(variants[i].session);
        qp_engine_close(variants[i].engine);
    }
    return status != QP_OK;
}
