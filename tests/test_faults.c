/* Damaged models: 10,000 mutations of small files are opened and, if they open, run. The result
 * must be an error with a message, or tokens, within bounded time. Sanitized builds also detect
 * invalid reads and leaks.
 *
 * A counter generates the mutations: every run makes the same ones, and a failure names its number.
 */
#include "base/clock.h"
#include "base/hash.h"
#include "engine_test.h"
#include "model_files.h"

#include <math.h>

static qp_error error;

/* --- Mutations ------------------------------------------------------------------------------- */

typedef struct bytes {
    uint8_t *data;
    size_t size;
} bytes;

typedef struct dice {
    uint64_t seed, rolls;
} dice;

static size_t roll(dice *d, size_t sides)
{
    return sides ? (size_t)(hash_random(d->seed, 1, d->rolls++) % sides) : 0;
}

/* A place in the file: half the time among the first bytes, where headers are. */
static size_t place(dice *d, size_t size, size_t header)
{
    size_t most = roll(d, 2) && header < size ? header : size;
    return roll(d, most);
}

static void flip_bits(bytes *b, dice *d, size_t header)
{
    for (size_t n = 1 + roll(d, 8); n > 0; n--)
        b->data[place(d, b->size, header)] ^= (uint8_t)(1u << roll(d, 8));
}

/* Numbers that programs get wrong, over 1, 2, 4 or 8 bytes. */
static void write_extreme(bytes *b, dice *d, size_t header)
{
    static const uint64_t extremes[] = {0,          1,          0x7f,       0x80,
                                        0xff,       0x7fff,     0x8000,     0xffff,
                                        0x7fffffff, 0x80000000, 0xffffffff, 0x7fffffffffffffff,
                                        1u << 20,   1u << 24,   UINT64_MAX, 0x8000000000000000};
    uint64_t value = extremes[roll(d, sizeof extremes / sizeof *extremes)];
    size_t width = (size_t)1 << roll(d, 4), at = place(d, b->size, header);
    if (at + width <= b->size) memcpy(b->data + at, &value, width);
}

static void swap_blocks(bytes *b, dice *d, size_t header)
{
    uint8_t held[64];
    size_t length = 1 + roll(d, sizeof held), from = place(d, b->size, header),
           to = place(d, b->size, header);
    if (from + length > b->size || to + length > b->size) return;
    memcpy(held, b->data + from, length);
    memmove(b->data + from, b->data + to, length);
    memcpy(b->data + to, held, length);
}

static void remove_bytes(bytes *b, dice *d, size_t header)
{
    size_t length = 1 + roll(d, 40), at = place(d, b->size, header);
    if (at + length > b->size) return;
    memmove(b->data + at, b->data + at + length, b->size - at - length);
    b->size -= length;
}

static void repeat_bytes(bytes *b, dice *d, size_t header)
{
    size_t length = 1 + roll(d, 40), at = place(d, b->size, header);
    if (at + 2 * length > b->size) return;
    memmove(b->data + at + length, b->data + at, length);
}

static void shuffle_bytes(bytes *b, dice *d, size_t header)
{
    size_t length = 2 + roll(d, 30), at = place(d, b->size, header);
    if (at + length > b->size) return;
    for (size_t i = length - 1; i > 0; i--) {
        size_t k = roll(d, i + 1);
        uint8_t held = b->data[at + i];
        b->data[at + i] = b->data[at + k];
        b->data[at + k] = held;
    }
}

static void mutate(bytes *b, dice *d, size_t header)
{
    static void (*const ways[])(bytes *, dice *,
                                size_t) = {flip_bits,    flip_bits,    write_extreme, swap_blocks,
                                           remove_bytes, repeat_bytes, shuffle_bytes};
    if (roll(d, 5) == 0) { /* cut, at the beginning as often as anywhere */
        b->size = place(d, b->size, header);
        return;
    }
    for (size_t n = 1 + roll(d, 2); n > 0 && b->size > 0; n--)
        ways[roll(d, sizeof ways / sizeof *ways)](b, d, header);
}

/* --- Running what is left -------------------------------------------------------------------- */

typedef struct outcomes {
    int opened, refused;
} outcomes;

/* Damaged weights can give logits that are NaN or infinite: an error ends the evaluation. */
static bool ends_by_logits(qp_status status)
{
    return status == QP_FORMAT && strstr(error.message, "the logits are not finite") != NULL;
}

