/* Fields that several endpoints read in the same way: see call.h. */
#include "server/call.h"

#include "server/server_state.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SETTING(id) MEMBER(FIELD_SETTING, sampling), .setting = (id)

#define SCHEMA_MIROSTAT "{\"enum\": [0, 2, false, null]}"

static qp_status read_mirostat(void *out, const char *name, const cJSON *value, api_error *error)
{
    const double version = cJSON_IsNumber(value) ? value->valuedouble : cJSON_IsTrue(value);
    if (version != 0 && version != 2)
        return api_refuse(error, 400, name,
                          "\"%s\" may be 0 or 2, found %.17g: its first version is not built", name,
                          version);
    return qp_sampling_set(&((parameters *)out)->sampling, QP_MIROSTAT, version, QP_FROM_REQUEST,
                           &error->error);
}

static qp_status read_breakers(void *out, const char *name, const cJSON *value, api_error *error)
{
    parameters *p = out;
    const cJSON *item;
    size_t n = 0;
    cJSON_ArrayForEach(item, value)
    {
        if (!cJSON_IsString(item) || !*item->valuestring || n == CALL_MOST_STOPS)
            return api_refuse(error, 400, name,
                              "\"%s\" must be an array of %d texts at most, none of them empty",
                              name, CALL_MOST_STOPS);
        p->breakers[n++] = item->valuestring;
    }
    p->has_breakers = true;
    p->sampling.n_dry_breakers = n;
    return QP_OK;
}

const field call_sampling_fields[] = {
    FIELD("temperature", SETTING(QP_TEMPERATURE), .high = 100,
          .help = "0 takes the likeliest token"),
    FIELD("top_p", SETTING(QP_TOP_P), .high = 1,
          .help = "among the likeliest tokens that hold this probability"),
    FIELD("top_k", SETTING(QP_TOP_K), .low = -1, .high = 1 << 30,
          .help = "among the likeliest; 0 or -1: all"),
    FIELD("min_p", SETTING(QP_MIN_P), .high = 1,
          .help = "at least this share of the likeliest token's probability"),
    FIELD("presence_penalty", SETTING(QP_PRESENCE_PENALTY), .low = -100, .high = 100,
          .help = "subtracted once from tokens that the answer holds"),
    FIELD("frequency_penalty", SETTING(QP_FREQUENCY_PENALTY), .low = -100, .high = 100,
          .help = "subtracted for each time that the answer holds a token"),
    FIELD("repetition_penalty", SETTING(QP_REPETITION_PENALTY), .low = 1e-3, .high = 1e3,
          .help = "divides the logits of tokens seen before"),
    FIELD("repeat_penalty", SETTING(QP_REPETITION_PENALTY), .low = 1e-3, .high = 1e3,
          .help = "another name of repetition_penalty"),
    FIELD("repeat_last_n", INTEGER(penalty_window), .low = -1, .high = 1 << 30,
          .help = "0: without the three penalties; -1, or the context's length: they are about all "
                  "tokens, as if it is not given; others only beside no penalty"),
    FIELD("typical_p", SETTING(QP_TYPICAL_P), .high = 1,
          .help = "among tokens of typical information that have this probability; 1: all"),
    FIELD("typical", SETTING(QP_TYPICAL_P), .high = 1, .help = "another name of typical_p"),
    FIELD("top_n_sigma", SETTING(QP_TOP_N_SIGMA), .low = -1, .high = 1e3,
          .help = "logits at most so many standard deviations below the largest; 0 or -1: all"),
    FIELD("nsigma", SETTING(QP_TOP_N_SIGMA), .low = -1, .high = 1e3,
          .help = "another name of top_n_sigma"),
    FIELD("min_keep", SETTING(QP_MIN_KEEP), .high = 1 << 20,
          .help = "tokens that filters leave, if there are any"),
    FIELD("xtc_probability", SETTING(QP_XTC_PROBABILITY), .high = 1,
          .help = "how often the likeliest of several likely tokens are left out"),
    FIELD("xtc_threshold", SETTING(QP_XTC_THRESHOLD), .high = 1,
          .help = "which tokens are likely, for xtc_probability"),
    FIELD("dry_multiplier", SETTING(QP_DRY_MULTIPLIER), .high = 1e3,
          .help = "penalises what goes on with a repetition of n tokens by this * dry_base^(n - "
                  "dry_allowed_length)"),
    FIELD("dry_base", SETTING(QP_DRY_BASE), .high = 1e3, .help = "see dry_multiplier"),
    FIELD("dry_allowed_length", SETTING(QP_DRY_ALLOWED_LENGTH), .high = 1 << 20,
          .help = "shorter repetitions are not penalised"),
    FIELD("dry_penalty_last_n", SETTING(QP_DRY_PENALTY_LAST_N), .low = -1, .high = 1 << 30,
          .help = "repetitions are looked for among the last tokens; -1: all"),
    FIELD("mirostat_tau", SETTING(QP_MIROSTAT_TAU), .high = 100,
          .help = "the surprise of tokens with mirostat, in bits"),
    FIELD("mirostat_eta", SETTING(QP_MIROSTAT_ETA), .high = 1,
          .help = "how quickly mirostat adapts"),
    FIELD("mirostat", READ(JSON_NUMBER | JSON_BOOL, read_mirostat), .schema = SCHEMA_MIROSTAT,
          .help = "2: holds the surprise of tokens, without the filters; 0: off"),
    FIELD("mirostat_mode", READ(JSON_NUMBER | JSON_BOOL, read_mirostat), .schema = SCHEMA_MIROSTAT,
          .help = "another name of mirostat"),
    FIELD("dry_sequence_breakers", READ(JSON_ARRAY, read_breakers), .items = ITEMS_NONEMPTY,
          .help = "texts that no repetition of dry_multiplier goes across"),
    {0}};

