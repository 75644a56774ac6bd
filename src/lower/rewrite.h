/* What a rule is written with: a pattern of nodes, a sentence where it does not apply, and what
 * takes their place.
 *
 * A pattern begins with a node and goes back along values: each of the other nodes is the one that
 * wrote what an operand of an earlier one reads. A rule sees its match, the tensors and the
 * options, never addresses, batches, or what other rules did. The engine (rewrite.c) finds matches,
 * refuses those whose values others still read, and puts steps in order again.
 */
#pragma once

#include "lower/lower.h"
#include "plan/builder.h"

enum { REWRITE_NODES = 8 };

typedef struct pattern {
    op_code op;
    const char *operand; /* it wrote this operand of the node `from`; or, where that is absent or
                          * has no such operand, of the node that `from` wrote for, and so on. NULL:
                          * the first node */
    int from;
    int nth;       /* 1: not the last one that wrote a part of it, but the one before that */
    bool optional; /* may be absent */
    bool nearest;  /* it is the last such operator before `from`, whatever it writes */
    bool stays;    /* is no part of what is replaced */
} pattern;

typedef struct rewriter rewriter;

/* The nodes of the draft that a pattern found. */
typedef struct match {
    rewriter *of;
    plan_builder *draft;
    int node[REWRITE_NODES]; /* -1: absent */
} match;

typedef struct rewrite {
    const char *summary;
    pattern of[REWRITE_NODES];
    /* Why a match is not replaced, for `plan -v`; "": it is another thing; NULL: it is replaced. */
    const char *(*refuses)(const match *match);
    void (*replace)(match *match);
} rewrite;

#define RULE(name, when) extern const rewrite rewrite_##name;
#define LAUNCH_RULE(name, summary)
#include "lower/rules.def"
#undef RULE
#undef LAUNCH_RULE

/* A matched node, and one of its operands; NULL, or of kind OPERAND_NONE: absent. */
const plan_node *match_node(const match *match, int k);
const plan_operand *match_operand(const match *match, int k, const char *name);

/* Whether node `writer` of the match is the last that wrote the operand of node k. */
bool match_feeds(const match *match, int writer, int k, const char *operand);

/* A node of the same step and layer as node k of the match. */
plan_node match_begin(const match *match, int k, op_code op);
/* Gives it an operand of node k, and all parameters that both operators have. */
void match_take(const match *match, plan_node *to, const char *name, int k, const char *from);
void match_take_params(const match *match, plan_node *to, int k);
/* The operands of paged attention's page table and cache, from node k. */
void match_take_paging(const match *match, plan_node *to, int k);

/* Puts the new node in the place of node k, and removes the other matched nodes but those that
 * stay. */
void match_put(match *match, int k, const plan_node *node);
/* Removes the matched nodes that do not stay. */
void match_remove(match *match);
/* Adds a node after node k. */
void match_add_after(match *match, int k, const plan_node *node);
/* The nodes of node `from`'s step belong to that of node `to`. */
void match_join_steps(match *match, int from, int to);

/* Calls `visit` for each node of the draft after node k, and before node `end` if that is not -1.
 */
typedef void rewrite_visit(void *context, plan_node *node);
void match_visit(const match *match, int k, int end, rewrite_visit *visit, void *context);

/* A tensor of the draft like `like` with another name; its number. */
int match_add_tensor(match *match, const char *name, const plan_tensor *like);
