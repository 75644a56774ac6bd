/* What the suites over the public API share: engines of small models, and logits collected in one
 * array, so that two evaluations of the same tokens can be compared bit for bit.
 */
#pragma once

#include "test.h"

/* On one thread of the CPU, unless the options say otherwise. */
static inline qp_engine *open_engine(qp_engine_options options)
{
    qp_error error;
    qp_engine *engine = NULL;
    options.size = sizeof options;
    if (!options.threads) options.threads = 1;
    if (!options.exec && !options.device && !options.gpus && !options.cuda_kernels)
        options.device = "cpu";
    if (qp_engine_open(&options, &engine, &error) != QP_OK)
        fail_msg("%s: %s", options.model, error.message);
    return engine;
}

static inline qp_session *open_session(qp_engine *engine)
{
    qp_error error;
    qp_session *session = NULL;
    assert_ok(qp_session_open(engine, &session, &error));
    return session;
}

/* Where logits of several inputs go: rows[input] is float32 [tokens][vocab_size]. */
typedef struct logit_sink {
    float *const *rows;
    size_t vocab_size;
} logit_sink;

static inline qp_status take_logits(void *context, size_t input, size_t token, const float *logits)
{
    const logit_sink *sink = context;
    memcpy(sink->rows[input] + token * sink->vocab_size, logits, sink->vocab_size * sizeof *logits);
    return QP_OK;
}

/* Logits after each of `count` further tokens of the session: float32 [count][vocab_size], to
 * free(). */
static inline float *eval_rows(qp_engine *engine, qp_session *session, const int32_t *ids,
                               size_t count)
{
    qp_error error;
    size_t vocab_size = (size_t)qp_engine_get_info(engine)->vocab_size;
    float *rows = calloc(count * vocab_size + 1, sizeof *rows);
    logit_sink sink = {&rows, vocab_size};
    qp_input input = {.session = session, .tokens = ids, .count = count, .every_row = true};
    assert_ok(qp_eval(engine, &input, 1, take_logits, &sink, NULL, &error));
    return rows;
}

/* The same in a session of its own. */
static inline float *eval_fresh(qp_engine *engine, const int32_t *ids, size_t count)
{
    qp_session *session = open_session(engine);
    float *rows = eval_rows(engine, session, ids, count);
    qp_session_close(session);
    return rows;
}

/* The whole file, to free(); NULL when it cannot be read. */
static inline void *read_whole(const char *path, size_t *bytes)
{
    FILE *file = fopen(path, "rb");
    if (!file) return NULL;
    fseek(file, 0, SEEK_END);
    long size = ftell(file);
    rewind(file);
    char *data = malloc((size_t)size + 1);
    assert_int_equal(fread(data, 1, (size_t)size, file), size);
    data[size] = '\0';
    fclose(file);
    *bytes = (size_t)size;
    return data;
}

/* Token ids that look like text: some repeat, all are below `vocab_size`. */
static inline void make_ids(int32_t *ids, size_t count, int64_t vocab_size, uint32_t seed)
{
    for (size_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        ids[i] = (int32_t)((seed >> 8) % (uint32_t)vocab_size);
    }
}

static inline void assert_same_bits(const char *what, const float *got, const float *want,
                                    size_t count)
{
    if (memcmp(got, want, count * sizeof *got) == 0) return;
    for (size_t i = 0; i < count; i++) {
        if (got[i] == want[i]) continue;
        fail_msg("%s: logit %zu is %.9g instead of %.9g", what, i, (double)got[i], (double)want[i]);
    }
    fail_msg("%s: the sign of a zero differs", what);
}
