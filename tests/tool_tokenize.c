/* Encodes many texts, for the scripts that compare with other tokenizers.
 *
 * Usage: tool_tokenize MODEL [special|decode|time]; MODEL is a .gguf, .json or .model file or a
 * directory. Standard input holds texts, each as its length in decimal, a newline and the bytes.
 * Standard output gets one line of ids for each text, or with `decode` the text after encoding and
 * decoding, in the same framing. `time` prints the times of loading and encoding instead.
 */
#include "base/clock.h"
#include "base/names.h"
#include "text/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static qp_status open_model(const char *path, tokenizer **out, qp_error *error)
{
    if (name_ends_with(path, ".json")) return tokenizer_open_json(path, out, error);
    if (name_ends_with(path, ".model")) return tokenizer_open_sentencepiece(path, out, error);
    if (!name_ends_with(path, ".gguf")) return tokenizer_open_directory(path, out, error);
    gguf *file;
    TRY(gguf_open(path, &file, error));
    qp_status status = tokenizer_open_gguf(file, out, error);
    gguf_close(file);
    return status;
}

/* The next framed text, to free(); NULL at the end of the input. */
static char *read_text(size_t *length)
{
    if (scanf("%zu", length) != 1 || getchar() != '\n') return NULL;
    char *text = malloc(*length + 1);
    if (text && fread(text, 1, *length, stdin) == *length) return text;
    free(text);
    return NULL;
}

static qp_status print_ids(const tokenizer *tokenizer, const char *text, size_t length,
                           const char *mode, qp_error *error)
{
    token_ids ids = {0};
    strbuf decoded = {0};
    unsigned flags = strcmp(mode, "special") == 0 ? TOKENIZER_SPECIAL : 0;
    qp_status status = tokenizer_encode(tokenizer, text, length, flags, &ids, error);
    if (status == QP_OK && strcmp(mode, "decode") == 0) {
        status = tokenizer_decode(tokenizer, ids.data, ids.count, TOKENIZER_DECODE_CONTROL,
                                  &decoded, error);
        printf("%zu\n", decoded.length);
        fwrite(strbuf_text(&decoded), 1, decoded.length, stdout);
    } else if (status == QP_OK && strcmp(mode, "time") != 0) {
        for (size_t i = 0; i < ids.count; i++)
            printf(i ? " %d" : "%d", ids.data[i]);
        putchar('\n');
    }
    token_ids_free(&ids);
    strbuf_free(&decoded);
    return status;
}

int main(int argc, char **argv)
{
    qp_error error;
    tokenizer *tokenizer;
    if (argc < 2) {
        fprintf(stderr, "usage: %s MODEL [special|decode|time] < TEXTS\n", argv[0]);
        return 2;
    }
    const char *mode = argc > 2 ? argv[2] : "";
    uint64_t start = clock_ns();
    if (open_model(argv[1], &tokenizer, &error) != QP_OK) {
        fprintf(stderr, "%s\n", error.message);
        return 1;
    }
    uint64_t loaded = clock_ns();
    qp_status status = QP_OK;
    size_t length, total = 0;
    for (char *text; status == QP_OK && (text = read_text(&length)); free(text)) {
        total += length;
        status = print_ids(tokenizer, text, length, mode, &error);
    }
    if (status != QP_OK) fprintf(stderr, "%s\n", error.message);
    if (strcmp(mode, "time") == 0)
        printf("load %.1f ms, encode %.1f ms for %zu bytes\n", (double)(loaded - start) * 1e-6,
               (double)(clock_ns() - loaded) * 1e-6, total);
    tokenizer_free(tokenizer);
    return status != QP_OK;
}
