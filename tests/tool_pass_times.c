/* How long passes take that read tokens of prompts beside sequences that decode.
 *
 *     tool_pass_times MODEL DEVICE KV-TYPE DECODING CONTEXT ROWS[k|m][t]...
 *
 * DECODING sequences have CONTEXT positions and decode a token in each pass; a pass reads ROWS
 * tokens of prompts besides, at most 1,024 of each, after 256 positions. Prints milliseconds of the
 * first pass with that number of rows, and the least and the median of seven further ones. With `k`
 * each token that is decoded has a mask of allowed tokens, which stays the same; with `m` all masks
 * change before each pass, and the time includes handing them over. After `t` a table says what
 * each kind of operator takes. QUIPU_TRACES=NAME writes the launches of these passes as JSON to
 * NAME-ROWS.json.
 */
#include "base/clock.h"
#include "base/hash.h"
#include "quipu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE = 1024, BEFORE = 256, MOST_PROMPTS = 4, MOST = 1024, PASSES = 7, TRACED = 3 };

static qp_engine *engine;
static qp_session *decoding[MOST], *prompts[MOST_PROMPTS];
static qp_sampler *samplers[MOST];
static int32_t *ids, last[MOST];
static size_t n_decoding;
static enum { NO_MASKS, MASKS_KEPT, MASKS_CHANGE } masks;
static uint32_t *mask; /* all tokens but one of the first 32 */
static size_t mask_words;

static void check(qp_status status, const qp_error *error)
{
    if (status == QP_OK) return;
    fprintf(stderr, "%s\n", error->message);
    exit(1);
}

static qp_status on_token(void *context, int32_t token)
{
    *(int32_t *)context = token;
    return QP_CANCELLED;
}

static qp_sequence sequence(qp_session *s, const int32_t *tokens, size_t count)
{
    return (qp_sequence){.size = sizeof(qp_sequence),
                         .session = s,
                         .tokens = tokens,
                         .count = count,
                         .max_tokens = 1,
                         .on_token = on_token};
}

static void read_all(qp_session *s, qp_sampler *sampler, size_t count, int32_t *token)
{
    qp_error error;
    for (size_t read = 0; read < count;) {
        qp_sequence q = sequence(s, ids + read, count - read);
        q.sampler = sampler;
        q.context = token;
        check(qp_step(engine, &q, 1, &error), &error);
        read += q.read;
    }
}

/* Gives each sampler a mask that differs from its last one, or that stays, or none. */
static void set_masks(void)
{
    static uint32_t turn;
    qp_error error;
    if (masks == MASKS_CHANGE) turn++;
    memset(mask, 0xff, mask_words * sizeof *mask);
    mask[0] ^= 1u << turn % 32;
    for (size_t i = 0; i < n_decoding; i++)
        check(qp_sampler_allow(samplers[i], masks == NO_MASKS ? NULL : mask, &error), &error);
}

