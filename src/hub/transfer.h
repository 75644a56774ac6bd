/* HTTP for the hub, by libcurl: a small answer as text, a large file into place. */
#ifndef QUIPU_HUB_TRANSFER_H
#define QUIPU_HUB_TRANSFER_H

#include "base/strbuf.h"
#include "hub/hub.h"

/* GET of a small answer (at most 64 MiB). *code: HTTP's; other answers than 200 are no failure
 * here. QP_IO where no answer came. */
qp_status transfer_get(const hub *hub, const char *url, strbuf *out, long *code, qp_error *error);

/* Fetches `bytes` bytes of `url` into the file `path`, by several connections where it is large,
 * resuming what an earlier call left there (`path`.parts says which pieces are whole). A broken
 * connection is tried again as long as bytes arrive. The content is not checked. */
qp_status transfer_file(const hub *hub, const char *url, const char *path, uint64_t bytes,
                        qp_error *error);

/* The sentence for an HTTP code about a model. */
qp_status transfer_refused(const hub *hub, const char *what, long code, qp_error *error);

#endif