static void try_engine(const char *path, int number, outcomes *outcomes)
{
    uint64_t start = clock_ns();
    memset(&error, 0, sizeof error);
    qp_engine *engine = NULL;
    qp_engine_options options = {.size = sizeof options,
                                 .model = path,
                                 .threads = 1,
                                 .context = 8,
                                 .exec = number % 4 ? "operators" : "reference"};
    qp_status status = qp_engine_open(&options, &engine, &error);
    if (status == QP_OK) {
        qp_session *session = open_session(engine);
        qp_sampling sampling = {.size = sizeof sampling};
        assert_int_equal(qp_sampling_defaults(engine, &sampling, NULL), QP_OK);
        const int32_t prompt[] = {0, (int32_t)(qp_engine_get_info(engine)->vocab_size - 1)};
        qp_generate_options generation = {.size = sizeof generation,
                                          .prompt = prompt,
                                          .n_prompt = 2,
                                          .sampling = &sampling,
                                          .max_tokens = 2};
        qp_generate_result result = {.size = sizeof result};
        status = qp_generate(session, &generation, &result, &error);
        if (status == QP_OK)
            assert_true(result.generated_tokens <= 2);
        else if (!ends_by_logits(status))
            fail_msg("mutation %d: status %d, \"%s\"", number, status, error.message);
        qp_session_close(session);
        outcomes->opened++;
    } else {
        assert_null(engine);
        if (status != error.status || strlen(error.message) < 10)
            fail_msg("mutation %d: status %d, \"%s\"", number, status, error.message);
        outcomes->refused++;
    }
    qp_engine_close(engine);
    double seconds = (double)(clock_ns() - start) * 1e-9;
    if (seconds > 5) fail_msg("mutation %d took %.1f s", number, seconds);
}

/* Mutations `first` .. `first` + count of one file, opened as `model` (the file or its folder). */
static void mutate_file(const char *from, const char *folder, const char *name, const char *model,
                        size_t header, int first, int count, outcomes *outcomes)
{
    bytes whole = {0};
    whole.data = read_whole(from, &whole.size);
    assert_non_null(whole.data);
    uint8_t *copy = malloc(whole.size);
    for (int i = first; i < first + count; i++) {
        bytes b = {copy, whole.size};
        dice d = {.seed = (uint64_t)i};
        memcpy(copy, whole.data, whole.size);
        mutate(&b, &d, header);
        folder_write(folder, name, b.data, b.size);
        try_engine(model, i, outcomes);
    }
    folder_write(folder, name, whole.data, whole.size); /* as it was, for the next file's turn */
    free(copy);
    free(whole.data);
}

static void damaged_gguf_files(void **state)
{
    (void)state;
    static const struct {
        const char *file;
        size_t header;
        int count;
    } files[] = {{"golden/models/llama-text.gguf", 8000, 3000},
                 {"golden/models/llama-blocks32.gguf", 2500, 2000},
                 {"golden/models/internlm2.gguf", 2000, 1500}};
    char folder[64], path[128];
    folder_make(folder);
    snprintf(path, sizeof path, "%s/model.gguf", folder);
    outcomes total = {0};
    int first = 0;
    for (size_t f = 0; f < sizeof files / sizeof *files; f++) {
        mutate_file(files[f].file, folder, "model.gguf", path, files[f].header, first,
                    files[f].count, &total);
        first += files[f].count;
    }
    folder_remove(folder);
    assert_int_equal(total.opened + total.refused, 6500);
    assert_true(total.opened > 1000 && total.refused > 1000); /* both sides were tried */
}

static void damaged_folders(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        size_t header;
        int count;
    } files[] = {{"config.json", 600, 1000},
                 {"model.safetensors", 2500, 1500},
                 {"tokenizer.json", 1000, 600},
                 {"tokenizer_config.json", 500, 200},
                 {"generation_config.json", 100, 200}};
    char folder[64], from[256];
    folder_make(folder);
    for (size_t f = 0; f < sizeof files / sizeof *files; f++) {
        size_t size = 0;
        snprintf(from, sizeof from, "golden/models/llama-text/%s", files[f].name);
        void *data = read_whole(from, &size);
        assert_non_null(data);
        folder_write(folder, files[f].name, data, size);
        free(data);
    }
    outcomes total = {0};
    int first = 100000;
    for (size_t f = 0; f < sizeof files / sizeof *files; f++) {
        snprintf(from, sizeof from, "golden/models/llama-text/%s", files[f].name);
        mutate_file(from, folder, files[f].name, folder, files[f].header, first, files[f].count,
                    &total);
        first += files[f].count;
    }
    folder_remove(folder);
    assert_int_equal(total.opened + total.refused, 3500);
    assert_true(total.opened > 300 && total.refused > 300);
}

