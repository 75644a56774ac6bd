/* Synthetic models: presets, names, and the filling of rows: see synthetic.h. */
#include "file/synthetic.h"

#include "base/strbuf.h"
#include "tensor/codec.h"
#include "tensor/codec_blocks.h"
#include "tensor/float8.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* clang-format off */
static const synthetic_config presets[] = {
/* name             family       hidden layers heads kv  dim  inter.  vocab   context  eps    theta     factor tied  window experts, used */
{"llama-3.2-1b",   "llama",      2048,  16,   32,   8,  64,  8192, 128256, 131072,  1e-5,  500000.0,  32,  true,     0,   0, 0},
{"llama-3.2-3b",   "llama",      3072,  28,   24,   8, 128,  8192, 128256, 131072,  1e-5,  500000.0,  32,  true,     0,   0, 0},
{"llama-3.1-8b",   "llama",      4096,  32,   32,   8, 128, 14336, 128256, 131072,  1e-5,  500000.0,   8,  false,    0,   0, 0},
{"llama-3.1-70b",  "llama",      8192,  80,   64,   8, 128, 28672, 128256, 131072,  1e-5,  500000.0,   8,  false,    0,   0, 0},
{"internlm2-1.8b", "internlm2",  2048,  24,   16,   8, 128,  8192,  92544,  32768,  1e-5, 1000000.0,   0,  false,    0,   0, 0},
{"smollm2-135m",   "llama",       576,  30,    9,   3,  64,  1536,  49152,   8192,  1e-5,  100000.0,   0,  true,     0,   0, 0},
{"mistral-7b",     "mistral",    4096,  32,   32,   8, 128, 14336,  32768,  32768,  1e-5, 1000000.0,   0,  false,    0,   0, 0},
{"qwen2.5-0.5b",   "qwen2",       896,  24,   14,   2,  64,  4864, 151936,  32768,  1e-6, 1000000.0,   0,  true,     0,   0, 0},
{"qwen2.5-1.5b",   "qwen2",      1536,  28,   12,   2, 128,  8960, 151936,  32768,  1e-6, 1000000.0,   0,  true,     0,   0, 0},
{"qwen3-0.6b",     "qwen3",      1024,  28,   16,   8, 128,  3072, 151936,  40960,  1e-6, 1000000.0,   0,  true,     0,   0, 0},
{"mistral-7b-v0.1","mistral",    4096,  32,   32,   8, 128, 14336,  32000,  32768,  1e-5,   10000.0,   0,  false, 4096,   0, 0},
{"qwen3-8b",       "qwen3",      4096,  36,   32,   8, 128, 12288, 151936,  40960,  1e-6, 1000000.0,   0,  false,    0,   0, 0},
{"smollm3-3b",     "smollm3",    2048,  36,   16,   4, 128, 11008, 128256,  65536,  1e-6, 5000000.0,   0,  true,     0,   0, 0},
{"gemma3-1b",      "gemma3",     1152,  26,    4,   1, 256,  6912, 262144,  32768,  1e-6, 1000000.0,   0,  true,   512,   0, 0},
{"gemma3-4b",      "gemma3",     2560,  34,    8,   4, 256, 10240, 262208, 131072,  1e-6, 1000000.0,   0,  true,  1024,   0, 0},
{"phi-4",          "phi3",       5120,  40,   40,  10, 128, 17920, 100352,  16384,  1e-5,  250000.0,   0,  false,    0,   0, 0},
{"phi-4-mini",     "phi3",       3072,  32,   24,   8, 128,  8192, 200064, 131072,  1e-5,   10000.0,   0,  true,     0,   0, 0},
{"tiny",           "llama",       256,   2,    4,   2,  64,   512,    512,   2048,  1e-5,   10000.0,   0,  false,    0,   0, 0},
{"tiny-qwen2",     "qwen2",       512,   2,   12,   2, 128,  1280,    512,   2048,  1e-6,   10000.0,   0,  true,     0,   0, 0},
{"tiny-qwen3",     "qwen3",       256,   2,    8,   4, 128,   512,    512,   2048,  1e-6,   10000.0,   0,  true,     0,   0, 0},
{"tiny-smollm3",   "smollm3",     256,   4,    8,   2,  64,   512,    512,   2048,  1e-6,   10000.0,   0,  true,     0,   0, 0},
{"tiny-mistral",   "mistral",     256,   2,    8,   2, 128,   512,    512,   2048,  1e-5,   10000.0,   0,  false,  100,   0, 0},
{"tiny-gemma2",    "gemma2",      256,   3,    4,   2, 128,   512,    512,   2048,  1e-6,   10000.0,   0,  true,   100,   0, 0},
{"tiny-gemma3",    "gemma3",      256,   4,    4,   2,  64,   512,    512,   2048,  1e-6, 1000000.0,   0,  true,   100,   0, 0},
{"tiny-granite",   "granite",     256,   2,    8,   2,  64,   512,    512,   2048,  1e-5,   10000.0,   0,  true,     0,   0, 0},
{"qwen3-30b-a3b",  "qwen3moe",   2048,  48,   32,   4, 128,   768, 151936,  40960,  1e-6, 1000000.0,   0,  false,    0, 128, 8},
{"olmoe-1b-7b",    "olmoe",      2048,  16,   16,  16, 128,  1024,  50304,   4096,  1e-5,   10000.0,   0,  false,    0,  64, 8},
{"gpt-oss-20b",    "gpt-oss",    2880,  24,   64,   8,  64,  2880, 201088, 131072,  1e-5,  150000.0,   0,  false,  128,  32, 4},
{"tiny-qwen3moe",  "qwen3moe",    256,   2,    8,   4, 128,   256,    512,   2048,  1e-6,   10000.0,   0,  false,    0,  16, 4},
{"tiny-olmoe",     "olmoe",       256,   2,    4,   4,  64,   256,    512,   2048,  1e-5,   10000.0,   0,  false,    0,   8, 2},
{"tiny-mixtral",   "mixtral",     256,   2,    8,   4,  64,   512,    512,   2048,  1e-5,   10000.0,   0,  false,    0,   4, 2},
{"tiny-gpt-oss",   "gpt-oss",     288,   4,    4,   2,  64,    96,    512,   2048,  1e-5,  150000.0,   0,  false,  100,   8, 2},
{"wide",           "llama",      8192,   2,   64,   8, 128,  3584,   4096,   8192,  1e-5,  500000.0,   8,  false,    0,   0, 0},
};
/* clang-format on */

