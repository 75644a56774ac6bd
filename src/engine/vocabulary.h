/* A model's vocabulary: its tokenizer and its chat template. */
#pragma once

#include "engine/chat_template.h"
#include "grammar/matcher.h"
#include "model/model.h"
#include "quipu.h"
#include "text/tokenizer.h"

#include <pthread.h>

/* A trie that is built when a form of an answer first needs it. */
typedef struct shared_trie {
    pthread_mutex_t lock;
    token_trie *trie; /* under `lock`; NULL: not yet built */
} shared_trie;

struct qp_vocabulary {
    tokenizer *tokenizer;
    chat_templates templates;
    shared_trie *trie; /* of the tokens */
};

/* The vocabulary of an open model; *out is NULL for one without (synthetic weights). */
qp_status vocabulary_open_beside(const model *model, qp_vocabulary **out, qp_error *error);

/* The vocabulary of an open model, which a thread reads while the caller opens machines. The caller
 * may read weights meanwhile, but no metadata of the file. */
typedef struct vocabulary_reading {
    const model *model;
    pthread_t thread;
    bool has_thread; /* else vocabulary_end() reads */
    qp_vocabulary *vocabulary;
    qp_status status;
    qp_error error;
} vocabulary_reading;

void vocabulary_begin(const model *model, vocabulary_reading *reading);

/* Every reading that began must end. */
qp_status vocabulary_end(vocabulary_reading *reading, qp_vocabulary **out, qp_error *error);

/* Compiles a grammar, which is taken apart, over the trie of the tokens, which is built for the
 * first caller. Masks that are likely to be needed are computed for up to 20 ms. form_release() the
 * result. */
qp_status vocabulary_open_form(const qp_vocabulary *vocabulary, grammar *grammar, form **out,
                               qp_error *error);

/* Replaces the model's chat templates by one that must compile. */
qp_status vocabulary_set_template(qp_vocabulary *vocabulary, const char *source, size_t length,
                                  qp_error *error);

/* Whether the chat template writes tools, so that the model reads them: a conversation with a tool
 * and the same without it differ. */
bool vocabulary_takes_tools(const qp_vocabulary *vocabulary);

/* Whether there is a chat template for the conversation, or its variables, that can be rendered;
 * else an error that says why not. */
qp_status vocabulary_check_template(const qp_vocabulary *vocabulary, const cJSON *given,
                                    qp_error *error);

/* The error for a model without a vocabulary. */
qp_status vocabulary_missing(qp_error *error);

/* The tokenizer's flags for those of qp_tokenize(). */
unsigned vocabulary_encode_flags(const tokenizer *tokenizer, unsigned flags);
