/* The parts of a tokenizer.json around its model: see json_pipeline.h. */
#include "text/json_pipeline.h"

#include <string.h>

/* The most nested Sequences; real files have at most two. */
enum { MAX_DEPTH = 8 };

static const char space_mark[] = "\xE2\x96\x81";

static bool is_type(const cJSON *item, const char *type)
{
    return strcmp(json_text(item, "type"), type) == 0;
}

static bool is_text(const cJSON *item, const char *text)
{
    return cJSON_IsString(item) && strcmp(item->valuestring, text) == 0;
}

static qp_status refuse(const cJSON *item, const char *part, const char *where, qp_error *error)
{
    return error_set(error, QP_UNSUPPORTED,
                     "%s: %s of type \"%.64s\", as it is set up there, is not one that quipu "
                     "knows; text would not become the right tokens",
                     where, part, json_text(item, "type"));
}

bool json_is_byte_level(const cJSON *root)
{
    const cJSON *pre = json_get(root, "pre_tokenizer");
    if (is_type(pre, "ByteLevel")) return true;
    const cJSON *step;
    cJSON_ArrayForEach(step, json_get(pre, "pretokenizers"))
    {
        if (is_type(step, "ByteLevel")) return true;
    }
    return false;
}

/* --- Normalizer. --- */

static qp_status read_normalizer(const cJSON *item, tokenizer *tokenizer, const char *where,
                                 int depth, qp_error *error)
{
    normalizer *normalizer = &tokenizer->normalizer;
    if (is_type(item, "Sequence") && depth < MAX_DEPTH) {
        const cJSON *step;
        cJSON_ArrayForEach(step, json_get(item, "normalizers"))
            TRY(read_normalizer(step, tokenizer, where, depth + 1, error));
        return QP_OK;
    }
    if (is_type(item, "Prepend") && is_text(json_get(item, "prepend"), space_mark) &&
        normalizer->prefix == SPACE_PREFIX_NEVER) {
        normalizer->prefix = SPACE_PREFIX_ALWAYS;
        return QP_OK;
    }
    if (is_type(item, "Replace") && is_text(json_get(json_get(item, "pattern"), "String"), " ") &&
        is_text(json_get(item, "content"), space_mark)) {
        normalizer->spaces_are_marked = normalizer->marks_first = true;
        return QP_OK;
    }
    if (is_type(item, "NFC") && normalizer_is_identity(normalizer)) {
        normalizer->nfc = true;
        return QP_OK;
    }
    return refuse(item, "a normalizer", where, error);
}

qp_status json_read_normalizer(const cJSON *item, tokenizer *tokenizer, const char *where,
                               qp_error *error)
{
    if (!item) return QP_OK;
    TRY(read_normalizer(item, tokenizer, where, 0, error));
    const normalizer *normalizer = &tokenizer->normalizer;
    const bool bytes = tokenizer->vocabulary.kind == VOCABULARY_BYTES;
    const bool alone = !normalizer->spaces_are_marked && normalizer->prefix == SPACE_PREFIX_NEVER;
    if (bytes ? alone : normalizer->spaces_are_marked && !normalizer->nfc) return QP_OK;
    return normalizer_is_identity(normalizer) ? QP_OK : refuse(item, "a normalizer", where, error);
}

/* --- Pre-tokenizer. --- */

static qp_status read_behavior(const cJSON *item, split_behavior *out, const char *where,
                               qp_error *error)
{
    static const char *const names[] = {
        [SPLIT_ISOLATED] = "Isolated",
        [SPLIT_REMOVED] = "Removed",
        [SPLIT_MERGED_WITH_PREVIOUS] = "MergedWithPrevious",
        [SPLIT_MERGED_WITH_NEXT] = "MergedWithNext",
        [SPLIT_CONTIGUOUS] = "Contiguous",
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (!is_text(json_get(item, "behavior"), names[i])) continue;
        *out = (split_behavior)i;
        return QP_OK;
    }
    return refuse(item, "a pre-tokenizer", where, error);
}

static qp_status read_split(const cJSON *item, tokenizer *tokenizer, const char *where,
                            qp_error *error)
{
    const cJSON *pattern = json_get(item, "pattern");
    const cJSON *expression = json_get(pattern, "Regex");
    const cJSON *literal = json_get(pattern, "String");
    const cJSON *text = expression ? expression : literal;
    if (!cJSON_IsString(text))
        return error_set(error, QP_FORMAT,
                         "%s: a Split pre-tokenizer needs \"pattern\": {\"Regex\": ...} or "
                         "{\"String\": ...}, found %s",
                         where, json_type_name(text ? text : pattern));
    pre_step step = {0};
    TRY(read_behavior(item, &step.behavior, where, error));
    TRY(json_get_bool(item, "invert", where, &step.invert, error));
    TRY(regex_compile(text->valuestring, strlen(text->valuestring), !expression, where, &step.split,
                      error));
    return pre_tokenizer_add(&tokenizer->pre, step, where, error);
}

