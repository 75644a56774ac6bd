/* Conversations as JSON: whatever a template renders of one, its control tokens are the template's.
 */
#include "base/json.h"
#include "engine/vocabulary.h"

#include <stdlib.h>
#include <string.h>

/* A vocabulary of bytes with two control tokens, and ChatML as its template. */
static qp_vocabulary *make_vocabulary(void)
{
    static const char tokenizer_json[] =
        "{\"added_tokens\":[{\"id\":0,\"content\":\"<|im_start|>\",\"special\":true},"
        "{\"id\":1,\"content\":\"<|im_end|>\",\"special\":true}],"
        "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true},"
        "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":2,\"<\":3,\"|\":4,\"\\u010a\":5},\"merges\":["
        "]}}";
    static const char source[] =
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}{{ m.content | trim }}"
        "{{ '<|im_end|>\\n' }}{% endfor %}{{ tools | tojson if tools }}";
    qp_error error;
    qp_vocabulary *v = calloc(1, sizeof *v);
    if (!v || tokenizer_parse_json(tokenizer_json, sizeof tokenizer_json - 1, "t", &v->tokenizer,
                                   &error) != QP_OK)
        abort();
    v->templates.plain.source = strdup(source);
    if (template_compile(source, sizeof source - 1, &v->templates.plain.compiled, &error) != QP_OK)
        abort();
    return v;
}

static size_t messages_of(const char *json, size_t length)
{
    qp_error error;
    cJSON *tree = NULL;
    if (json_parse(json, length, "c", &tree, &error) != QP_OK) return 0;
    const cJSON *list = cJSON_IsArray(tree) ? tree : json_get(tree, "messages");
    size_t count = (size_t)cJSON_GetArraySize(list);
    cJSON_Delete(tree);
    return count;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static qp_vocabulary *vocabulary;
    const char *json = (const char *)data;
    qp_tokens tokens = {0};
    qp_error error = {0};
    if (!vocabulary) vocabulary = make_vocabulary();
    if (qp_tokenize_chat(vocabulary, json, size, false, 0, &tokens, &error) == QP_OK) {
        size_t starts = 0;
        for (size_t i = 0; i < tokens.count; i++)
            starts += tokens.data[i] == 0;
        if (starts > messages_of(json, size)) abort(); /* a message made one */
    } else if (!error.message[0]) {
        abort();
    }
    qp_tokens_free(&tokens);
    return 0;
}
