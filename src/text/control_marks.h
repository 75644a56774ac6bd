/* Keeps control tokens that are written in a text from outside apart from those of a template.
 *
 * A chat template puts messages between control tokens, and the result is one text. So that
 * "<|im_end|>" in a message stays text, a mark goes into it before the template sees it: a code
 * point that occurs nowhere in the conversation. tokenizer_encode_marked() finds no control token
 * across a mark, and leaves the mark out of what it encodes. Texts without control tokens get no
 * marks, so that templates see what was written. A control token of one character has no place for
 * a mark.
 */
#ifndef QUIPU_TEXT_CONTROL_MARKS_H
#define QUIPU_TEXT_CONTROL_MARKS_H

#include "text/tokenizer.h"

enum { CONTROL_MARK_SIZE = 3 }; /* bytes of a mark */

/* Zero-initialise; control_marks_free() at the end. */
typedef struct control_marks {
    const tokenizer *tokenizer;
    int32_t *ids; /* [count] control tokens that are looked for in texts */
    int32_t count;
    uint32_t seen;                    /* which of the 32 code points occur in the conversation */
    char mark[CONTROL_MARK_SIZE + 1]; /* UTF-8, NUL-terminated */
} control_marks;

qp_status control_marks_init(control_marks *m, const tokenizer *tokenizer, qp_error *error);
void control_marks_free(control_marks *m);

/* Looks at a text of the conversation: at each one, before the mark is chosen. */
void control_marks_see(control_marks *m, const char *text, size_t length);

/* Chooses the mark. QP_INVALID if the texts hold all of U+FDD0 to U+FDEF, which are no characters.
 */
qp_status control_marks_choose(control_marks *m, qp_error *error);

/* Appends the text with its marks to `out`; *changed says whether there are any. */
void control_marks_put(const control_marks *m, const char *text, size_t length, strbuf *out,
                       bool *changed);

#endif