/* A pass: a token of each decoding sequence, and `rows` of prompts. */
static double step(size_t rows)
{
    qp_error error;
    qp_sequence all[MOST + MOST_PROMPTS];
    size_t n = 0;
    for (; n < n_decoding; n++) {
        all[n] = sequence(decoding[n], &last[n], 1);
        all[n].sampler = samplers[n];
        all[n].context = &last[n];
    }
    for (int i = 0; rows > 0 && i < MOST_PROMPTS; i++) {
        const size_t count = rows < PIECE ? rows : PIECE;
        all[n++] = sequence(prompts[i], ids + BEFORE, count);
        rows -= count;
    }
    const uint64_t begin = clock_ns();
    set_masks();
    check(qp_step(engine, all, n, &error), &error);
    const double ms = (double)(clock_ns() - begin) * 1e-6;
    for (int i = 0; i < MOST_PROMPTS; i++)
        qp_session_truncate(prompts[i], BEFORE, NULL);
    return ms;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print_times(size_t rows)
{
    static const char *const with[] = {"", ", masks stay", ", masks change"};
    double ms[PASSES];
    const double first = step(rows);
    for (int i = 0; i < PASSES; i++)
        ms[i] = step(rows);
    qsort(ms, PASSES, sizeof *ms, by_value);
    printf("%zu decoding%s, %4zu of prompts: first %6.2f least %6.2f median %6.2f ms\n", n_decoding,
           with[masks], rows, first, ms[0], ms[PASSES / 2]);
    fflush(stdout);
}

static void write_launches(const qp_trace *trace, const char *name, size_t rows)
{
    qp_error error;
    char path[1000], *text;
    size_t length;
    snprintf(path, sizeof path, "%s-%zu.json", name, rows);
    FILE *file = fopen(path, "w");
    if (!file) perror(path), exit(1);
    check(qp_trace_print(trace, QP_TRACE_CHROME, &text, &length, &error), &error);
    fwrite(text, 1, length, file);
    fclose(file);
    qp_free(text);
}

static void print_trace(size_t rows)
{
    qp_error error;
    qp_trace *trace;
    char *text;
    size_t length;
    const qp_trace_options options = {.size = sizeof options, .max_passes = TRACED};
    check(qp_trace_open(engine, &options, &trace, &error), &error);
    for (int i = 0; i < TRACED; i++)
        step(rows);
    check(qp_trace_print(trace, QP_TRACE_TABLE, &text, &length, &error), &error);
    printf("%s\n", text);
    qp_free(text);
    if (getenv("QUIPU_TRACES")) write_launches(trace, getenv("QUIPU_TRACES"), rows);
    qp_trace_close(trace);
}

static void open_engine(char **argv)
{
    qp_error error;
    const size_t context = strtoul(argv[5], NULL, 10), longest = context + PIECE + BEFORE;
    const int64_t sessions = (int64_t)n_decoding + MOST_PROMPTS;
    const qp_engine_options options = {.size = sizeof options,
                                       .model = argv[1],
                                       .device = argv[2],
                                       .exec = strcmp(argv[2], "cuda") == 0 ? "cuda" : NULL,
                                       .kv_type = argv[3],
                                       .context = (int64_t)longest,
                                       .max_sessions = sessions,
                                       .max_outputs = sessions};
    qp_sampling likeliest = {.size = sizeof likeliest};
    check(qp_engine_open(&options, &engine, &error), &error);
    mask_words = ((size_t)qp_engine_get_info(engine)->vocab_size + 31) / 32;
    mask = malloc(mask_words * sizeof *mask);
    ids = malloc(longest * sizeof *ids);
    for (size_t i = 0; i < longest; i++)
        ids[i] = (int32_t)(hash_random(7, 1, i) % (uint64_t)qp_engine_get_info(engine)->vocab_size);
    check(qp_sampling_defaults(engine, &likeliest, &error), &error);
    likeliest.value[QP_TEMPERATURE] = 0;
    likeliest.n_stop_tokens = 0;
    for (size_t i = 0; i < n_decoding; i++) {
        check(qp_session_open(engine, &decoding[i], &error), &error);
        check(qp_sampler_open(engine, &likeliest, &samplers[i], &error), &error);
        read_all(decoding[i], samplers[i], context, &last[i]);
    }
    for (int i = 0; i < MOST_PROMPTS; i++) {
        check(qp_session_open(engine, &prompts[i], &error), &error);
        read_all(prompts[i], NULL, BEFORE, NULL);
    }
}

int main(int argc, char **argv)
{
    if (argc < 7) {
        fprintf(stderr, "usage: %s MODEL DEVICE KV-TYPE DECODING CONTEXT ROWS[k|m][t]...\n",
                argv[0]);
        return 2;
    }
    n_decoding = strtoul(argv[4], NULL, 10);
    if (n_decoding > MOST) return 2;
    open_engine(argv);
    for (int i = 6; i < argc; i++) {
        char *end;
        const size_t rows = strtoul(argv[i], &end, 10);
        masks = *end == 'k' ? MASKS_KEPT : *end == 'm' ? MASKS_CHANGE : NO_MASKS;
        end += masks != NO_MASKS;
        print_times(rows);
        if (*end == 't') print_trace(rows);
    }
    return 0; /* the system takes the memory */
}