static qp_status read_digits(const cJSON *item, tokenizer *tokenizer, const char *where,
                             qp_error *error)
{
    /* Digits are what Rust's char::is_numeric accepts: every kind of number, not only decimals. */
    bool individual = false;
    TRY(json_get_bool(item, "individual_digits", where, &individual, error));
    return pre_tokenizer_add_split(&tokenizer->pre, "\\p{N}",
                                   individual ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS, where, error);
}

static qp_status read_byte_level(const cJSON *item, tokenizer *tokenizer, const char *where,
                                 qp_error *error)
{
    bool prefix = true, use_regex = true;
    TRY(json_get_bool(item, "add_prefix_space", where, &prefix, error));
    TRY(json_get_bool(item, "use_regex", where, &use_regex, error));
    pre_step step = {.prefix = SPACE_PREFIX_ALWAYS};
    if (prefix) TRY(pre_tokenizer_add(&tokenizer->pre, step, where, error));
    if (!use_regex) return QP_OK;
    return pre_tokenizer_add_split(&tokenizer->pre, gpt2_pattern, SPLIT_ISOLATED, where, error);
}

static qp_status read_metaspace(const cJSON *item, tokenizer *tokenizer, const char *where,
                                qp_error *error)
{
    const char *scheme = NULL;
    bool prefix = true, split = true;
    TRY(json_get_string(item, "prepend_scheme", where, &scheme, error));
    TRY(json_get_bool(item, "add_prefix_space", where, &prefix, error)); /* the older form */
    TRY(json_get_bool(item, "split", where, &split, error));
    if (!scheme) scheme = prefix ? "always" : "never";
    pre_step step = {.prefix = SPACE_PREFIX_NEVER};
    if (strcmp(scheme, "always") == 0) step.prefix = SPACE_PREFIX_ALWAYS;
    if (strcmp(scheme, "first") == 0) step.prefix = SPACE_PREFIX_FIRST;
    if (!is_text(json_get(item, "replacement"), space_mark) || tokenizer->pre.count > 0 ||
        tokenizer->vocabulary.kind == VOCABULARY_BYTES ||
        (step.prefix == SPACE_PREFIX_NEVER && strcmp(scheme, "never") != 0))
        return refuse(item, "a pre-tokenizer", where, error);
    tokenizer->normalizer.spaces_are_marked = true;
    if (step.prefix != SPACE_PREFIX_NEVER)
        TRY(pre_tokenizer_add(&tokenizer->pre, step, where, error));
    if (!split) return QP_OK;
    return pre_tokenizer_add_split(&tokenizer->pre, " ", SPLIT_MERGED_WITH_NEXT, where, error);
}

static qp_status read_pre_tokenizer(const cJSON *item, tokenizer *tokenizer, const char *where,
                                    bool *done, int depth, qp_error *error)
{
    if (is_type(item, "Sequence") && depth < MAX_DEPTH) {
        const cJSON *step;
        cJSON_ArrayForEach(step, json_get(item, "pretokenizers"))
            TRY(read_pre_tokenizer(step, tokenizer, where, done, depth + 1, error));
        return QP_OK;
    }
    /* After ByteLevel the text consists of letters that stand for bytes; nothing here reads it. */
    if (*done) return refuse(item, "a pre-tokenizer", where, error);
    if (is_type(item, "Split")) return read_split(item, tokenizer, where, error);
    if (is_type(item, "Digits")) return read_digits(item, tokenizer, where, error);
    if (is_type(item, "Metaspace")) return read_metaspace(item, tokenizer, where, error);
    if (!is_type(item, "ByteLevel") || tokenizer->vocabulary.kind != VOCABULARY_BYTES)
        return refuse(item, "a pre-tokenizer", where, error);
    *done = true;
    return read_byte_level(item, tokenizer, where, error);
}

qp_status json_read_pre_tokenizer(const cJSON *item, tokenizer *tokenizer, const char *where,
                                  qp_error *error)
{
    bool done = false;
    return item ? read_pre_tokenizer(item, tokenizer, where, &done, 0, error) : QP_OK;
}

