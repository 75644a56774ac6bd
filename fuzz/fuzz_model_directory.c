/* Hugging Face directories: config.json, safetensors with their index, generation_config.json, the
 * tokenizer with the files beside it, and a conversation. Whatever opens as a model is read to the
 * last byte; whatever opens as a vocabulary takes text and gives it back; adapters are applied to
 * the model beside them. */
#include "engine/generation_config.h"
#include "engine/vocabulary.h"
#include "folder.h"
#include "model/model.h"

#include <stdlib.h>
#include <string.h>

static void use_vocabulary(const char *path, const model *model)
{
    static const char text[] = "Once <|im_end|> upon\xff a time 12\n";
    static const char chat[] = "[{\"role\":\"user\",\"content\":\"a <s>\"}]";
    qp_error error = {0};
    qp_vocabulary *vocabulary = NULL;
    qp_tokens tokens = {0};
    char *back = NULL;
    if (qp_vocabulary_open(path, &vocabulary, &error) != QP_OK) {
        if (!error.message[0]) abort();
        return;
    }
    qp_tokenize(vocabulary, text, sizeof text - 1, QP_SPECIAL, &tokens, &error);
    if (qp_detokenize(vocabulary, tokens.data, tokens.count, 0, &back, NULL, &error) == QP_OK)
        free(back);
    qp_tokenize_chat(vocabulary, chat, sizeof chat - 1, true, 0, &tokens, &error);
    generation_config settings;
    if (model) generation_config_read(model, vocabulary, &settings, &error);
    qp_tokens_free(&tokens);
    qp_vocabulary_close(vocabulary);
}

/* The folder as an adapter of the model that it holds too. */
static void use_adapter(const char *path, bool merge)
{
    const adapter_choice choice = {path, 1};
    const model_options options = {.adapters = {&choice, 1, merge}};
    model *model = NULL;
    qp_error error = {0};
    const qp_status status = model_open(path, &options, &model, &error);
    if (status != QP_OK && (status != error.status || !error.message[0])) abort();
    if (status == QP_OK) model_close(model);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *path = folder_fill(data, size);
    model_options options = {0};
    model *model = NULL;
    qp_error error = {0};
    qp_status status = model_open(path, &options, &model, &error);
    if (status != QP_OK && (status != error.status || !error.message[0])) abort();
    use_vocabulary(path, status == QP_OK ? model : NULL);
    if (status == QP_OK) model_close(model);
    for (int merge = 0; status == QP_OK && merge < 2; merge++)
        use_adapter(path, merge);
    return 0;
}
