/* Tokens after a prompt that ends within a page, mostly the likeliest ones, for tests and tools of
 * the megakernel. */
#pragma once

#include "engine/engine.h"

enum { PROMPT = 21, MOST_MADE = 1000 };

typedef struct token_list {
    int32_t of[MOST_MADE];
    int count;
} token_list;

static inline qp_status keep_token(void *context, int32_t token, const char *text, size_t length)
{
    token_list *list = context;
    (void)text, (void)length;
    if (token >= 0 && list->count < MOST_MADE) list->of[list->count++] = token;
    return QP_OK;
}

static inline void make_prompt(int32_t prompt[PROMPT])
{
    for (int i = 0; i < PROMPT; i++)
        prompt[i] = (i * 97 + 5) % 500;
}

/* `count` tokens after a prompt as `sampling` chooses them, at most MOST_MADE, `interval` per
 * launch. */
static inline qp_status generate_by(qp_engine *engine, const qp_sampling *sampling,
                                    const int32_t *prompt, size_t n_prompt, int64_t count,
                                    int64_t interval, token_list *out, qp_error *error)
{
    qp_session *session;
    TRY(qp_session_open(engine, &session, error));
    out->count = 0;
    qp_generate_options options = {.size = sizeof options,
                                   .prompt = prompt,
                                   .n_prompt = n_prompt,
                                   .sampling = sampling,
                                   .max_tokens = count,
                                   .eos_interval = interval,
                                   .on_token = keep_token,
                                   .context = out};
    qp_status status = qp_generate(session, &options, NULL, error);
    qp_session_close(session);
    return status;
}

/* The likeliest. */
static inline qp_status generate(qp_engine *engine, int64_t count, int64_t interval,
                                 token_list *out, qp_error *error)
{
    int32_t prompt[PROMPT];
    qp_sampling sampling = {.size = sizeof sampling};
    make_prompt(prompt);
    TRY(qp_sampling_defaults(engine, &sampling, error));
    sampling.n_stop_tokens = 0;
    TRY(qp_sampling_set(&sampling, QP_TEMPERATURE, 0, QP_FROM_PROGRAM, error));
    return generate_by(engine, &sampling, prompt, PROMPT, count, interval, out, error);
}
