/* Unicode's Normalization Form C, which Qwen's tokenizers apply to a text first. A letter and its
 * marks become one character where such a character exists, and marks get a fixed order.
 *
 * Source: Unicode Standard Annex 15; the tables (nfc.def) are those of the version named there.
 */
#pragma once

#include "base/status.h"
#include "base/strbuf.h"

/* Appends the text in Normalization Form C. Invalid UTF-8 bytes are copied, and the text on both
 * sides of them is normalized separately. The only error is QP_NO_MEMORY. */
qp_status nfc_append(const char *text, size_t length, strbuf *out, qp_error *error);
