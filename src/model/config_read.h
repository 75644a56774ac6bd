/* Reads the sizes of a model from what each kind of source says about them, and checks them. */
#pragma once

#include "base/arena.h"
#include "base/json.h"
#include "file/gguf.h"
#include "file/synthetic.h"
#include "model/config.h"
#include "model/family/family.h"

/* From the keys of a GGUF file. Strings live in the arena. */
qp_status config_from_gguf(const gguf *file, arena *arena, model_config *out, qp_error *error);

/* From a Hugging Face config.json; `where` names the file in messages. */
qp_status config_from_json(const cJSON *json, const char *where, arena *arena, model_config *out,
                           qp_error *error);

/* Which layers slide over a window of positions, and which do not rotate q and k. */
qp_status config_read_layers(const cJSON *json, const char *where, model_config *out,
                             qp_error *error);

/* How the heads of q and k turn. The sizes have been read before. */
qp_status config_read_rope(const cJSON *json, const char *where, arena *arena, model_config *out,
                           qp_error *error);

/* Multipliers and caps; those that the family does not compute with are QP_UNSUPPORTED. */
qp_status config_scales_of_json(const cJSON *json, const char *where, model_config *out,
                                qp_error *error);
qp_status config_scales_of_gguf(const gguf *file, model_config *out, qp_error *error);

/* Those of a family's models without such keys. */
model_scales config_usual_scales(const model_config *config);
/* Those of a GGUF file without such keys. */
void config_imply_scales(model_config *config);

/* A key of GGUF, without the architecture before it, and its value. */
typedef struct scale_key {
    const char *name;
    double value;
} scale_key;

/* The keys that GGUF gives the model's scales by, those with an effect; returns how many. */
enum { CONFIG_MAX_SCALES = 8 };
int config_scale_keys(const model_config *config, scale_key keys[CONFIG_MAX_SCALES]);

/* Of config.json's "quantization_config", what matrices in FP8 need; any other kind of weights is
 * QP_UNSUPPORTED. */
qp_status config_read_quantization(const cJSON *json, const char *where, model_config *out,
                                   qp_error *error);

/* The experts of a family that has them: config_experts.c. The GGUF key of their number, 0 without,
 * also tells which family a file is of. */
const char *config_experts_key(const cJSON *json); /* the one of its names that config.json has */
qp_status config_read_experts(const cJSON *json, const char *where, model_config *out,
                              qp_error *error);
qp_status config_gguf_experts(const gguf *file, const char *architecture, int64_t *out,
                              qp_error *error);
qp_status config_read_gguf_experts(const gguf *file, model_config *out, qp_error *error);
qp_status config_check_experts(const model_config *config, const char *where, qp_error *error);

qp_status config_from_synthetic(const synthetic_spec *spec, model_config *out, qp_error *error);

/* The key of a norm's eps in GGUF, without the architecture. */
const char *config_gguf_epsilon(const model_family *family);

/* Where no layer slides none turns otherwise. */
void config_drop_local_rope(model_config *config);

/* Checks every size against sane bounds and the sizes against each other. */
qp_status config_check(const model_config *config, const char *where, qp_error *error);
qp_status config_check_rope(const rope_config *rope, int64_t head_dim, const char *where,
                            qp_error *error);
