/* Fields of other servers whose meaning quipu does not have: see fields.h.
 *
 * Whatever would change which tokens an answer has, or what a reply holds, stands here once, for
 * all endpoints that make text. Values that ask for nothing are taken, because clients send them.
 */
#include "server/call.h"

#include <stddef.h>

#define ONLY(word, values, why)                                                                    \
    {                                                                                              \
        .name = (word), .type = FIELD_NEUTRAL, .schema = "{\"enum\": [" values ", null]}",         \
        .help = (why)                                                                              \
    }
#define SAMPLING "/openapi.json lists the ways of choosing tokens that there are"
#define FORM     "give json_schema, guided_choice or grammar"

const field call_refused_fields[] = {
    ONLY("dynatemp_range", "0, false", SAMPLING),
    ONLY("dynamic_temperature", "false, 0", SAMPLING),
    ONLY("samplers",
         "[\"penalties\", \"dry\", \"top_n_sigma\", \"top_k\", \"typ_p\", \"top_p\", \"min_p\", "
         "\"xtc\", \"temperature\"], \"edskypmxt\", []",
         "filters are off by their own values, and come in one order"),
    ONLY("sampler_order", "[6, 0, 1, 3, 4, 2, 5]", "filters come in one order"),
    ONLY("moderation", "\"\"", "the server judges no texts"),
    ONLY("tfs_z", "1", SAMPLING),
    ONLY("tfs", "1", SAMPLING),
    ONLY("top_a", "0", SAMPLING),
    ONLY("smoothing_factor", "0", SAMPLING),
    ONLY("epsilon_cutoff", "0", SAMPLING),
    ONLY("eta_cutoff", "0", SAMPLING),
    ONLY("penalty_alpha", "0", SAMPLING),
    ONLY("length_penalty", "1", SAMPLING),
    ONLY("no_repeat_ngram_size", "0", SAMPLING),
    ONLY("encoder_repetition_penalty", "1", SAMPLING),
    ONLY("num_beams", "1", "one answer is drawn token by token, without beams"),
    ONLY("use_beam_search", "false", "one answer is drawn token by token, without beams"),
    ONLY("guidance_scale", "1, 0", "answers have no negative prompt"),
    ONLY("cfg_scale", "1, 0", "answers have no negative prompt"),
    ONLY("negative_prompt", "\"\"", "answers have no negative prompt"),
    ONLY("allowed_token_ids", "[]", "give logit_bias, or a form: guided_choice or grammar"),
    ONLY("bad_words", "[]", "give logit_bias for tokens that are not wanted"),
    ONLY("banned_tokens", "[], \"\"", "give logit_bias for tokens that are not wanted"),
    ONLY("custom_token_bans", "\"\"", "give logit_bias for tokens that are not wanted"),
    ONLY("banned_strings", "[]", "give logit_bias for tokens that are not wanted"),
    ONLY("logits_processors", "[]", "the server runs no code of clients"),
    ONLY("ebnf", "\"\"", FORM),
    ONLY("structural_tag", "\"\"", FORM),
    ONLY("functions", "[]", "give tools, in which a function is {\"type\": \"function\", ...}"),
    ONLY("function_call", "\"auto\", \"none\"", "give tools and tool_choice"),
    ONLY("post_sampling_probs", "false, 0", "log-probabilities are those of the model's logits"),
    ONLY("prompt_logprobs", "false, 0", "give /v1/completions \"echo\" and \"logprobs\""),
    ONLY("include_stop_str_in_output", "false", "an answer ends before its stop text"),
    ONLY("no_stop_trim", "false", "an answer ends before its stop text"),
    ONLY("truncate_prompt_tokens", "-1", "nothing is ever cut"),
    FIELD("lora", TREE(JSON_ARRAY, lora),
          .items = "{\"type\": \"object\", \"required\": [\"id\", \"scale\"]}",
          .help =
              "adapters by their numbers, with scales: GET /lora-adapters lists them (llama.cpp)"),
    FIELD("lora_path", TEXT(adapter), .help = "the name of an adapter (SGLang)"),
    FIELD("adapter_id", TEXT(adapter), .help = "the name of an adapter"),
    ONLY("lora_request", "\"\"", "name the adapter as \"model\""),
    ONLY("images", "[]", "the model reads only text"),
    ONLY("image_data", "[]", "the model reads only text"),
    ONLY("audio", "\"\"", "the model reads and writes only text"),
    ONLY("modalities", "[\"text\"]", "the model writes only text"),
    ONLY("web_search_options", "\"\"", "the server has no tools of its own"),
    ONLY("container", "\"\"", "the server has no tools of its own"),
    ONLY("mcp_servers", "[]", "the server has no tools of its own"),
    ONLY("conversation", "\"\"", "the server keeps no conversations: send all messages"),
    ONLY("template", "\"\"", "the model's own chat template is used"),
    ONLY("chat_template", "\"\"", "the model's own chat template is used"),
    ONLY("context", "[]", "send the conversation as messages or as text"),
    {0}};

const field call_single_fields[] = {
    ONLY("best_of", "1, 0", "each answer is returned: ask for n"),
    ONLY("echo", "false", "/v1/completions has it"),
    ONLY("suffix", "\"\"", "/v1/completions, /infill and /api/generate have it"),
    {0}};

const field call_no_logprobs_fields[] = {
    ONLY("logprobs", "false, 0", "/v1/chat/completions and /v1/completions have it"),
    ONLY("top_logprobs", "0", "/v1/chat/completions and /v1/completions have it"),
    {0}};
