/* quipu convert: the written file holds what was read, in every element type and from every
 * source. */
#include "engine_test.h"
#include "model_files.h"

#include "convert/mix.h"
#include "file/gguf.h"
#include "engine/vocabulary.h"

#include <cjson/cJSON.h>
#include <dirent.h>
#include <math.h>

static qp_error error;
static char folder[64];
static char out[96]; /* model.gguf there */

static int make_folder(void **state)
{
    (void)state;
    folder_make(folder);
    snprintf(out, sizeof out, "%s/model.gguf", folder);
    return 0;
}

/* The last test, because cmocka's result does not count a failed teardown. */
static void only_known_files_are_left(void **state)
{
    (void)state;
    folder_remove(folder);
}

static void convert(const char *model, const char *type)
{
    qp_convert_options options = {
        .size = sizeof options, .model = model, .out = out, .type = type, .threads = 2};
    if (qp_convert(&options, &error) != QP_OK) fail_msg("%s: %s", model, error.message);
}

enum { N_IDS = 24 };

static float *logits_of(const char *model, size_t *count)
{
    qp_engine *engine = open_engine(
        (qp_engine_options){.model = model, .kv_type = "F32", .context = 64, .max_outputs = N_IDS});
    int64_t vocab_size = qp_engine_get_info(engine)->vocab_size;
    /* Dynamic RoPE scaling, which GGUF lacks, begins after the model's own context. */
    int64_t n = qp_engine_get_info(engine)->model_context;
    if (n > N_IDS) n = N_IDS;
    int32_t ids[N_IDS];
    for (int i = 0; i < n; i++)
        ids[i] = (int32_t)((i * 7919 + 1) % vocab_size);
    float *rows = eval_fresh(engine, ids, (size_t)n);
    *count = (size_t)(n * vocab_size);
    qp_engine_close(engine);
    return rows;
}

/* The largest difference of the two models' logits, in units of their root mean square. */
static double distance(const char *a, const char *b)
{
    size_t n, m;
    float *x = logits_of(a, &n), *y = logits_of(b, &m);
    assert_int_equal(n, m);
    double most = 0, square = 0;
    for (size_t i = 0; i < n; i++) {
        most = fmax(most, fabs((double)x[i] - (double)y[i]));
        square += (double)x[i] * (double)x[i];
    }
    free(x);
    free(y);
    return most / sqrt(square / (double)n);
}

/* --- Sources. --- */

/* Nothing is rounded and nothing is reordered: the same logits to the bit. */
static void stored_types_stay(void **state)
{
    (void)state;
    static const char *const models[] = {"synthetic:tiny",
                                         "synthetic:tiny:F32",
                                         "synthetic:tiny:F16:3",
                                         "synthetic:tiny:Q8_0",
                                         "synthetic:tiny:Q4_K",
                                         "golden/models/llama-blocks32.gguf",
                                         "synthetic:tiny:Q6_K",
                                         "golden/models/internlm2.gguf",
                                         "golden/models/llama-blocks256.gguf",
                                         "golden/models/llama3-parameters.gguf",
                                         "golden/models/llama-linear.gguf",
                                         "golden/models/llama-head128-00001-of-00002.gguf"};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        convert(models[i], NULL);
        double off = distance(models[i], out);
        if (off != 0) fail_msg("%s: logits differ by %g", models[i], off);
    }
}

static void refuses(qp_convert_options options, qp_status status, const char *part)
{
    error = (qp_error){0};
    options.size = sizeof options;
    if (!options.out) options.out = out;
    assert_int_equal(qp_convert(&options, &error), status);
    if (!strstr(error.message, part)) fail_msg("expected \"%s\" in: %s", part, error.message);
}

/* GGUF has no key for the layers that do not rotate, nor for the bounds of YaRN without rounding.
 */