/* For each type that can be made, the root mean square of a value whose unit is 1: of the sum of
 * two 16-bit numbers, of a quant, or of scale times quant. Uniform integers in n steps of s have
 * the mean square s^2 (n^2 - 1) / 12 around their middle, plus the square of the middle. */
static const struct {
    dtype type;
    double mean_square;
} makers[] = {
    {DTYPE_F32, (0x1p32 - 1) / 6},
    {DTYPE_F16, (0x1p32 - 1) / 6},
    {DTYPE_BF16, (0x1p32 - 1) / 6},
    {DTYPE_F8_128, (0x1p32 - 1) / 6}, /* before it is rounded to FP8 */
    {DTYPE_Q8_0, 5461},               /* odd, -127 .. 127 */
    {DTYPE_Q4_0, 21.25 + 0.25},       /* -8 .. 7 */
    {DTYPE_Q4_1, 21.25},              /* -7.5 .. 7.5 */
    {DTYPE_Q5_0, 85.25 + 0.25},       /* -16 .. 15 */
    {DTYPE_Q5_1, 85.25},              /* -15.5 .. 15.5 */
    {DTYPE_Q4_K,
     21.25 * 2341.5 + 28.125},    /* 32 .. 63 times -7.5 .. 7.5; half the minima off by 1 */
    {DTYPE_Q6_K, 341.5 * 2341.5}, /* 32 .. 63 times -32 .. 31 */
    {DTYPE_IQ4_NL, 4548},         /* the levels' */
    {DTYPE_IQ4_XS, 573.5 * 4548}, /* 16 .. 31 times the levels */
    {DTYPE_MXFP4, 34.25},         /* twice the numbers' */
};

static const double scale_mean_square = 1 + 21.0 / 1024; /* of 25, 27 .. 39 over 32 */

static const char prefix[] = "synthetic:";

const synthetic_config *synthetic_preset(int i)
{
    return i >= 0 && (size_t)i < sizeof presets / sizeof *presets ? &presets[i] : NULL;
}

bool synthetic_is_name(const char *text)
{
    return strncmp(text, prefix, sizeof prefix - 1) == 0;
}

/* 0 for a type that cannot be made. */
static double mean_square_of(dtype type)
{
    for (size_t i = 0; i < sizeof makers / sizeof *makers; i++) {
        if (makers[i].type == type) return makers[i].mean_square;
    }
    return 0;
}

bool synthetic_can_make(dtype type)
{
    return mean_square_of(type) != 0;
}

static qp_status unknown_preset(const char *text, const char *name, qp_error *error)
{
    strbuf choices = {0};
    for (int i = 0; synthetic_preset(i); i++)
        strbuf_printf(&choices, "%s%s", i ? ", " : "", synthetic_preset(i)->name);
    error_set(error, QP_INVALID, "%s: no preset \"%s\"; there are %s", text, name,
              strbuf_text(&choices));
    strbuf_free(&choices);
    return QP_INVALID;
}