/* --- Weights that are no numbers ------------------------------------------------------------- */

/* A model of 11 tokens and one layer, whose tensor `name` (may be NULL) is filled with `fill`. */
static void write_small_model(const char *folder, const char *name, float fill)
{
    folder_write_text(folder, "config.json",
                      "{\"model_type\":\"llama\",\"hidden_size\":32,\"intermediate_size\":48,"
                      "\"num_hidden_layers\":1,\"num_attention_heads\":4,"
                      "\"num_key_value_heads\":2,\"vocab_size\":11,"
                      "\"max_position_embeddings\":64}");
    file_tensor list[] = {{"model.embed_tokens.weight", 2, {11, 32}, 0.1f, 1e-3f},
                          {"model.layers.0.input_layernorm.weight", 1, {32, 0}, 1, 0},
                          {"model.layers.0.self_attn.q_proj.weight", 2, {32, 32}, -0.1f, 1e-4f},
                          {"model.layers.0.self_attn.k_proj.weight", 2, {16, 32}, 0.1f, 1e-4f},
                          {"model.layers.0.self_attn.v_proj.weight", 2, {16, 32}, 0.1f, 1e-4f},
                          {"model.layers.0.self_attn.o_proj.weight", 2, {32, 32}, 0.1f, 0},
                          {"model.layers.0.post_attention_layernorm.weight", 1, {32, 0}, 1, 0},
                          {"model.layers.0.mlp.gate_proj.weight", 2, {48, 32}, 0.1f, 0},
                          {"model.layers.0.mlp.up_proj.weight", 2, {48, 32}, 0.1f, 0},
                          {"model.layers.0.mlp.down_proj.weight", 2, {32, 48}, 0.1f, 0},
                          {"model.norm.weight", 1, {32, 0}, 1, 0},
                          {"lm_head.weight", 2, {11, 32}, -0.2f, 1e-3f}};
    enum { N = sizeof list / sizeof *list };
    for (size_t i = 0; i < N; i++) {
        if (name && strcmp(list[i].name, name) == 0) list[i].fill = fill;
    }
    folder_write_safetensors(folder, list, N);
}

/* The embedding of a token of that model becomes NaN. Embeddings are the file's first tensor. */
static void spoil_embedding(const char *folder, int32_t token)
{
    char path[128];
    uint64_t header;
    float row[32];
    for (int i = 0; i < 32; i++)
        row[i] = NAN;
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    assert_int_equal(fread(&header, sizeof header, 1, file), 1);
    assert_int_equal(fseek(file, (long)(8 + header + (size_t)token * sizeof row), SEEK_SET), 0);
    assert_int_equal(fwrite(row, sizeof row, 1, file), 1);
    assert_int_equal(fclose(file), 0);
}

/* NaN and infinity through every layer and out of the sampler: some token comes, none outside the
 * vocabulary, whatever the settings. */