static bool is_expressible(const char *name)
{
    static const char *const inexpressible[][2] = {
        {"smollm3-layers", "each layer of a multiple of 4 does not rotate"},
        {"cohere2-types", "each layer of a multiple of 4 does not rotate"},
        {"qwen3-yarn", "rounded to whole pairs of a head"},
        {"gemma2-scalar", "has no key for \"query_pre_attn_scalar\""},
        {"gemma3", "have another one than 24"},
        {"qwen3moe-shares", "\"norm_topk_prob\" is false"},
        {"gpt-oss", "bounds of YaRN"},
        {"gpt-oss-mxfp4", "bounds of YaRN"}};
    for (size_t i = 0; i < sizeof inexpressible / sizeof *inexpressible; i++) {
        char path[512];
        if (strcmp(name, inexpressible[i][0]) != 0) continue;
        snprintf(path, sizeof path, "golden/models/%s", name);
        refuses((qp_convert_options){.model = path, .out = out}, QP_UNSUPPORTED,
                inexpressible[i][1]);
        return false;
    }
    return true;
}

/* Rows of queries and keys change places, so that sums are taken in another order; nothing else. */
static void directories_become_files(void **state)
{
    (void)state;
    DIR *models = opendir("golden/models");
    assert_non_null(models);
    int count = 0;
    for (struct dirent *entry; (entry = readdir(models));) {
        char path[512], config[600];
        snprintf(path, sizeof path, "golden/models/%s", entry->d_name);
        snprintf(config, sizeof config, "%s/config.json", path);
        FILE *file = fopen(config, "r");
        if (!file) continue;
        fclose(file);
        if (!is_expressible(entry->d_name)) continue;
        convert(path, NULL);
        double off = distance(path, out);
        if (off > 1e-4) fail_msg("%s: logits differ by %g", path, off);
        count++;
    }
    closedir(models);
    assert_true(count >= 25);
}

/* GGUF's divisors give llama3's frequencies, all but a few to the bit: between two neighbouring
 * floats a division may leave one out. */
static void llama3_scaling_becomes_divisors(void **state)
{
    (void)state;
    static const char *const models[] = {"synthetic:llama-3.2-1b", "synthetic:llama-3.1-8b"};
    for (int i = 0; i < 2; i++) {
        model *source;
        model_options sizes_only = {.sizes_only = true};
        assert_ok(model_open(models[i], &sizes_only, &source, &error));
        rope_config rope = model_get_config(source)->rope, divided = rope;
        float want[64], got[64], divisors[64];
        rope_inverse_frequencies(&rope, 0, want);
        for (int64_t k = 0; k < rope.dim / 2; k++)
            divisors[k] = rope_divisor(&rope, k);
        divided.scaling = ROPE_DEFAULT;
        divided.divisors = divisors;
        rope_inverse_frequencies(&divided, 0, got);
        int missed = 0;
        for (int64_t k = 0; k < rope.dim / 2; k++) {
            assert_true(got[k] >= nextafterf(want[k], 0) && got[k] <= nextafterf(want[k], 1));
            missed += got[k] != want[k];
        }
        assert_in_range(missed, 0, 2);
        model_close(source);
    }
}

/* --- Types. --- */

/* A matrix of each type is what the codec makes of the source's values. */
static void values_are_encoded(void **state)
{
    (void)state;
    static const struct {
        const char *type;
        double off; /* of the logits: two layers of rounded weights, and of rounded inputs */
    } cases[] = {{"F32", 1e-5},   {"F16", 0.01},   {"BF16", 0},     {"Q8_0", 0.15},
                 {"Q6_K", 0.3},   {"Q5_K_M", 0.5}, {"Q5_0", 0.6},   {"Q5_1", 0.6},
                 {"Q4_K_M", 0.9}, {"Q4_K_S", 1},   {"Q4_0", 1.2},   {"Q4_1", 1.1},
                 {"Q3_K_M", 1.8}, {"Q3_K_L", 1.8}, {"Q3_K_S", 2.2}, {"q2_k", 3.5},
                 {"Q5_K_S", 0.6}, {"IQ4_XS", 1},   {"IQ4_NL", 1.1}, {"MXFP4", 2}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        convert("synthetic:tiny", cases[i].type);
        double off = distance("synthetic:tiny", out);
        if (!(off <= cases[i].off)) fail_msg("%s: logits differ by %g", cases[i].type, off);
        if (cases[i].off > 0.1) assert_true(off > 0);
    }
}