static qp_status find_preset(const char *text, const char *name, const synthetic_config **out,
                             qp_error *error)
{
    for (int i = 0; synthetic_preset(i); i++) {
        if (strcmp(synthetic_preset(i)->name, name) != 0) continue;
        *out = synthetic_preset(i);
        return QP_OK;
    }
    return unknown_preset(text, name, error);
}

static qp_status find_type(const char *text, const char *name, dtype *out, qp_error *error)
{
    *out = dtype_from_name(name);
    if (*out == DTYPE_F8) *out = DTYPE_F8_128; /* weights in FP8 have scales */
    if (*out != DTYPE_COUNT && synthetic_can_make(*out)) return QP_OK;
    strbuf choices = {0};
    for (size_t i = 0; i < sizeof makers / sizeof *makers; i++)
        strbuf_printf(&choices, "%s%s", i ? ", " : "", dtype_name(makers[i].type));
    error_set(error, QP_INVALID, "%s: cannot make type \"%s\"; expected one of %s", text, name,
              strbuf_text(&choices));
    strbuf_free(&choices);
    return QP_INVALID;
}

static qp_status read_seed(const char *text, const char *digits, uint64_t *out, qp_error *error)
{
    char *end;
    errno = 0;
    unsigned long long seed = strtoull(digits, &end, 10);
    if (errno || *end || digits[strspn(digits, "0123456789")] || !*digits)
        return error_set(error, QP_INVALID,
                         "%s: the seed must be a whole number below 2^64, found \"%s\"", text,
                         digits);
    *out = seed;
    return QP_OK;
}

/* Every row of every matrix must be whole blocks of the type. */
static qp_status check_rows(const char *text, const synthetic_config *c, dtype type,
                            qp_error *error)
{
    const int64_t rows[] = {c->hidden_size, c->n_heads * c->head_dim, c->intermediate_size};
    int64_t block = dtype_block_elements(type);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (rows[i] % block == 0) continue;
        return error_set(error, QP_INVALID,
                         "%s: %s needs rows of a multiple of %lld elements, but %s has rows of "
                         "%lld: choose a type with blocks of 32, such as Q4_0 or Q8_0",
                         text, dtype_name(type), (long long)block, c->name, (long long)rows[i]);
    }
    return QP_OK;
}

/* The part up to the next `end`, NUL-terminated in place; *rest is the text after it, or NULL. */
static char *cut_field(char *text, char end, char **rest)
{
    char *at = strchr(text, end);
    if (at) *at = '\0';
    *rest = at ? at + 1 : NULL;
    return text;
}

bool synthetic_config_path(const char *text, char *path, size_t size)
{
    if (!synthetic_is_name(text)) return false;
    const char *name = text + sizeof prefix - 1;
    const size_t length = strcspn(name, ":"), json = sizeof ".json" - 1;
    const bool named = length >= json && strncmp(name + length - json, ".json", json) == 0;
    if (length >= size || !(named || memchr(name, '/', length))) return false;
    memcpy(path, name, length);
    path[length] = '\0';
    return true;
}

qp_status synthetic_parse(const char *text, const synthetic_config *own, dtype usual,
                          synthetic_spec *out, qp_error *error)
{
    char fields[4200], *type = NULL, *other = NULL, *seed = NULL;
    if (!synthetic_is_name(text) || strlen(text) >= sizeof fields)
        return error_set(error, QP_INVALID,
                         "%.100s: expected synthetic:PRESET[:TYPE[+OTHER][:SEED]], such as "
                         "synthetic:llama-3.2-1b:Q4_0",
                         text);
    strcpy(fields, text + sizeof prefix - 1);
    synthetic_spec spec = {.type = usual, .config = own};
    char *name = cut_field(fields, ':', &type);
    if (!own) TRY(find_preset(text, name, &spec.config, error));
    if (type) cut_field(type, ':', &seed);
    if (type) TRY(find_type(text, cut_field(type, '+', &other), &spec.type, error));
    spec.other = spec.type;
    if (other) TRY(find_type(text, other, &spec.other, error));
    if (seed) TRY(read_seed(text, seed, &spec.seed, error));
    TRY(check_rows(text, spec.config, spec.type, error));
    TRY(check_rows(text, spec.config, spec.other, error));
    *out = spec;
    return QP_OK;
}

