/* How much a model thinks, and where its thoughts go: the fields that clients have for it, the
 * variables that chat templates have for it, and the names under which earlier thoughts come back.
 */
#include "server/call.h"

#include <string.h>

/* Tokens of thoughts for a word. Templates that know the word read it, too. */
static const struct {
    const char *word;
    int64_t budget; /* 0: no thoughts; -1: any number */
} efforts[] = {{"none", 0},  {"minimal", 512}, {"low", 2048}, {"medium", 8192},
               {"high", -1}, {"xhigh", -1},    {"max", -1}};
#define EFFORTS "\"none\", \"minimal\", \"low\", \"medium\", \"high\", \"xhigh\", \"max\""

static void set_thinking(parameters *p, bool thinks)
{
    p->think = thinks;
    p->no_think = !thinks;
    if (!thinks) p->thinking_budget = 0;
}

static qp_status read_effort(void *out, const char *name, const cJSON *value, api_error *error)
{
    parameters *p = out;
    const char *word = cJSON_GetStringValue(value);
    for (size_t i = 0; word && i < sizeof efforts / sizeof *efforts; i++) {
        if (strcmp(word, efforts[i].word) != 0) continue;
        p->effort = efforts[i].word;
        p->thinking_budget = efforts[i].budget;
        return set_thinking(p, efforts[i].budget != 0), QP_OK;
    }
    return api_refuse(error, 400, name, "\"%s\" may be " EFFORTS ", found %.40s", name,
                      word ? word : json_type_name(value));
}

/* Ollama's: a truth value or a word. */
static qp_status read_think(void *out, const char *name, const cJSON *value, api_error *error)
{
    if (cJSON_IsString(value)) return read_effort(out, name, value, error);
    return set_thinking(out, cJSON_IsTrue(value)), QP_OK;
}

static qp_status read_budget(void *out, const char *name, const cJSON *value, api_error *error)
{
    parameters *p = out;
    const double n = cJSON_IsNumber(value) ? value->valuedouble : -2;
    if (!(n >= -1 && n <= 1 << 30) || n != (double)(int)n)
        return api_refuse(error, 400, name,
                          "\"%s\" must be a whole number of tokens from 0 to %d, or -1 for any",
                          name, 1 << 30);
    if (n == 0) return set_thinking(p, false), QP_OK;
    p->thinking_budget = (int64_t)n;
    return QP_OK;
}

/* Anthropic's {"type": "enabled", "budget_tokens": N}. */
static qp_status read_thinking(void *out, const char *name, const cJSON *value, api_error *error)
{
    const char *type = cJSON_GetStringValue(json_get(value, "type"));
    const cJSON *budget = json_get(value, "budget_tokens");
    const bool off = type && strcmp(type, "disabled") == 0;
    if (!type || (!off && strcmp(type, "enabled") != 0 && strcmp(type, "adaptive") != 0))
        return api_refuse(error, 400, name,
                          "\"%s\" may be of type enabled, disabled or adaptive, found %.40s", name,
                          type ? type : "none");
    set_thinking(out, !off);
    return budget && !off ? read_budget(out, "thinking.budget_tokens", budget, error) : QP_OK;
}

/* {"effort": word}, as OpenAI's responses have it; OpenRouter has the others, too. */
static qp_status read_reasoning(void *out, const char *name, const cJSON *value, api_error *error)
{
    parameters *p = out;
    const cJSON *effort = json_get(value, "effort"), *budget = json_get(value, "max_tokens");
    (void)name;
    if (effort) TRY(read_effort(out, "reasoning.effort", effort, error));
    if (budget) TRY(read_budget(out, "reasoning.max_tokens", budget, error));
    if (cJSON_IsFalse(json_get(value, "enabled"))) set_thinking(p, false);
    if (cJSON_IsTrue(json_get(value, "enabled")) && !effort) set_thinking(p, true);
    p->no_thoughts = cJSON_IsTrue(json_get(value, "exclude"));
    return QP_OK;
}

static qp_status read_format(void *out, const char *name, const cJSON *value, api_error *error)
{
    parameters *p = out;
    const char *word = value->valuestring;
    p->thoughts_in_text = strcmp(word, "none") == 0;
    if (p->thoughts_in_text || strcmp(word, "auto") == 0 || strcmp(word, "deepseek") == 0)
        return QP_OK;
    return api_refuse(error, 400, name,
                      "\"%s\" may be \"auto\", \"deepseek\" or \"none\", found \"%.40s\"", name,
                      word);
}