static dtype type_of(const gguf *file, const char *name)
{
    const stored_tensor *tensor = gguf_find_tensor(file, name);
    if (!tensor) fail_msg("no tensor %s", name);
    return tensor->type;
}

static void mixes_favour_tensors(void **state)
{
    (void)state;
    gguf *file;
    int64_t number = 0;
    convert("synthetic:tiny", "Q4_K_S");
    assert_ok(gguf_open(out, &file, &error));
    assert_int_equal(type_of(file, "output.weight"), DTYPE_Q6_K);
    assert_int_equal(type_of(file, "token_embd.weight"), DTYPE_Q4_K);
    assert_int_equal(type_of(file, "blk.1.attn_v.weight"), DTYPE_Q5_K);
    assert_int_equal(type_of(file, "blk.1.attn_q.weight"), DTYPE_Q4_K);
    assert_int_equal(type_of(file, "blk.1.attn_norm.weight"), DTYPE_F32);
    assert_ok(gguf_get_i64(file, "general.file_type", &number, &error));
    assert_int_equal(number, 14);
    gguf_close(file);

    qp_convert_options pure = {.size = sizeof pure,
                               .model = "synthetic:tiny",
                               .out = out,
                               .type = "q4_k_s",
                               .pure = true,
                               .threads = 1};
    assert_ok(qp_convert(&pure, &error));
    assert_ok(gguf_open(out, &file, &error));
    assert_int_equal(type_of(file, "output.weight"), DTYPE_Q4_K);
    assert_int_equal(type_of(file, "blk.1.attn_v.weight"), DTYPE_Q4_K);
    gguf_close(file);
}

/* As llama-quantize deals them in a model of 16 layers, tied, four queries to a key. */
static void mixes_are_llama_cpps(void **state)
{
    (void)state;
    const model_config c = {.n_layers = 16, .n_heads = 32, .n_kv_heads = 8, .tied = true};
    const mix *m;
    assert_ok(mix_find("Q4_K_M", &m, &error));
    static const bool more[16] = {1, 1, 0, 0, 1, 0, 0, 1, 0, 0, 1, 0, 0, 1, 1, 1};
    for (int64_t layer = 0; layer < 16; layer++) {
        dtype want = more[layer] ? DTYPE_Q6_K : DTYPE_Q4_K;
        assert_int_equal(mix_choose(m, &c, WEIGHT_ATTN_V, layer, 2048, false), want);
        assert_int_equal(mix_choose(m, &c, WEIGHT_FFN_DOWN, layer, 8192, false), want);
        assert_int_equal(mix_choose(m, &c, WEIGHT_FFN_UP, layer, 2048, false), DTYPE_Q4_K);
    }
    assert_int_equal(mix_choose(m, &c, WEIGHT_TOKEN_EMBD, 0, 2048, false), DTYPE_Q6_K);
    /* Rows of 576 are no whole blocks of 256, rows of 40 none of 32. */
    assert_int_equal(mix_choose(m, &c, WEIGHT_FFN_UP, 0, 576, false), DTYPE_Q5_0);
    assert_int_equal(mix_choose(m, &c, WEIGHT_ATTN_V, 0, 576, false), DTYPE_Q8_0);
    assert_int_equal(mix_choose(m, &c, WEIGHT_FFN_UP, 0, 40, false), DTYPE_F16);
    assert_ok(mix_find("Q2_K", &m, &error));
    assert_int_equal(mix_choose(m, &c, WEIGHT_ATTN_V, 9, 2048, false), DTYPE_Q4_K);
    assert_int_equal(mix_choose(m, &c, WEIGHT_FFN_DOWN, 9, 2048, false), DTYPE_Q3_K);
    assert_ok(mix_find("IQ4_XS", &m, &error));
    assert_int_equal(mix_choose(m, &c, WEIGHT_ATTN_V, 9, 2048, false), DTYPE_Q5_K);
    assert_int_equal(mix_choose(m, &c, WEIGHT_FFN_DOWN, 1, 8192, false), DTYPE_Q5_K);
    assert_int_equal(mix_choose(m, &c, WEIGHT_FFN_DOWN, 2, 8192, false), DTYPE_IQ4_XS);
    assert_int_equal(mix_choose(m, &c, WEIGHT_FFN_UP, 0, 576, false), DTYPE_IQ4_NL);
    assert_ok(mix_find("Q8_0", &m, &error));
    assert_int_equal(mix_choose(m, &c, WEIGHT_TOKEN_EMBD, 0, 2048, false), DTYPE_Q8_0);
    assert_ptr_equal(mix_of_type(DTYPE_Q8_0), m);
    assert_null(mix_of_type(DTYPE_I32));
}

