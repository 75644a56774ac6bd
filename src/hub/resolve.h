/* Names of models as commands and qp_pull() take them. */
#pragma once

#include "hub/hub.h"

/* The hub that the environment names. The texts are static. */
qp_status hub_of_environment(hub *out, qp_error *error);

/* Reads "OWNER/NAME", with or without "hf:", or a short name: see hub_parse(). */
qp_status hub_parse_name(const char *text, hub_reference *out, qp_error *error);

/* Fetches what hub_resolve() has not found. */
typedef qp_status hub_fetcher(void *context, hub *hub, const hub_reference *reference,
                              char path[HUB_PATH_SIZE], qp_error *error);

/* The path of a model. A short name that is no file, or a name that begins with "hf:", is one of
 * the hub; any name, if `always`. Other names stay as they are, unless there is no such file and
 * another name is near: QP_IO. */
qp_status hub_resolve(const char *model, bool always, hub_fetcher *fetch, void *context,
                      char path[HUB_PATH_SIZE], qp_error *error);
