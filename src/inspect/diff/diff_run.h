/* Two machines, a and b, run one plan over the same tokens; their tensors are compared after every
 * step, in three rounds.
 *
 * 1. Each step is judged alone. Before b runs it, whatever the step reads is copied from a, and
 * what it is going to write is poisoned. The two may differ by as much as the operators' own
 *    tolerances allow their kernels, and not at all where both run the same kernel. Where one
 *    side's kernels round their inputs more coarsely, to 8 bits say, the difference that the
 *    references with the same roundings have is subtracted first.
 * 2. b runs from beginning to end on its own values, and the difference that adds up is reported.
 *    Where all kernels are the same there must be none.
 * 3. b runs each pass at once, without a stop between steps, and must give the bits of round 2.
 * Only this round shows whether b itself keeps the order between steps.
 *
 * If b can only run whole passes (the megakernel), b runs first, and in round 1 a replays each step
 * from b's recorded inputs. Inputs that b does not keep come from a's previous step.
 */
#pragma once

#include "vm/machine.h"

typedef struct diff_request {
    const int32_t *tokens; /* [n_tokens] */
    int64_t n_tokens;
    int64_t singles; /* of these go through the model one by one at the end, as in generation */
    int first, last; /* steps to compare, [first, last): only a runs those before */
    const batch_adapter *adapters; /* [n_adapters]: of all rows */
    int64_t n_adapters;
    const volatile int *cancel; /* may be NULL */
} diff_request;

/* The place where two views differ most, relative to their tolerance. */
typedef struct diff_element {
    int pass;
    char index[64]; /* "[3, 120]" in the view */
    double expected, found, tolerance;
} diff_element;

/* The distance between a view of b and that of a, over all passes. */
typedef struct diff_measure {
    double absolute; /* largest |b - a| of an element */
    double relative; /* largest norm(b - a) / norm(a) */
    double allowed;  /* tolerance of `relative`; 0: none */
    double share;    /* largest share of the tolerance that an element or the norm uses up; >= 0 */
    int64_t elements, wrong;   /* numbers of all elements and of wrong ones */
    diff_element worst, first; /* `first`: the first wrong one */
    bool norm_wrong;           /* the elements are within their tolerances, but their norm is not */
} diff_measure;

/* An output of a node, as it is after its step. */
typedef struct diff_row {
    int step, node, operand;
    bool same_kernel;
    bool rounds;                  /* the same kernel on both sides, or two that round differently */
    diff_measure alone, together; /* step by step from a's inputs; b from beginning to end */
} diff_row;

typedef struct diff_report {
    diff_row *rows; /* in the plan's order */
    int n_rows;
    int n_passes;
    int first_wrong; /* index of a row, in the order of execution; -1: none */
    int first_drift; /* the same, of the rows of equal kernels where `together` is not exact */
    /* The likeliest token by the logits, row by row; b ran on its own values. */
    int64_t logit_rows, same_choice;
    double closest_margin; /* largest lead of a's likeliest token where b chose another */
    double at_once_norm;   /* in round three, the most of logits that other kernels made; 0: equal
                              bits */
    bool at_once_differs;
    char at_once[160]; /* where round three differs */
    bool equal;        /* nothing is wrong in any round */
} diff_report;

/* The plan's capacity holds, in one pass, all tokens except the single ones. diff_report_free() the
 * result, also after a failure. */
qp_status diff_run(const machine_setup *setup, machine *a, machine *b, const diff_request *request,
                   diff_report *report, qp_error *error);
void diff_report_free(diff_report *report);

/* "attn[576:768]": the label of a row. */
const char *diff_row_name(const program *program, const diff_row *row, char *text, size_t size);