/* --- Keys and vocabularies. --- */

static void keys_are_carried_over(void **state)
{
    (void)state;
    static const char from[] = "golden/models/llama-text.gguf";
    convert(from, "Q8_0");
    gguf *old, *new;
    assert_ok(gguf_open(from, &old, &error));
    assert_ok(gguf_open(out, &new, &error));
    for (size_t i = 0; i < gguf_key_count(old); i++) {
        const gguf_value *value = gguf_key_at(old, i);
        char name[128];
        snprintf(name, sizeof name, "%.*s", (int)value->key.length, value->key.data);
        const gguf_value *copy = gguf_find(new, name);
        if (!copy && strcmp(name, "general.alignment") != 0) fail_msg("key %s is lost", name);
        if (copy && strcmp(name, "general.file_type") != 0) {
            assert_int_equal(copy->type, value->type);
            assert_int_equal(copy->count, value->count);
        }
    }
    assert_int_equal(gguf_tensor_count(new), gguf_tensor_count(old));
    gguf_close(old);
    gguf_close(new);
}

static void assert_same_ids(const tokenizer *a, const tokenizer *b, const char *text)
{
    token_ids x = {0}, y = {0};
    unsigned flags = tokenizer_default_flags(a);
    assert_int_equal(flags, tokenizer_default_flags(b));
    flags |= TOKENIZER_SPECIAL;
    assert_ok(tokenizer_encode(a, text, strlen(text), flags, &x, &error));
    assert_ok(tokenizer_encode(b, text, strlen(text), flags, &y, &error));
    if (x.count != y.count || (x.count && memcmp(x.data, y.data, x.count * sizeof *x.data) != 0))
        fail_msg("other ids for \"%s\"", text);
    token_ids_free(&x);
    token_ids_free(&y);
}

/* The tokenizer as a GGUF file of its own, read again. */
static tokenizer *through_gguf(const tokenizer *from, int64_t n_tokens)
{
    strbuf losses = {0};
    gguf_writer *writer;
    gguf *file;
    tokenizer *again;
    assert_ok(gguf_writer_create(out, 0, &writer, &error));
    assert_ok(tokenizer_write_gguf(from, n_tokens, "tokenizer", writer, &losses, &error));
    assert_ok(gguf_writer_begin(writer, &error));
    assert_ok(gguf_writer_finish(writer, &error));
    gguf_writer_destroy(writer);
    assert_ok(gguf_open(out, &file, &error));
    assert_ok(tokenizer_open_gguf(file, &again, &error));
    gguf_close(file);
    strbuf_free(&losses);
    return again;
}

static const char *const texts[] = {
    "",
    " ",
    "Once upon a time, there was a little girl named Lily.",
    "  two  spaces   three\tand\ttabs\r\n\n\nlines  ",
    "caf\xc3\xa9 \xf0\x9f\x99\x82\xf0\x9f\x91\x8d \xe6\x97\xa5\xe6\x9c\xac\xe8\xaa\x9e",
    "1234567890 3.14159 x\xc2\xb2 don't I'LL we've",
    "\x80\xff not UTF-8 \xe2\x28\xa1",
    "<s>text</s> <|im_start|>user\nHi<|im_end|>\n<|begin_of_text|><|eot_id|>",
    "def f(x):\n    return {'a': [x**2 for _ in range(10)]}  # code",
};
enum { N_TEXTS = sizeof texts / sizeof *texts };

