/* A model's vocabulary: its tokenizer and its chat template. */
#ifndef QUIPU_ENGINE_VOCABULARY_H
#define QUIPU_ENGINE_VOCABULARY_H

#include "model/model.h"
#include "quipu.h"
#include "template/template.h"
#include "text/tokenizer.h"

struct qp_vocabulary {
    tokenizer *tokenizer;
    char *template_source;   /* NULL: the model has none */
    template *template;      /* NULL: there is none, or it does not compile */
    qp_error template_error; /* the error of compiling it, for callers that render */
};

/* The vocabulary of an open model; *out is NULL for one without (synthetic weights). */
qp_status vocabulary_open_beside(const model *model, qp_vocabulary **out, qp_error *error);

/* The error for a model without a vocabulary. */
qp_status vocabulary_missing(qp_error *error);

/* The tokenizer's flags for those of qp_tokenize(). */
unsigned vocabulary_encode_flags(const tokenizer *tokenizer, unsigned flags);

#endif