qp_status call_read_length(void *out, const char *name, const cJSON *value, api_error *error)
{
    parameters *p = out;
    const double n = value->valuedouble;
    if (!(n >= -2 && n <= 1 << 30) || n != (double)(int)n)
        return api_refuse(error, 400, name,
                          "\"%s\" must be a whole number from 0 to %d, or -1 for as many as fit, "
                          "found %.17g",
                          name, 1 << 30, n);
    p->max_tokens = n < 0 ? -1 : (int64_t)n;
    return QP_OK;
}

/* Tokens that end the answer besides the model's own. */
static qp_status read_stop_tokens(void *out, const char *name, const cJSON *value, api_error *error)
{
    parameters *p = out;
    const cJSON *item;
    cJSON_ArrayForEach(item, value)
    {
        int32_t id;
        if (!call_token_id(item, &id))
            return api_refuse(error, 400, name, "\"%s\" must be an array of token ids", name);
        if (p->sampling.n_stop_tokens == QP_MAX_STOP_TOKENS)
            return api_refuse(
                error, 400, name,
                "\"%s\": an answer ends at %d tokens at most, with those of the model", name,
                QP_MAX_STOP_TOKENS);
        p->sampling.stop_tokens[p->sampling.n_stop_tokens++] = id;
    }
    return QP_OK;
}

static qp_status read_seed(void *out, const char *name, const cJSON *value, api_error *error)
{
    parameters *p = out;
    if (value->valuedouble < 0) { /* other servers have it for a random seed */
        p->sampling.source[QP_SEED] = QP_FROM_NEUTRAL;
        return QP_OK;
    }
    if (qp_sampling_set(&p->sampling, QP_SEED, value->valuedouble, QP_FROM_REQUEST,
                        &error->error) == QP_OK)
        return QP_OK;
    return api_refuse(
        error, 400, name,
        "\"%s\" must be a whole number from 0 to 2^53, or negative for a random one, found "
        "%.17g",
        name, value->valuedouble);
}

static qp_status add_stop(parameters *p, const char *name, const cJSON *value, api_error *error)
{
    if (!cJSON_IsString(value) || !*value->valuestring)
        return api_refuse(
            error, 400, name,
            "\"%s\" must be a text or an array of texts, none of them empty, found %s", name,
            cJSON_IsString(value) ? "an empty one" : json_type_name(value));
    if (p->n_stops == CALL_MOST_STOPS)
        return api_refuse(error, 400, name, "\"%s\" may have %d texts at most", name,
                          CALL_MOST_STOPS);
    p->stops[p->n_stops++] = value->valuestring;
    return QP_OK;
}

