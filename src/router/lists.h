/* What the models are and which of them run, in the forms of the APIs. */
#pragma once

#include "base/json.h"
#include "router/models.h"

/* GET /v1/models: with "status" and "needs" of each, as llama.cpp's server of several models. */
cJSON *list_openai(models *all);

/* An entry of it; NULL: there is no such model. */
cJSON *list_openai_one(models *all, const char *name);

/* GET /api/tags, and GET /api/ps: those that run. */
cJSON *list_ollama_tags(const models *all);
cJSON *list_ollama_ps(models *all);