static void check_tokenizer(const char *name, const tokenizer *from)
{
    int32_t count = tokenizer_vocab_size(from);
    tokenizer *again = through_gguf(from, count + 3);
    assert_int_equal(tokenizer_vocab_size(again), count + 3);
    tokenizer_special a = tokenizer_special_ids(from), b = tokenizer_special_ids(again);
    assert_int_equal(a.bos, b.bos);
    assert_int_equal(a.eos, b.eos);
    assert_int_equal(a.unknown, b.unknown);
    for (int32_t id = 0; id < count; id++) {
        size_t n, m;
        const char *x = tokenizer_piece(from, id, &n), *y = tokenizer_piece(again, id, &m);
        bool same = n == m && memcmp(x, y, n) == 0;
        if (!same && n > 0 && id != a.unknown) fail_msg("%s: token %d is another", name, id);
        if (n > 0)
            assert_int_equal(tokenizer_is_control(from, id), tokenizer_is_control(again, id));
    }
    for (int i = 0; i < N_TEXTS; i++)
        assert_same_ids(from, again, texts[i]);
    tokenizer_free(again);
}

static void tokenizers_come_back(void **state)
{
    (void)state;
    tokenizer *from;
    assert_ok(tokenizer_open_sentencepiece("golden/tokenizer/pieces.model", &from, &error));
    check_tokenizer("pieces.model", from);
    tokenizer_free(from);
    assert_ok(tokenizer_open_json("golden/tokenizer/bytes.json", &from, &error));
    check_tokenizer("bytes.json", from);
    tokenizer_free(from);
}

static void real_tokenizers_come_back(void **state)
{
    (void)state;
    static const char *const names[] = {
        "tokenizers/smollm2/tokenizer.json",    "tokenizers/llama3/tokenizer.json",
        "tokenizers/llama2/tokenizer.model",    "tokenizers/internlm2/tokenizer.model",
        "stories260K/hf/tokenizer.model",       "tokenizers/ggml-vocab-llama-spm.gguf",
        "tokenizers/ggml-vocab-llama-bpe.gguf", "tokenizers/vocab-smollm2.gguf"};
    require_data(test_data(names[0]), names[0]);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *path = test_data(names[i]), *end = path ? strrchr(path, '.') : NULL;
        tokenizer *from = NULL;
        gguf *file;
        if (!path) continue;
        if (strcmp(end, ".json") == 0) {
            assert_ok(tokenizer_open_json(path, &from, &error));
        } else if (strcmp(end, ".model") == 0) {
            assert_ok(tokenizer_open_sentencepiece(path, &from, &error));
        } else {
            assert_ok(gguf_open(path, &file, &error));
            assert_ok(tokenizer_open_gguf(file, &from, &error));
            gguf_close(file);
        }
        check_tokenizer(names[i], from);
        tokenizer_free(from);
    }
}

static void synthetic_models_get_a_vocabulary(void **state)
{
    (void)state;
    convert("synthetic:tiny", NULL);
    qp_vocabulary *vocabulary;
    assert_ok(qp_vocabulary_open(out, &vocabulary, &error));
    qp_tokens tokens = {0};
    assert_ok(qp_tokenize(vocabulary, "Hi\n", 3, QP_BOS_DEFAULT, &tokens, &error));
    assert_int_equal(tokens.count, 5); /* BOS, the space in front, and three bytes */
    char *text;
    assert_ok(qp_detokenize(vocabulary, tokens.data, tokens.count, 0, &text, NULL, &error));
    assert_string_equal(text, "Hi\n");
    free(text);
    qp_tokens_free(&tokens);
    qp_vocabulary_close(vocabulary);
}

static void templates_are_carried_over(void **state)
{
    (void)state;
    convert("golden/models/llama-text", NULL);
    qp_vocabulary *from, *to;
    assert_ok(qp_vocabulary_open("golden/models/llama-text", &from, &error));
    assert_ok(qp_vocabulary_open(out, &to, &error));
    for (int i = 0; i < N_TEXTS; i++)
        assert_same_ids(from->tokenizer, to->tokenizer, texts[i]);
    if (qp_chat_template(from))
        assert_string_equal(qp_chat_template(from), qp_chat_template(to));
    else
        assert_null(qp_chat_template(to));
    qp_vocabulary_close(from);
    qp_vocabulary_close(to);
}

