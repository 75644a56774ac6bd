/* Sampling settings in a model's files: generation_config.json, config.json, GGUF keys. */
#pragma once

#include "engine/vocabulary.h"
#include "model/model.h"
#include "quipu.h"

typedef struct generation_config {
    double value[QP_SETTING_COUNT];
    bool set[QP_SETTING_COUNT]; /* which values are in the files */
    int32_t stop_tokens[QP_MAX_STOP_TOKENS];
    size_t n_stop_tokens;
} generation_config;

enum { GENERATION_CONFIG_PATH = 4096 };

/* The path of a model's settings, which need not exist: generation_config.json in a folder,
 * MODEL.generation_config.json beside MODEL.gguf. QP_INVALID when the path is too long. */
qp_status generation_config_path(const char *model, char path[GENERATION_CONFIG_PATH],
                                 qp_error *error);

/* Reads a Hugging Face model's generation_config.json, or MODEL.generation_config.json beside
 * MODEL.gguf (do_sample false means temperature 0), and the tokens that end an answer from it, from
 * config.json and from the vocabulary. */
qp_status generation_config_read(const model *model, const qp_vocabulary *vocabulary,
                                 generation_config *out, qp_error *error);
