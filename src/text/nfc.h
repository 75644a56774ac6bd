/* Unicode's Normalization Form C, which Qwen's tokenizers apply to a text first: a letter and its
 * marks become one character where there is one, and marks stand in one order.
 *
 * Source: Unicode Standard Annex 15; the tables (nfc.def) are those of the version named there.
 */
#ifndef QUIPU_TEXT_NFC_H
#define QUIPU_TEXT_NFC_H

#include "base/status.h"
#include "base/strbuf.h"

/* Appends the text in Normalization Form C. Bytes that are no UTF-8 are copied, and what is on
 * their two sides is normalized separately. QP_NO_MEMORY is the one error. */
qp_status nfc_append(const char *text, size_t length, strbuf *out, qp_error *error);

#endif
