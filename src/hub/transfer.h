/* HTTP for the hub, by libcurl: small answers as text, large files written to their place. */
#pragma once

#include "base/strbuf.h"
#include "hub/hub.h"

/* GET of a small answer (at most 64 MiB). *code: the HTTP status; one other than 200 is not a
 * failure here. QP_IO if no answer arrived. */
qp_status transfer_get(const hub *hub, const char *url, strbuf *out, long *code, qp_error *error);

/* Fetches `bytes` bytes of `url` into the file `path`. Uses several connections where it is large,
 * and continues what an earlier call left there (`path`.parts marks the finished pieces). A broken
 * connection is tried again as long as bytes arrive. The content is not checked. */
qp_status transfer_file(const hub *hub, const char *url, const char *path, uint64_t bytes,
                        qp_error *error);

/* The message for an HTTP status about a model. */
qp_status transfer_refused(const hub *hub, const char *what, long code, qp_error *error);
