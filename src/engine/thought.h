/* The thoughts of an answer, token by token: a budget ends them, and a form binds only what follows
 * them.
 *
 * While a thought is ended, the tokens of the closing text are the only ones that may come. A form
 * with thoughts needs marks that are tokens of their own; with other marks no thought is made.
 */
#pragma once

#include "engine/text_stream.h"

enum { THOUGHT_MOST_CLOSING = 32, THOUGHT_LONGEST_MARK = 32 };

/* What comes after thoughts. */
typedef enum thought_end_kind { THOUGHT_TEXT, THOUGHT_FORM, THOUGHT_CALLS } thought_end_kind;

/* Of all answers to a prompt. */
typedef struct thought_rules {
    const tokenizer *tokenizer;
    const thinking_marks *marks; /* NULL: nothing is watched */
    int64_t budget;              /* tokens of thoughts; negative: any number */
    bool open;                   /* the prompt ends inside a thought */
    bool form;                   /* the answer has one */
    const char *close;           /* the mark that ends thoughts */
    int32_t open_token;          /* -1: the mark is a text of several tokens */
    /* A line end, the closing mark, an empty line; in channels the end of a message, and the header
     * of the next. `after`: what follows the mark; `first`: what comes if nothing was written yet.
     */
    int32_t closing[THOUGHT_MOST_CLOSING];
    size_t n_closing, after, first;
} thought_rules;

/* Without a budget and a form, and for a model without marks, nothing is watched. */
qp_status thought_rules_make(const qp_vocabulary *vocabulary, const int32_t *prompt,
                             size_t n_prompt, int64_t budget, thought_end_kind then,
                             thought_rules *out, qp_error *error);

/* Of one answer. */
typedef struct thought_watch {
    bool inside, begun, forcing;
    size_t used; /* tokens of thoughts */
    size_t next; /* of rules.closing, while `forcing` */
    char tail[2 * THOUGHT_LONGEST_MARK];
    size_t n_tail; /* the last bytes of its text */
} thought_watch;

void thought_begin(thought_watch *watch, const thought_rules *rules);

/* Adds a token. true: what may come next follows other rules than before. */
bool thought_take(thought_watch *watch, const thought_rules *rules, int32_t token);

/* The model would end its answer inside a thought: its form must still follow, so the thought is
 * ended first. false: there is no form, or no thought. */
bool thought_end(thought_watch *watch, const thought_rules *rules);

/* The only token that may come next; -1: none is forced. */
int32_t thought_forced(const thought_watch *watch, const thought_rules *rules);

/* Whether the form binds the next token. */
bool thought_is_over(const thought_watch *watch);

/* A token that may come next besides those of the form, because it opens a thought; -1: none. */
int32_t thought_opening(const thought_watch *watch, const thought_rules *rules);

/* How many tokens may follow before a thought must end; SIZE_MAX: any number. */
size_t thought_left(const thought_watch *watch, const thought_rules *rules);