/* --- What goes wrong. --- */

static void mistakes_are_named(void **state)
{
    (void)state;
    static const char tiny[] = "synthetic:tiny";
    unlink(out);
    refuses((qp_convert_options){.model = tiny, .type = "Q9"}, QP_INVALID, "Q4_K_M, Q5_K_S");
    refuses((qp_convert_options){.model = "/nonexistent.gguf"}, QP_IO, "/nonexistent.gguf");
    refuses((qp_convert_options){.model = tiny, .out = "/nonexistent/a.gguf"}, QP_IO,
            "/nonexistent/a.gguf");
    refuses((qp_convert_options){.model = "golden/models/internlm2", .out = folder}, QP_INVALID,
            "found a directory");
    refuses((qp_convert_options){0}, QP_INVALID, "are needed");
    assert_int_equal(access(out, F_OK), -1);
    convert(tiny, NULL);
    refuses((qp_convert_options){.model = out, .type = "Q8_0"}, QP_INVALID, "the model itself");
    assert_int_equal(access(out, F_OK), 0);
    /* More rows than the merges' file has tokens is the usual; fewer cannot be. */
    tokenizer *from;
    gguf_writer *writer;
    strbuf losses = {0};
    assert_ok(tokenizer_open_json("golden/tokenizer/bytes.json", &from, &error));
    assert_ok(gguf_writer_create(out, 0, &writer, &error));
    assert_int_equal(tokenizer_write_gguf(from, 10, "here", writer, &losses, &error),
                     QP_UNSUPPORTED);
    gguf_writer_destroy(writer);
    tokenizer_free(from);
    strbuf_free(&losses);
}

static void cancelling_leaves_nothing(void **state)
{
    (void)state;
    const volatile int now = 1;
    unlink(out);
    refuses((qp_convert_options){.model = "synthetic:tiny", .cancel = &now}, QP_CANCELLED,
            "cancelled");
    assert_int_equal(access(out, F_OK), -1);
    convert("synthetic:tiny", NULL); /* the teardown finds this file alone */
}

/* Puts a value into the middle of a tensor of F32 in the file at `out`. */
static void damage(const char *name, float value)
{
    gguf *file;
    assert_ok(gguf_open(out, &file, &error));
    const stored_tensor *tensor = gguf_find_tensor(file, name);
    assert_true(tensor && tensor->type == DTYPE_F32);
    FILE *stream = fopen(out, "r+b");
    assert_non_null(stream);
    assert_int_equal(fseek(stream, (long)(tensor->offset + tensor->bytes / 8 * 4), SEEK_SET), 0);
    assert_int_equal(fwrite(&value, sizeof value, 1, stream), 1);
    assert_int_equal(fclose(stream), 0);
    gguf_close(file);
}

static qp_status keep_nothing(void *context, size_t input, size_t token, const float *logits)
{
    (void)context, (void)input, (void)token, (void)logits;
    return QP_OK;
}

/* A model with a NaN has no logits, and no block can hold one. */
static void values_that_are_no_numbers_are_refused(void **state)
{
    (void)state;
    static const char name[] = "blk.0.ffn_down.weight";
    convert("synthetic:tiny", "F32");
    damage(name, NAN);
    qp_engine *engine = open_engine((qp_engine_options){.model = out, .context = 64});
    qp_session *session;
    assert_ok(qp_session_open(engine, &session, &error));
    const int32_t ids[] = {1, 2, 3};
    const qp_input input = {session, ids, 3, false};
    assert_int_equal(qp_eval(engine, &input, 1, keep_nothing, NULL, NULL, &error), QP_FORMAT);
    assert_non_null(strstr(error.message, "the logits are not finite"));
    qp_session_close(session);
    qp_engine_close(engine);
    char copy[128];
    snprintf(copy, sizeof copy, "%s/config.json", folder); /* a name that the teardown knows */
    for (int i = 0; i < 2; i++) {
        refuses((qp_convert_options){.model = out, .out = copy, .type = "Q8_0"}, QP_FORMAT,
                "holds NaN or an infinity");
        assert_non_null(strstr(error.message, name));
        assert_int_equal(access(copy, F_OK), -1);
        damage(name, INFINITY);
    }
    qp_convert_options as_it_is = {.size = sizeof as_it_is, .model = out, .out = copy};
    assert_ok(qp_convert(&as_it_is, &error));
}

