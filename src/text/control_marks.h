/* Distinguishes control tokens that are written in messages from those of a chat template.
 *
 * A chat template puts messages between control tokens, and the result is one text. "<|im_end|>" in
 * a message must stay text, so a mark is inserted into it before the template is rendered: a code
 * point that occurs nowhere in the conversation. tokenizer_encode_marked() finds no control token
 * across a mark and removes the marks. Texts without control tokens get no marks, so that templates
 * see them unchanged. A control token of one character has no room for a mark.
 */
#pragma once

#include "text/tokenizer.h"

enum { CONTROL_MARK_SIZE = 3 }; /* bytes of a mark */

/* Zero-initialise; control_marks_free() at the end. */
typedef struct control_marks {
    const tokenizer *tokenizer;
    int32_t *ids; /* [count] control tokens to search for */
    int32_t count;
    uint32_t seen;                    /* which of the 32 code points occur in the conversation */
    char mark[CONTROL_MARK_SIZE + 1]; /* UTF-8, NUL-terminated */
} control_marks;

qp_status control_marks_init(control_marks *m, const tokenizer *tokenizer, qp_error *error);
void control_marks_free(control_marks *m);

/* Examines a text of the conversation. Call it for each text before the mark is chosen. */
void control_marks_see(control_marks *m, const char *text, size_t length);

/* Chooses the mark. QP_INVALID if the texts hold all of U+FDD0 to U+FDEF, which are noncharacters.
 */
qp_status control_marks_choose(control_marks *m, qp_error *error);

/* Appends the text with its marks to `out`; *changed: whether there are any. */
void control_marks_put(const control_marks *m, const char *text, size_t length, strbuf *out,
                       bool *changed);