qp_status call_read_stop(void *out, const char *name, const cJSON *value, api_error *error)
{
    parameters *p = out;
    p->n_stops = 0;
    if (!cJSON_IsArray(value)) return add_stop(p, name, value, error);
    const cJSON *item;
    cJSON_ArrayForEach(item, value) TRY(add_stop(p, name, item, error));
    return QP_OK;
}

static qp_status add_bias(parameters *p, const char *name, int32_t token, double amount,
                          api_error *error)
{
    if (p->n_biases == CALL_MOST_BIASES)
        return api_refuse(error, 400, name, "\"%s\" may have %d tokens at most", name,
                          CALL_MOST_BIASES);
    p->biases[p->n_biases++] = (qp_logit_bias){token, (float)amount};
    return QP_OK;
}

/* The same for each token of a text. */
static qp_status add_text_bias(parameters *p, const char *name, const qp_vocabulary *vocabulary,
                               const char *text, double amount, api_error *error)
{
    qp_tokens tokens = {0};
    qp_status status =
        qp_tokenize(vocabulary, text, strlen(text), QP_BOS_NEVER, &tokens, &error->error);
    if (status != QP_OK) api_failed(error, status);
    for (size_t i = 0; status == QP_OK && i < tokens.count; i++)
        status = add_bias(p, name, tokens.data[i], amount, error);
    qp_tokens_free(&tokens);
    return status;
}

/* An entry of an object, "50256": -100, or of an array, [50256, -100]. */
static qp_status read_bias(parameters *p, const char *name, const cJSON *item,
                           const qp_vocabulary *vocabulary, api_error *error)
{
    const bool pair = cJSON_IsArray(item);
    const cJSON *bias = pair ? cJSON_GetArrayItem(item, 1) : item, *key = pair ? item->child : NULL;
    const char *text = pair ? cJSON_GetStringValue(key) : item->string;
    char *end = NULL;
    const double number = text ? strtod(text, &end) : cJSON_IsNumber(key) ? key->valuedouble : -1;
    const bool is_id = (!text || (end != text && !*end)) && number >= 0 && number <= INT32_MAX &&
                       number == (double)(int32_t)number;
    const bool off = pair && cJSON_IsFalse(bias);
    const double amount = off ? -1000 : cJSON_IsNumber(bias) ? bias->valuedouble : NAN;
    const bool good = amount >= -1000 && amount <= 1000;
    if (good && is_id) return add_bias(p, name, (int32_t)number, amount, error);
    if (good && text && vocabulary) return add_text_bias(p, name, vocabulary, text, amount, error);
    return api_refuse(error, 400, name,
                      "\"%s\" must have token ids%s as its names and numbers from -1000 to 1000 as "
                      "their values",
                      name, vocabulary ? " or texts" : "");
}

qp_status call_add_biases(parameters *p, const char *name, const cJSON *value,
                          const qp_vocabulary *vocabulary, api_error *error)
{
    const cJSON *item;
    p->n_biases = 0;
    cJSON_ArrayForEach(item, value) TRY(read_bias(p, name, item, vocabulary, error));
    return QP_OK;
}

/* {"50256": -100}, as OpenAI has it, or [[50256, -100], ...], as llama.cpp has it. */
static qp_status read_bias_field(void *out, const char *name, const cJSON *value, api_error *error)
{
    return call_add_biases(out, name, value, NULL, error);
}

const field call_ending_fields[] = {
    FIELD("stop", READ(JSON_STRING | JSON_ARRAY, call_read_stop), .items = ITEMS_NONEMPTY,
          .schema = SCHEMA_TEXT, .help = "texts that end the answer, which does not hold them"),
    FIELD("seed", READ(JSON_NUMBER, read_seed), .schema = SCHEMA_SEED,
          .help = "the same seed gives the same answer; -1, or none: a random one"),
    {0}};

const field call_openai_fields[] = {
    MODEL_FIELD,
    FIELD("stream", BOOLEAN(stream), .help = "send the answer as it is made"),
    FIELD("n", INTEGER(n), .low = 1, .high = REQUEST_MAX_CHOICES, .help = "answers to each prompt"),
    FIELD("return_token_ids", BOOLEAN(token_ids),
          .help = "choices have the ids of their tokens as token_ids (vLLM)"),
    {0}};

