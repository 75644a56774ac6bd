/* Forms that answers are bound to: what a request's fields ask for, and grammars of recent forms.
 *
 *     fields -> requested_form (what is asked for) -> call_open_form() -> qp_grammar of the
 * requests
 *
 * Grammars of the same text are one, so that its masks are computed once for all requests.
 */
#pragma once

#include "base/json.h"
#include "quipu.h"
#include "server/api_error.h"

#include <pthread.h>

struct call;
struct parameters;

enum {
    FORM_KEPT = 16,  /* grammars that are kept for later requests */
    FORM_FIELD = 64, /* the name of a field, with those that it lies in */
    FORM_REGEX = 64, /* besides the kinds of quipu.h: a regular expression for the whole answer */
};

/* What a request asks for. Pointers go into its body. */
typedef struct requested_form {
    char field[FORM_FIELD]; /* that asks for it; "": none does */
    int kind;               /* a qp_grammar_kind, or FORM_REGEX */
    const cJSON *schema;    /* of QP_GRAMMAR_JSON_SCHEMA, or its text if that is a string */
    const char *grammar;    /* of QP_GRAMMAR_GBNF and FORM_REGEX */
    const cJSON *words;     /* with QP_GRAMMAR_GBNF: the answer is one of these texts */
} requested_form;

/* Which tools an answer must call. */
typedef struct requested_tool {
    char field[FORM_FIELD]; /* that forces a call; "": none does */
    const char *name;       /* of the tool; NULL: any, */
    bool one;               /* and only one call */
} requested_tool;

typedef struct form_kept {
    char *text; /* NULL: free */
    size_t length;
    int kind;
    qp_grammar *grammar;
    uint64_t used;
} form_kept;

typedef struct form_cache {
    pthread_mutex_t lock;
    form_kept kept[FORM_KEPT];
    uint64_t uses;
} form_cache;

void form_cache_open(form_cache *cache);
void form_cache_close(form_cache *cache);

/* Notes that a call of a tool is forced: of any, or of the one that is named. */
void form_force_call(struct parameters *parameters, const char *field, const char *name);

/* Readers of fields into `parameters`. */
qp_status form_read_response(void *parameters, const char *name, const cJSON *value,
                             api_error *error); /* {"type": ...}, as OpenAI has it */
qp_status form_read_ollama(void *parameters, const char *name, const cJSON *value,
                           api_error *error); /* "json", or a schema */
qp_status form_read_schema(void *parameters, const char *name, const cJSON *value,
                           api_error *error);
qp_status form_read_grammar(void *parameters, const char *name, const cJSON *value,
                            api_error *error);
qp_status form_read_regex(void *parameters, const char *name, const cJSON *value, api_error *error);
qp_status form_read_words(void *parameters, const char *name, const cJSON *value, api_error *error);
qp_status form_read_structured(void *parameters, const char *name, const cJSON *value,
                               api_error *error); /* vLLM's object of one of these */
qp_status form_read_tool_choice(void *parameters, const char *name, const cJSON *value,
                                api_error *error); /* as OpenAI has it */

qp_status form_read_parallel(void *parameters, const char *name, const cJSON *value,
                             api_error *error); /* false: one call of a tool at most */

/* The result of opening a call's grammar for a field: 400 with the field for a mistake in it. */
qp_status form_opened(struct call *c, const char *name, qp_status status, api_error *error);

/* Opens the grammar that the call's fields ask for: c->form. Its answers have no calls of tools. */
qp_status call_open_form(struct call *c, api_error *error);

/* The same for calls of tools that are forced: tools as OpenAI has them. tool_form.c */
qp_status call_open_tool_form(struct call *c, const cJSON *tools, api_error *error);
