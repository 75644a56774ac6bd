/* Sets of texts: those of a pattern, of lengths, of names. Of several sets an expression is made of
 * the texts that are in some and not in others.
 *
 * Each set is an automaton whose configurations are found as they are needed (stacks.h). A state of
 * their product is a configuration of each, and becomes a rule that leads to other rules by bytes.
 * Strings have their quotes, and the notation in which a JSON printer writes them. */
#pragma once

#include "grammar/json_schema_parts.h"
#include "grammar/stacks.h"

enum { TEXTS_MAX_STATES = 4096, TEXTS_MAX_SETS = 20 };

typedef struct text_set {
    grammar g;
    json_parts parts; /* of g */
    automaton m;
    stacks s;
    bool left_out; /* common texts are not in this set */
} text_set;

/* Begins a set; its expression is made in `parts`, and handed to texts_end(). texts_close() it,
 * also after a failure. */
void texts_begin(text_set *set);
qp_status texts_end(schema_compiler *c, text_set *set, grammar_expr all);
void texts_close(text_set *set);

/* The strings that match a pattern. */
qp_status texts_of_pattern(schema_compiler *c, text_set *set, const char *pattern);

/* Whether the string is in the set. */
bool texts_have(schema_compiler *c, text_set *set, const char *string);

/* Whether two sets have a text in common; true, too, where that takes too long to say. */
bool texts_overlap(schema_compiler *c, text_set *a, text_set *b);

/* The texts that are in all sets but those that are left out. QP_UNSUPPORTED: it takes too many
 * states. */
qp_status texts_common(schema_compiler *c, text_set *const *sets, size_t n, const schema_path *path,
                       grammar_expr *out);
