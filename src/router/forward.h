/* A request that is passed on to the process of its model, and the reply, byte for byte. */
#pragma once

#include "router/models.h"
#include "server/http.h"

/* Takes the request over with its reference. The model need not run yet. */
void forward(models *all, const char *name, exchange *x);

/* The error as a reply, in the form of the request's API; releases the exchange. */
void forward_refuse(exchange *x, int status, const char *code, const char *param,
                    const char *message);