/* false: vLLM leaves thoughts out. */
static qp_status read_include(void *out, const char *name, const cJSON *value, api_error *error)
{
    (void)name, (void)error;
    ((parameters *)out)->no_thoughts = cJSON_IsFalse(value);
    return QP_OK;
}

/* false: SGLang leaves thoughts in the text. */
static qp_status read_separate(void *out, const char *name, const cJSON *value, api_error *error)
{
    (void)name, (void)error;
    ((parameters *)out)->thoughts_in_text = cJSON_IsFalse(value);
    return QP_OK;
}

#define BUDGET(word)                                                                               \
    {                                                                                              \
        .name = (word), READ(JSON_NUMBER, read_budget), .schema = SCHEMA_COUNT,                    \
        .help = "most tokens of thoughts, which are then ended"                                    \
    }

const field call_thinking_fields[] = {
    FIELD("reasoning_effort", READ(JSON_STRING, read_effort),
          .schema = "{\"enum\": [" EFFORTS ", null]}",
          .help = "how much the model thinks; none, minimal, low and medium have a budget"),
    FIELD("reasoning", READ(JSON_OBJECT, read_reasoning),
          .help = "an object with effort, max_tokens, enabled or exclude"),
    FIELD("thinking", READ(JSON_OBJECT, read_thinking),
          .schema =
              "{\"required\": [\"type\"], \"properties\": {\"type\": {\"enum\": [\"enabled\", "
              "\"disabled\", \"adaptive\"]}}}",
          .help = "of type enabled, perhaps with budget_tokens, or disabled"),
    FIELD("think", READ(JSON_BOOL | JSON_STRING, read_think),
          .help = "whether the model thinks, or how much, as reasoning_effort has it"),
    FIELD("enable_thinking", READ(JSON_BOOL, read_think), .help = "whether the model thinks"),
    BUDGET("thinking_budget"),
    BUDGET("thinking_budget_tokens"),
    BUDGET("thinking_token_budget"),
    FIELD("reasoning_format", READ(JSON_STRING, read_format),
          .schema = "{\"enum\": [\"auto\", \"deepseek\", \"none\", null]}",
          .help = "none: thoughts stay in the text, with their marks (llama.cpp)"),
    FIELD("include_reasoning", READ(JSON_BOOL, read_include),
          .help = "false: thoughts are not sent (vLLM)"),
    FIELD("separate_reasoning", READ(JSON_BOOL, read_separate),
          .help = "false: thoughts stay in the text (SGLang)"),
    {0}};

static void put_variable(cJSON *variables, const char *name, cJSON *value)
{
    if (cJSON_HasObjectItem(variables, name))
        cJSON_Delete(value);
    else
        cJSON_AddItemToObject(variables, name, value);
}

void call_put_thinking(const parameters *p, cJSON *variables)
{
    if (p->effort) put_variable(variables, "reasoning_effort", cJSON_CreateString(p->effort));
    if (p->thinking_budget > 0)
        put_variable(variables, "thinking_budget", cJSON_CreateNumber((double)p->thinking_budget));
    if (!p->think && !p->no_think) return;
    put_variable(variables, "enable_thinking", cJSON_CreateBool(p->think)); /* Qwen, SmolLM */
    put_variable(variables, "thinking", cJSON_CreateBool(p->think));        /* DeepSeek, Granite */
}

static void put_text(cJSON *message, const char *name, const char *text)
{
    if (json_get(message, name)) return;
    cJSON_DeleteItemFromObjectCaseSensitive(message, name);
    cJSON_AddStringToObject(message, name, text);
}

/* gpt-oss' template knows `thinking`, but not together with a content and calls. */
void call_name_thinking(cJSON *message)
{
    static const char *const names[] = {"reasoning_content", "reasoning", "thinking"};
    const char *text = NULL, *content = cJSON_GetStringValue(json_get(message, "content"));
    for (size_t i = 0; i < sizeof names / sizeof *names && !text; i++)
        text = cJSON_GetStringValue(json_get(message, names[i]));
    if (!text) return;
    put_text(message, "reasoning_content", text);
    if (!content || !*content || !cJSON_GetArraySize(json_get(message, "tool_calls")))
        put_text(message, "thinking", text);
}
