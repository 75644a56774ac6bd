/* A config.json of a small Llama model, which suites change. */
#pragma once

#include "test.h"

#include <cjson/cJSON.h>

static const char base_config[] =
    "{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_act\":\"silu\",\"hidden_size\":32,"
    "\"intermediate_size\":48,\"num_hidden_layers\":1,\"num_attention_heads\":4,"
    "\"num_key_value_heads\":2,\"vocab_size\":11,\"max_position_embeddings\":64,"
    "\"rms_norm_eps\":1e-5,\"rope_theta\":5000}";

/* The base config with `changes` (an object) laid over it; a null removes the key. */
static inline cJSON *config_with(const char *changes)
{
    cJSON *json = cJSON_Parse(base_config), *over = cJSON_Parse(changes), *item = over->child;
    if (!item && strcmp(changes, "{}") != 0) fail_msg("not an object: %s", changes);
    while (item) {
        cJSON *next = item->next;
        cJSON_DetachItemViaPointer(over, item);
        cJSON_DeleteItemFromObjectCaseSensitive(json, item->string);
        if (cJSON_IsNull(item))
            cJSON_Delete(item);
        else
            cJSON_AddItemToObject(json, item->string, item);
        item = next;
    }
    cJSON_Delete(over);
    return json;
}
