/* Qwen 2 and 2.5 of Alibaba, and models built on them (DeepSeek-R1-Distill-Qwen): biases on q, k
 * and v, always. */
#include "model/family/family.h"

const model_family family_qwen2 = {
    .name = "qwen2",
    .gguf = "qwen2",
    .json = {"Qwen2ForCausalLM", "qwen2"},
    .tensors = {FAMILY_LLAMA_TENSORS},
    .biases = {{SLOTS_QKV, NULL, true}},
    .context_length = 32768,
    .n_kv_heads = 32,
    .window = 4096,
    .window_by_switch = true,
    .windowed = WINDOW_LAST,
    .window_by_types = true,
};
