/* GGUF files as models, as adapters of a synthetic one, and as vocabularies: keys, tensors, the
 * tokenizer and its pre-tokenizer's name. */
#define _GNU_SOURCE /* memfd_create */
#include "engine/vocabulary.h"
#include "model/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static void use_vocabulary(const uint8_t *data, size_t size)
{
    static const char text[] = "Once <s> upon\xff a time 12\n";
    gguf *file;
    qp_error error = {0};
    tokenizer *tokenizer = NULL;
    if (gguf_open_memory(data, size, "fuzz.gguf", &file, &error) != QP_OK) return;
    if (tokenizer_open_gguf(file, &tokenizer, &error) == QP_OK) {
        token_ids ids = {0};
        strbuf back = {0};
        tokenizer_encode(tokenizer, text, sizeof text - 1, TOKENIZER_SPECIAL, &ids, &error);
        tokenizer_decode(tokenizer, ids.data, ids.count, 0, &back, &error);
        token_ids_free(&ids);
        strbuf_free(&back);
        tokenizer_free(tokenizer);
    } else if (!error.message[0]) {
        abort();
    }
    gguf_close(file);
}

static void use_adapter(const char *path)
{
    const adapter_choice choice = {path, 1};
    const model_options options = {.sizes_only = true, .adapters = {&choice, 1, false}};
    model *model = NULL;
    qp_error error = {0};
    const qp_status status = model_open("synthetic:tiny", &options, &model, &error);
    if (status != QP_OK && (status != error.status || !error.message[0])) abort();
    if (status == QP_OK) model_close(model);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[64];
    model_options options = {0};
    model *model = NULL;
    qp_error error = {0};
    use_vocabulary(data, size);
    int file = memfd_create("fuzz.gguf", 0);
    if (file < 0) abort();
    if (write(file, data, size) != (ssize_t)size) abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    qp_status status = model_open(path, &options, &model, &error);
    if (status == QP_OK)
        model_close(model);
    else if (status != error.status || !error.message[0])
        abort();
    use_adapter(path);
    close(file);
    return 0;
}