synthetic_distribution synthetic_distribution_of(const synthetic_config *config,
                                                 synthetic_role role, int64_t fan_in)
{
    double deviation = 1;
    switch (role) {
    case SYNTHETIC_EMBEDDING: /* tied: the same matrix is the output projection */
        deviation = config->tied ? 1 / sqrt((double)config->hidden_size) : 1;
        break;
    case SYNTHETIC_LINEAR:
        deviation = 1 / sqrt((double)fan_in);
        break;
    case SYNTHETIC_RESIDUAL:
        deviation = 1 / sqrt((double)(fan_in * 2 * config->n_layers));
        break;
    case SYNTHETIC_NORM:
        return (synthetic_distribution){1.0f, 0.05f};
    case SYNTHETIC_BIAS:
        return (synthetic_distribution){0.0f, 0.02f};
    }
    return (synthetic_distribution){0.0f, (float)deviation};
}

/* FNV-1a (Fowler, Noll, Vo), mixed. */
uint64_t synthetic_tensor_id(const char *name)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (; *name; name++)
        hash = (hash ^ (unsigned char)*name) * 0x100000001b3u;
    return hash_mix(hash);
}

synthetic_stream synthetic_stream_of(const synthetic_spec *spec, uint64_t tensor_id, dtype type,
                                     synthetic_distribution distribution)
{
    double square = mean_square_of(type);
    if (dtype_is_quantized(type) && type != DTYPE_F8_128 && type != DTYPE_MXFP4)
        square *= scale_mean_square;
    return (synthetic_stream){
        .key = hash_mix(hash_mix(spec->seed) ^ tensor_id),
        .mean = distribution.mean,
        .unit = (float)((double)distribution.deviation / sqrt(square)),
    };
}

/* Elements [first, first + n) of a plain type as floats; both elements of a hash where possible. */
static void make_values(const synthetic_stream *stream, uint64_t first, int n, float *out)
{
    int i = 0;
    if (n > 0 && first & 1) out[i++] = synthetic_value(stream, first);
    for (; i + 1 < n; i += 2) {
        uint64_t word = synthetic_word(stream, (first + (uint64_t)i) >> 1);
        out[i] = synthetic_from_half(stream, (uint32_t)word);
        out[i + 1] = synthetic_from_half(stream, (uint32_t)(word >> 32));
    }
    if (i < n) out[i] = synthetic_value(stream, first + (uint64_t)i);
}

static void fill_plain(const synthetic_stream *stream, dtype type, uint64_t first, uint64_t count,
                       uint8_t *dst)
{
    enum { CHUNK = 512 };
    float values[CHUNK];
    uint16_t halves[CHUNK];
    for (uint64_t done = 0; done < count; done += CHUNK) {
        int n = count - done < CHUNK ? (int)(count - done) : CHUNK;
        make_values(stream, first + done, n, values);
        for (int i = 0; i < n && type == DTYPE_BF16; i++)
            halves[i] = f32_to_bf16(values[i]);
        for (int i = 0; i < n && type == DTYPE_F16; i++)
            halves[i] = f32_to_f16(values[i]);
        if (type == DTYPE_F32)
            memcpy(dst + 4 * done, values, 4 * (size_t)n);
        else
            memcpy(dst + 2 * done, halves, 2 * (size_t)n);
    }
}

/* All blocks of a row, of which there are `per_row`, have the row's scale. */
static void fill_f8(const synthetic_stream *stream, uint64_t first, uint64_t count,
                    uint64_t per_row, uint8_t *dst)
{
    float values[BLOCK_128];
    for (uint64_t i = first; i < first + count; i++, dst += sizeof(block_f8_128)) {
        block_f8_128 block = {.d = synthetic_f8_scale(stream, i / per_row)};
        const float inverse = 1 / block.d;
        make_values(stream, i * BLOCK_128, BLOCK_128, values);
        for (int j = 0; j < BLOCK_128; j++)
            block.qs[j] = f32_to_f8(values[j] * inverse);
        memcpy(dst, &block, sizeof block);
    }
}

void synthetic_fill(const synthetic_spec *spec, uint64_t tensor_id, dtype type,
                    synthetic_distribution distribution, void *dst, int64_t first_row, int64_t rows,
                    int64_t cols)
{
    assert(synthetic_can_make(type) && cols % dtype_block_elements(type) == 0);
    synthetic_stream stream = synthetic_stream_of(spec, tensor_id, type, distribution);
    uint64_t per_row = (uint64_t)(cols / dtype_block_elements(type));
    uint64_t first = (uint64_t)first_row * per_row, count = (uint64_t)rows * per_row;
    if (!dtype_is_quantized(type)) {
        fill_plain(&stream, type, first, count, dst);
        return;
    }
    if (type == DTYPE_F8_128) {
        fill_f8(&stream, first, count, per_row, dst);
        return;
    }
    assert(distribution.mean == 0.0f);
    size_t bytes = dtype_block_bytes(type);
    for (uint64_t i = 0; i < count; i++)
        synthetic_block(&stream, type, first + i, (uint8_t *)dst + i * bytes);
}