/* --- Post-processor. --- */

/* The id of a special token that a template names. */
static qp_status template_id(const cJSON *processor, const cJSON *piece, int32_t *out,
                             const char *where, qp_error *error)
{
    const cJSON *name = json_get(json_get(piece, "SpecialToken"), "id");
    const cJSON *tokens = json_get(processor, "special_tokens");
    const cJSON *token = cJSON_IsString(name) ? json_get(tokens, name->valuestring) : NULL;
    const cJSON *ids = json_get(token, "ids");
    const cJSON *id = cJSON_GetArraySize(ids) == 1 ? cJSON_GetArrayItem(ids, 0) : NULL;
    double value = cJSON_IsNumber(id) ? id->valuedouble : -1;
    if (!(value >= 0 && value < INT32_MAX) || *out >= 0)
        return refuse(processor, "a post-processor", where, error);
    *out = (int32_t)value;
    return QP_OK;
}

static qp_status read_template(const cJSON *item, tokenizer *tokenizer, const char *where,
                               qp_error *error)
{
    int32_t before = -1, after = -1;
    bool seen_text = false;
    const cJSON *piece;
    cJSON_ArrayForEach(piece, json_get(item, "single"))
    {
        if (json_get(piece, "Sequence"))
            seen_text = true;
        else
            TRY(template_id(item, piece, seen_text ? &after : &before, where, error));
    }
    if (before >= 0) {
        tokenizer->special.bos = before;
        tokenizer->default_flags |= TOKENIZER_BOS;
    }
    if (after >= 0) {
        tokenizer->special.eos = after;
        tokenizer->default_flags |= TOKENIZER_EOS;
    }
    return QP_OK;
}

static qp_status read_post_processor(const cJSON *item, tokenizer *tokenizer, const char *where,
                                     int depth, qp_error *error)
{
    if (is_type(item, "Sequence") && depth < MAX_DEPTH) {
        const cJSON *step;
        cJSON_ArrayForEach(step, json_get(item, "processors"))
            TRY(read_post_processor(step, tokenizer, where, depth + 1, error));
        return QP_OK;
    }
    if (is_type(item, "ByteLevel")) return QP_OK; /* moves offsets, not ids */
    if (is_type(item, "TemplateProcessing")) return read_template(item, tokenizer, where, error);
    return refuse(item, "a post-processor", where, error);
}

qp_status json_read_post_processor(const cJSON *item, tokenizer *tokenizer, const char *where,
                                   qp_error *error)
{
    return item ? read_post_processor(item, tokenizer, where, 0, error) : QP_OK;
}

/* --- Decoder. --- */

static qp_status read_decoder(const cJSON *item, tokenizer *tokenizer, const char *where, int depth,
                              qp_error *error)
{
    if (is_type(item, "Sequence") && depth < MAX_DEPTH) {
        const cJSON *step;
        cJSON_ArrayForEach(step, json_get(item, "decoders"))
            TRY(read_decoder(step, tokenizer, where, depth + 1, error));
        return QP_OK;
    }
    bool bytes = tokenizer->vocabulary.kind == VOCABULARY_BYTES;
    if (is_type(item, "ByteLevel") && bytes) return QP_OK;
    if (is_type(item, "ByteFallback") || is_type(item, "Fuse")) return QP_OK;
    if (is_type(item, "Replace") && is_text(json_get(item, "content"), " ") &&
        is_text(json_get(json_get(item, "pattern"), "String"), space_mark))
        return QP_OK;
    const cJSON *start = json_get(item, "start"), *stop = json_get(item, "stop");
    bool strips_one = is_type(item, "Strip") && is_text(json_get(item, "content"), " ") &&
                      cJSON_IsNumber(start) && start->valueint == 1 &&
                      !(cJSON_IsNumber(stop) && stop->valueint != 0);
    bool is_metaspace = is_type(item, "Metaspace") && !bytes;
    if (!strips_one && !is_metaspace) return refuse(item, "a decoder", where, error);
    bool keeps = is_metaspace && (is_text(json_get(item, "prepend_scheme"), "never") ||
                                  cJSON_IsFalse(json_get(item, "add_prefix_space")));
    if (!keeps) tokenizer->strip = DECODE_STRIP_ONE;
    return QP_OK;
}

qp_status json_read_decoder(const cJSON *item, tokenizer *tokenizer, const char *where,
                            qp_error *error)
{
    return item ? read_decoder(item, tokenizer, where, 0, error) : QP_OK;
}