static void remember_warning(void *context, qp_log_level level, const char *message)
{
    if (level == QP_LOG_WARNING) snprintf(context, 256, "%s", message);
}

/* F16 ends at 65504, and so do the scales of blocks: larger values would become infinities. */
static void values_that_a_type_cannot_hold_are_refused(void **state)
{
    (void)state;
    static const char name[] = "blk.0.ffn_down.weight";
    static const struct {
        const char *type;
        float most, more;
    } types[] = {{"F16", 65504, 65520},  {"Q8_0", 8.31e6f, 8.33e6f}, {"Q4_0", 5.2e5f, 5.3e5f},
                 {"Q4_1", 9e5f, 1.1e6f}, {"Q5_0", 1.04e6f, 1.06e6f}, {"Q5_1", 1.9e6f, 2.2e6f}};
    char copy[128];
    convert("synthetic:tiny", "F32");
    snprintf(copy, sizeof copy, "%s/config.json", folder); /* a name that the teardown knows */
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        qp_convert_options options = {
            .size = sizeof options, .model = out, .out = copy, .type = types[i].type};
        damage(name, types[i].most);
        assert_ok(qp_convert(&options, &error));
        assert_int_equal(unlink(copy), 0);
        damage(name, types[i].more);
        refuses(options, QP_UNSUPPORTED, "too large for");
        assert_non_null(strstr(error.message, name));
        assert_int_equal(access(copy, F_OK), -1);
        char said[256] = "";
        options.clamp = true;
        options.log = remember_warning;
        options.log_context = said;
        assert_ok(qp_convert(&options, &error));
        assert_non_null(strstr(said, name));
        assert_non_null(strstr(said, "1 values beyond 65504"));
        assert_int_equal(unlink(copy), 0);
    }
}

static void losses_are_told(void **state)
{
    (void)state;
    char last[256] = "";
    qp_convert_options options = {.size = sizeof options,
                                  .model = "synthetic:tiny:Q8_0",
                                  .out = out,
                                  .type = "Q4_0",
                                  .log = remember_warning,
                                  .log_context = last};
    assert_ok(qp_convert(&options, &error));
    assert_non_null(strstr(last, "quantised already"));
    options = (qp_convert_options){.size = sizeof options,
                                   .model = "golden/models/llama-dynamic",
                                   .out = out,
                                   .log = remember_warning,
                                   .log_context = last};
    assert_ok(qp_convert(&options, &error));
    assert_non_null(strstr(last, "no tokenizer"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stored_types_stay),
        cmocka_unit_test(directories_become_files),
        cmocka_unit_test(llama3_scaling_becomes_divisors),
        cmocka_unit_test(values_are_encoded),
        cmocka_unit_test(mixes_favour_tensors),
        cmocka_unit_test(mixes_are_llama_cpps),
        cmocka_unit_test(keys_are_carried_over),
        cmocka_unit_test(tokenizers_come_back),
        cmocka_unit_test(real_tokenizers_come_back),
        cmocka_unit_test(synthetic_models_get_a_vocabulary),
        cmocka_unit_test(templates_are_carried_over),
        cmocka_unit_test(mistakes_are_named),
        cmocka_unit_test(cancelling_leaves_nothing),
        cmocka_unit_test(values_that_are_no_numbers_are_refused),
        cmocka_unit_test(values_that_a_type_cannot_hold_are_refused),
        cmocka_unit_test(losses_are_told),
        cmocka_unit_test(only_known_files_are_left),
    };
    return cmocka_run_group_tests(tests, make_folder, NULL);
}
