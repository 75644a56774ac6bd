/* Chat templates: whatever compiles is rendered over a small conversation, within tight limits. */
#include "template/template.h"

#include <stdlib.h>

static const char context_json[] =
    "{\"messages\":[{\"role\":\"system\",\"content\":\" S\\u00e4tze \"},"
    "{\"role\":\"user\",\"content\":\"<think>a</think>\\n\\\"b\\\" 12 -3.5\"},"
    "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"123456789\",\"function\":"
    "{\"name\":\"f\",\"arguments\":{\"x\":1.5,\"y\":[true,null,\"z\"]}}}]},"
    "{\"role\":\"tool\",\"content\":[{\"type\":\"text\",\"text\":\"\\ud83d\\ude42\"}]}],"
    "\"tools\":[{\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\"}}}],"
    "\"bos_token\":\"<s>\",\"eos_token\":\"</s>\",\"add_generation_prompt\":true}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static cJSON *context;
    if (!context) context = cJSON_Parse(context_json);
    if (!context) abort();
    template_options options = {
        .now = 1767323045, .max_steps = 20000, .max_output = 20000, .max_memory = (size_t)4 << 20};
    qp_error error = {0};
    template *compiled = NULL;
    strbuf out = {0};
    qp_status status = template_compile((const char *)data, size, &compiled, &error);
    if (status == QP_OK) status = template_render(compiled, context, &options, &out, &error);
    if (status != QP_OK && !error.message[0]) abort(); /* failures say what they are */
    if (status != QP_OK && out.length) abort();        /* and leave the text alone */
    strbuf_free(&out);
    template_free(compiled);
    return 0;
}
