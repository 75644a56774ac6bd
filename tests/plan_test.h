/* What the suites of plans share: a cell of the table of lifetimes as text. */
#ifndef QUIPU_TESTS_PLAN_TEST_H
#define QUIPU_TESTS_PLAN_TEST_H

#include "test.h"

#include "plan/lifetime.h"
#include "plan/plan.h"

static inline const char *cell_text(const plan_cell *cell, char text[8])
{
    char *at = text;
    if (cell->created) *at++ = '+';
    if (cell->mapped) *at++ = 'm';
    if (cell->kept) *at++ = 'o';
    if (cell->read) *at++ = 'r';
    if (cell->written) *at++ = 'w';
    if (cell->destroyed) *at++ = 'x';
    *at = '\0';
    return text;
}

static inline bool in_arena(const program *p, int id)
{
    return p->tensors[id].kind == PLAN_ACTIVATION || p->tensors[id].kind == PLAN_OUTPUT;
}

#endif
