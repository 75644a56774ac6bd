/* Masks of forms, which a thread of their own makes: a mask that takes much work delays its own
 * answer only. What a form knows already is looked up on the caller's thread.
 *
 *     masks_begin -> masks_get: not yet ... the thread makes the mask, calls `made` ... masks_get:
 * the mask a token is chosen -> masks_take -> masks_get ...
 *
 * Of the texts that wait, that one is next which has taken the least work so far.
 */
#pragma once

#include "grammar/matcher.h"

typedef struct mask_maker mask_maker;
typedef struct mask_text mask_text; /* a text that has a form; one thread calls for it */

/* `made` is called on the thread when a mask has been made, or has failed. */
qp_status masks_open(void (*made)(void *context), void *context, mask_maker **out, qp_error *error);

/* After masks_end() of all texts. NULL is allowed. */
void masks_close(mask_maker *maker);

/* A text at its beginning, whose first mask is asked for; arguments as in matcher_open(), all but
 * the maker are copied or held. */
qp_status masks_begin(mask_maker *maker, form *form, const int32_t *stops, size_t n_stops,
                      size_t rows, mask_text **out, qp_error *error);

/* Never waits, also if the text's mask is being made. NULL is allowed. */
void masks_end(mask_text *text);

/* Appends a token that the last mask allows, and asks for the next mask. */
void masks_take(mask_text *text, int32_t token);

/* The mask as of matcher_mask(), or its error; NULL: it is not yet made. */
qp_status masks_get(mask_text *text, const uint32_t **out, qp_error *error);