static void weights_that_are_not_numbers(void **state)
{
    (void)state;
    static const float fills[] = {NAN, INFINITY, -INFINITY, 3e38f};
    static const char *const names[] = {
        "lm_head.weight", "model.embed_tokens.weight", "model.layers.0.input_layernorm.weight",
        "model.layers.0.self_attn.k_proj.weight", "model.layers.0.mlp.down_proj.weight"};
    char folder[64];
    int refused = 0;
    folder_make(folder);
    for (int k = 0; k < 20; k++) {
        write_small_model(folder, names[k % 5], fills[k / 5]);
        for (int exec = 0; exec < 2; exec++) {
            qp_engine *engine = open_engine(
                (qp_engine_options){.model = folder, .exec = exec ? "operators" : "reference"});
            for (int way = 0; way < 4; way++) {
                qp_sampling s = {.size = sizeof s};
                assert_int_equal(qp_sampling_defaults(engine, &s, NULL), QP_OK);
                assert_ok(qp_sampling_set(&s, QP_TEMPERATURE, way, QP_FROM_REQUEST, &error));
                if (way == 2) {
                    assert_ok(qp_sampling_set(&s, QP_TOP_P, 0.5, QP_FROM_REQUEST, &error));
                    assert_ok(qp_sampling_set(&s, QP_MIN_P, 0.5, QP_FROM_REQUEST, &error));
                    assert_ok(qp_sampling_set(&s, QP_TOP_K, 3, QP_FROM_REQUEST, &error));
                }
                if (way == 3)
                    assert_ok(
                        qp_sampling_set(&s, QP_FREQUENCY_PENALTY, 2, QP_FROM_REQUEST, &error));
                qp_session *session = open_session(engine);
                const int32_t prompt[] = {1, 2, 3};
                qp_generate_options o = {.size = sizeof o,
                                         .prompt = prompt,
                                         .n_prompt = 3,
                                         .sampling = &s,
                                         .max_tokens = 5};
                qp_generate_result result = {.size = sizeof result};
                qp_status status = qp_generate(session, &o, &result, &error);
                if (status == QP_OK)
                    assert_int_equal(result.generated_tokens, 5);
                else
                    assert_true(ends_by_logits(status));
                refused += status != QP_OK;
                qp_session_close(session);
            }
            qp_engine_close(engine);
        }
    }
    assert_true(refused > 0);
    folder_remove(folder);
}

/* The first tokens of an answer come from finite logits; the one whose embedding is NaN is among
 * them. */
static void numbers_that_end_within_an_answer(void **state)
{
    (void)state;
    enum { SPOILT = 7 };
    static const struct {
        qp_setting setting;
        double value;
    } ways[] = {{QP_TEMPERATURE, 0},
                {QP_TEMPERATURE, 1},
                {QP_REPETITION_PENALTY, 1.1},
                {QP_FREQUENCY_PENALTY, 0.5}};
    static const char *const execs[] = {"reference", "serial", "operators", "threads"};
    static const qp_logit_bias biases[] = {{SPOILT, 1000}};
    static const int32_t prompt[] = {1, 2, 3};
    char folder[64];
    folder_make(folder);
    write_small_model(folder, NULL, 0);
    spoil_embedding(folder, SPOILT);
    for (int i = 0; i < 4; i++) {
        qp_engine *engine = open_engine((qp_engine_options){.model = folder, .exec = execs[i]});
        for (int way = 0; way < 4; way++) {
            qp_session *session = open_session(engine);
            qp_sampling s = {.size = sizeof s};
            assert_ok(qp_sampling_defaults(engine, &s, &error));
            assert_ok(
                qp_sampling_set(&s, ways[way].setting, ways[way].value, QP_FROM_REQUEST, &error));
            s.logit_bias = biases;
            s.n_logit_bias = 1;
            s.n_stop_tokens = 0;
            const qp_generate_options o = {
                .size = sizeof o, .prompt = prompt, .n_prompt = 3, .sampling = &s, .max_tokens = 5};
            qp_generate_result result = {.size = sizeof result};
            assert_true(ends_by_logits(qp_generate(session, &o, &result, &error)));
            assert_non_null(strstr(error.message, "after token 3 "));
            assert_in_range(result.generated_tokens, 1, 2);
            qp_session_close(session);
        }
        qp_engine_close(engine);
    }
    folder_remove(folder);
}

/* What is no model: devices, folders, empty and unreadable files. */
static void things_that_are_no_models(void **state)
{
    (void)state;
    static const char *const paths[] = {
        "/dev/null",          "/dev/zero", "/dev/full", "/proc/self/mem",
        "/proc/self/cmdline", "/",         "",          "golden/manifest.json/x"};
    outcomes total = {0};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
        try_engine(paths[i], (int)i, &total);
    assert_int_equal(total.opened, 0);
    char folder[64], path[128];
    folder_make(folder);
    snprintf(path, sizeof path, "%s/model.gguf", folder);
    folder_write(folder, "model.gguf", "", 0);
    try_engine(path, 0, &total);
    folder_write(folder, "model.gguf", "GGUF", 4);
    try_engine(path, 1, &total);
    folder_write(folder, "config.json", "", 0);
    try_engine(folder, 2, &total);
    assert_int_equal(total.opened, 0);
    folder_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(damaged_gguf_files),
        cmocka_unit_test(damaged_folders),
        cmocka_unit_test(weights_that_are_not_numbers),
        cmocka_unit_test(numbers_that_end_within_an_answer),
        cmocka_unit_test(things_that_are_no_models),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