const field call_bias_fields[] = {FIELD("logit_bias",
                                        READ(JSON_OBJECT | JSON_ARRAY, read_bias_field),
                                        .help = "added to the logits of tokens"),
                                  {0}};

const field call_vendor_fields[] = {
    FIELD("stop_token_ids", READ(JSON_ARRAY, read_stop_tokens), .items = ITEMS_TOKENS,
          .help = "tokens that end the answer, besides the model's own"),
    FIELD("min_tokens", INTEGER(min_tokens), .high = 1 << 30,
          .help = "tokens before the model may end its answer"),
    FIELD("ignore_eos", BOOLEAN(ignore_eos), .help = "go on when the model ends its answer"),
    FIELD("timeout", NUMBER(timeout), .low = 1e-3, .high = 1e6,
          .help = "seconds after which the answer ends as it is"),
    FIELD("response_format", READ(JSON_OBJECT, form_read_response), .schema = SCHEMA_FORMAT,
          .help = "the form of the answer: of type text, json_object or "
                  "json_schema"),
    FIELD("grammar", READ(JSON_STRING, form_read_grammar),
          .help = "the form of the answer, in llama.cpp's notation"),
    FIELD("json_schema", READ(JSON_STRING | JSON_OBJECT, form_read_schema),
          .help = "the answer is JSON that the schema allows"),
    FIELD("guided_json", READ(JSON_STRING | JSON_OBJECT, form_read_schema),
          .help = "another name of json_schema"),
    FIELD("guided_grammar", READ(JSON_STRING, form_read_grammar),
          .help = "another name of grammar"),
    FIELD("guided_regex", READ(JSON_STRING, form_read_regex),
          .help = "the answer matches this regular expression, all of it"),
    FIELD("regex", READ(JSON_STRING, form_read_regex), .help = "another name of guided_regex"),
    FIELD("guided_choice", READ(JSON_ARRAY, form_read_words), .items = ITEMS_NONEMPTY,
          .least_items = 1, .help = "the answer is one of these texts"),
    FIELD("structured_outputs", READ(JSON_OBJECT, form_read_structured),
          .help = "the form of the answer, as vLLM has it: an object "
                  "with json, json_object, choice, regex or grammar"),
    {0}};

const field call_tool_fields[] = {FIELD("tools", TREE(JSON_ARRAY, tools), .items = ITEMS_OBJECTS,
                                        .help = "functions that the model may call"),
                                  {0}};

const field call_tool_choice_fields[] = {
    FIELD(
        "tool_choice", READ(JSON_STRING | JSON_OBJECT, form_read_tool_choice),
        .schema =
            "{\"anyOf\": [{\"enum\": [\"none\", \"auto\", \"required\", null]}, {\"type\": "
            "\"object\", "
            "\"required\": [\"type\"], \"properties\": {\"type\": {\"enum\": [\"none\", \"auto\", "
            "\"required\", \"function\"]}}}]}",
        .help = "auto, none, required, or the function that must be called"),
    FIELD("parallel_tool_calls", READ(JSON_BOOL, form_read_parallel),
          .help = "false: of a call that is forced there is only one"),
    {0}};

static qp_status read_generation_prompt(void *out, const char *name, const cJSON *value,
                                        api_error *error)
{
    parameters *p = out;
    (void)name, (void)error;
    p->no_generation_prompt = cJSON_IsFalse(value);
    p->generation_prompt = cJSON_IsTrue(value);
    return QP_OK;
}

const field call_message_fields[] = {
    FIELD("messages", TREE(JSON_ARRAY, messages), .required = true, .items = ITEMS_MESSAGES,
          .least_items = 1, .help = "the conversation: objects with a role and a content"),
    {0}};

const field call_template_fields[] = {
    FIELD("add_generation_prompt", READ(JSON_BOOL, read_generation_prompt),
          .help = "false: the conversation does not end with the beginning of an answer"),
    FIELD("continue_final_message", BOOLEAN(continues),
          .help = "the answer continues the last message, which is the assistant's, in place of "
                  "beginning another one"),
    FIELD("chat_template_kwargs", TREE(JSON_OBJECT, template_variables),
          .help = "variables of the model's chat template"),
    {0}};
