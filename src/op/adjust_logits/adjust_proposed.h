/* Rows of adjust_logits that read proposed tokens, of which a sequence may have several in a call.
 */
#pragma once

/* In a row's `uses`: the row follows the row before it in the same sequence, and its previous token
 * was only proposed. That token is penalised too, and those of such rows before it, but they are
 * not stored. */
enum { ADJUST_PROPOSED = 16 };

enum { ADJUST_MAX_PROPOSED = 15 }; /* such rows of a sequence */
