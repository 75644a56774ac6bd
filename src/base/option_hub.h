/* Where models are cached and fetched from: the environment variables that huggingface_hub reads.
 */
#pragma once

#include <stdbool.h>

typedef struct option_hub {
    char endpoint[1024]; /* HF_ENDPOINT, else "https://huggingface.co"; no slash at its end */
    char cache[4096];    /* HF_HUB_CACHE, else HF_HOME/hub, else ~/.cache/huggingface/hub */
    char token[1024]; /* HF_TOKEN, else what HF_TOKEN_PATH or HF_HOME/token holds; may be empty */
    bool offline;     /* HF_HUB_OFFLINE is 1, ON, YES or TRUE */
} option_hub;

/* False where neither these variables nor HOME say where the cache is. */
bool option_hub_read(option_hub *out);
