/* What the megakernels of one or several ranks make of the same tokens. */
#pragma once

#include "ranks_one_gpu.h"
#include "engine_test.h"
#include "likeliest.h"
#include "ranks_test.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST = 5, MEGA_DECODED = 600 /* beyond what a block attends to by itself */, DRAWN = 150 };

typedef struct mega_answer {
    float *logits; /* [FIRST + 1][vocab_size]: of the first tokens, then after the tokens */
    int32_t tokens[MEGA_DECODED + 1];
    token_list drawn;
    size_t floats;
} mega_answer;

/* Tokens that are sampled with penalties, after one token. */
static inline void draw(qp_engine *e, token_list *out)
{
    static const struct {
        qp_setting setting;
        double value;
    } settings[] = {{QP_TEMPERATURE, 1.5},
                    {QP_TOP_K, 40},
                    {QP_SEED, 7},
                    {QP_REPETITION_PENALTY, 1.1},
                    {QP_FREQUENCY_PENALTY, 0.25}};
    const int32_t prompt = 3;
    qp_sampling sampling = {.size = sizeof sampling};
    assert_ok(qp_sampling_defaults(e, &sampling, &error));
    sampling.n_stop_tokens = 0;
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        assert_ok(qp_sampling_set(&sampling, settings[i].setting, settings[i].value,
                                  QP_FROM_PROGRAM, &error));
    assert_ok(generate_by(e, &sampling, &prompt, 1, DRAWN, 16, out, &error));
    assert_int_equal(out->count, DRAWN);
}

/* All tokens are read by the megakernel, the first ones one at a time. */
static inline mega_answer mega_answer_by(qp_engine_options options)
{
    mega_answer a = {0};
    options.context = 1024;
    qp_engine *e = open_engine(options);
    if (options.gpus) assert_ok(one_gpu_load(e, options.ranks, &error));
    qp_session *session = open_session(e);
    const size_t v = (size_t)qp_engine_get_info(e)->vocab_size;
    a.floats = (FIRST + 1) * v;
    a.logits = malloc(a.floats * sizeof *a.logits);
    for (int i = 0; i <= FIRST; i++) {
        const int32_t id = i < FIRST ? (i * 7 + 3) % 64 : a.tokens[MEGA_DECODED];
        float *row = eval_rows(e, session, &id, 1);
        memcpy(a.logits + (size_t)i * v, row, v * sizeof *row);
        free(row);
        a.tokens[0] = 11;
        if (i == FIRST - 1)
            assert_ok(qp_decode(e, &session, 1, MEGA_DECODED, a.tokens, NULL, &error));
    }
    qp_session_close(session);
    draw(e, &a.drawn);
    qp_engine_close(e);
    return a;
}

static inline void assert_same_answers(const mega_answer *a, const mega_answer *b)
{
    assert_memory_equal(a->logits, b->logits, a->floats * sizeof *a->logits);
    assert_memory_equal(a->tokens, b->tokens, sizeof a->tokens);
    assert_memory_equal(a->drawn.of, b->drawn.of, DRAWN * sizeof *a->drawn.of);
}
