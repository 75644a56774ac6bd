/* Reads sentencepiece's tokenizer.model, a protobuf message, without a protobuf library.
 *
 * The message has only four kinds of fields and a nesting of two, so the reader is a cursor that
 * never leaves its bytes. Field numbers are those of sentencepiece_model.proto.
 */
#include "text/settings.h"

#include <string.h>

/* --- Protobuf. --- */

typedef struct cursor {
    const uint8_t *at, *end;
} cursor;

typedef enum wire_type { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 } wire_type;

typedef struct field {
    uint32_t number;
    wire_type type;
    uint64_t value; /* of a varint or a fixed-width field */
    cursor bytes;   /* of WIRE_BYTES */
} field;

static bool read_varint(cursor *c, uint64_t *out)
{
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 64 && c->at < c->end; shift += 7) {
        uint8_t byte = *c->at++;
        value |= (uint64_t)(byte & 0x7F) << shift;
        if (!(byte & 0x80)) {
            *out = value;
            return true;
        }
    }
    return false;
}

static bool read_fixed(cursor *c, size_t width, uint64_t *out)
{
    if ((size_t)(c->end - c->at) < width) return false;
    *out = 0;
    for (size_t i = 0; i < width; i++)
        *out |= (uint64_t)c->at[i] << 8 * i;
    c->at += width;
    return true;
}

/* Reads the next field; false at the end (at == end) and where the bytes are not a field. */
static bool read_field(cursor *c, field *out)
{
    uint64_t tag, size;
    if (c->at == c->end || !read_varint(c, &tag) || tag >> 3 > UINT32_MAX) return false;
    *out = (field){.number = (uint32_t)(tag >> 3), .type = (wire_type)(tag & 7)};
    switch (out->type) {
    case WIRE_VARINT:
        return read_varint(c, &out->value);
    case WIRE_64:
        return read_fixed(c, 8, &out->value);
    case WIRE_32:
        return read_fixed(c, 4, &out->value);
    case WIRE_BYTES:
        if (!read_varint(c, &size) || size > (uint64_t)(c->end - c->at)) return false;
        out->bytes = (cursor){c->at, c->at + size};
        c->at += size;
        return true;
    }
    return false;
}

/* --- The model. --- */

enum { MODEL_PIECES = 1, MODEL_TRAINER = 2, MODEL_NORMALIZER = 3, MODEL_DENORMALIZER = 5 };
enum { PIECE_TEXT = 1, PIECE_SCORE = 2, PIECE_TYPE = 3 };
enum { TRAINER_MODEL_TYPE = 3, TRAINER_SUFFIX = 24, TRAINER_FALLBACK = 35, TRAINER_UNK = 40 };
enum { TRAINER_BOS = 41, TRAINER_EOS = 42, TRAINER_PAD = 43, TRAINER_UNK_SURFACE = 44 };
enum { TRAINER_BPE = 2 };
enum { NORMALIZER_MAP = 2, NORMALIZER_PREFIX = 3, NORMALIZER_EXTRA = 4, NORMALIZER_ESCAPE = 5 };

typedef struct reader {
    const char *where;
    const uint8_t *start;
    tokenizer *tokenizer;
    int64_t limit; /* of ids */
    int32_t next_id;
    uint64_t model_type; /* sentencepiece's default is unigram, 1 */
    bool has_map, is_suffixed, byte_fallback;
    bool add_prefix, remove_extra, escape;
    int32_t unk, bos, eos, pad;
    cursor unk_surface; /* text of a decoded unknown token */
} reader;

static qp_status damaged(const reader *r, const cursor *c, qp_error *error)
{
    return error_set(error, QP_FORMAT,
                     "%s: not a sentencepiece model: the protobuf message breaks off or is damaged "
                     "at byte %zu",
                     r->where, (size_t)(c->at - r->start));
}

static qp_status set_piece(reader *r, cursor text, float score, uint64_t type, qp_error *error)
{
    vocabulary *vocabulary = &r->tokenizer->vocabulary;
    if (type < PIECE_NORMAL || type > PIECE_BYTE)
        return error_set(error, QP_FORMAT, "%s: piece %d has type %llu, expected 1 .. 6", r->where,
                         r->next_id, (unsigned long long)type);
    int32_t id = r->next_id++;
    const char *bytes = (const char *)text.at;
    size_t length = (size_t)(text.end - text.at);
    char byte;
    unsigned flags = type == PIECE_CONTROL ? PIECE_ADDED : 0;
    if (type == PIECE_NORMAL || type == PIECE_USER_DEFINED || type == PIECE_UNUSED)
        flags |= PIECE_MODEL;
    /* As in sentencepiece: the byte token replaces a piece that is a NUL. */
    if (r->byte_fallback && length == 1 && *bytes == '\0') flags &= ~(unsigned)PIECE_MODEL;
    if (type == PIECE_UNKNOWN && r->unk_surface.at) {
        bytes = (const char *)r->unk_surface.at;
        length = (size_t)(r->unk_surface.end - r->unk_surface.at);
    }
    if (type == PIECE_BYTE) {
        int value = piece_byte(bytes, length);
        if (value < 0)
            return error_set(error, QP_FORMAT,
                             "%s: piece %d is of type BYTE but not written <0x00> .. <0xFF>",
                             r->where, id);
        byte = (char)value;
        bytes = &byte;
        length = 1;
    }
    TRY(vocabulary_set(vocabulary, id, r->limit, bytes, length, (piece_type)type, flags, r->where,
                       error));
    vocabulary_piece *piece = &vocabulary->pieces[id];
    piece->score = score;
    if (r->escape && (flags & PIECE_MODEL)) {
        bool is_reachable;
        char *own = vocabulary->text.data + piece->offset;
        piece->length = (uint32_t)piece_unmark_spaces(own, length, own, &is_reachable);
        if (!is_reachable) piece->flags &= (uint8_t)~PIECE_MODEL;
    }
    return QP_OK;
}

static qp_status read_piece(reader *r, cursor c, qp_error *error)
{
    cursor text = {c.at, c.at};
    uint64_t type = PIECE_NORMAL;
    float score = 0;
    field f;
    while (read_field(&c, &f)) {
        if (f.number == PIECE_TEXT && f.type == WIRE_BYTES) text = f.bytes;
        if (f.number == PIECE_TYPE && f.type == WIRE_VARINT) type = f.value;
        if (f.number == PIECE_SCORE && f.type == WIRE_32) {
            uint32_t bits = (uint32_t)f.value;
            memcpy(&score, &bits, sizeof score);
        }
    }
    if (c.at != c.end) return damaged(r, &c, error);
    return set_piece(r, text, score, type, error);
}

static void read_trainer_field(reader *r, const field *f)
{
    if (f->type == WIRE_BYTES && f->number == TRAINER_UNK_SURFACE) r->unk_surface = f->bytes;
    if (f->type != WIRE_VARINT) return;
    if (f->number == TRAINER_MODEL_TYPE) r->model_type = f->value;
    if (f->number == TRAINER_SUFFIX) r->is_suffixed = f->value != 0;
    if (f->number == TRAINER_FALLBACK) r->byte_fallback = f->value != 0;
    if (f->number == TRAINER_UNK) r->unk = (int32_t)(uint32_t)f->value;
    if (f->number == TRAINER_BOS) r->bos = (int32_t)(uint32_t)f->value;
    if (f->number == TRAINER_EOS) r->eos = (int32_t)(uint32_t)f->value;
    if (f->number == TRAINER_PAD) r->pad = (int32_t)(uint32_t)f->value;
}

static void read_normalizer_field(reader *r, const field *f, bool is_denormalizer)
{
    if (f->type == WIRE_BYTES && f->number == NORMALIZER_MAP && f->bytes.at < f->bytes.end)
        r->has_map = true;
    if (f->type != WIRE_VARINT || is_denormalizer) return;
    if (f->number == NORMALIZER_PREFIX) r->add_prefix = f->value != 0;
    if (f->number == NORMALIZER_EXTRA) r->remove_extra = f->value != 0;
    if (f->number == NORMALIZER_ESCAPE) r->escape = f->value != 0;
}

/* The settings come after the pieces in the file, but are needed to read the pieces: a first pass
 * reads the settings and counts the pieces. */
static qp_status read_settings(reader *r, cursor c, qp_error *error)
{
    size_t count = 0;
    field f, inner;
    while (read_field(&c, &f)) {
        if (f.type != WIRE_BYTES) continue;
        if (f.number == MODEL_PIECES) count++;
        bool is_normalizer = f.number == MODEL_NORMALIZER || f.number == MODEL_DENORMALIZER;
        if (f.number != MODEL_TRAINER && !is_normalizer) continue;
        while (read_field(&f.bytes, &inner)) {
            if (is_normalizer)
                read_normalizer_field(r, &inner, f.number == MODEL_DENORMALIZER);
            else
                read_trainer_field(r, &inner);
        }
        if (f.bytes.at != f.bytes.end) return damaged(r, &f.bytes, error);
    }
    if (c.at != c.end || count == 0) return damaged(r, &c, error);
    r->limit = (int64_t)count;
    return QP_OK;
}

static qp_status refuse_kinds(const reader *r, qp_error *error)
{
    const char *what = NULL;
    if (r->model_type != TRAINER_BPE) what = "is not a BPE model (unigram, word or char)";
    if (r->has_map) what = "normalizes text through a character map (NFKC or another)";
    if (r->is_suffixed) what = "marks spaces at the ends of words";
    if (!what) return QP_OK;
    return error_set(error, QP_UNSUPPORTED,
                     "%s: the sentencepiece model %s, which quipu does not do", r->where, what);
}

/* A special id counts only if its piece is a control token. */
static int32_t control_or_none(const vocabulary *vocabulary, int32_t id, piece_type type)
{
    bool is_it = id >= 0 && id < vocabulary->count && vocabulary->pieces[id].type == type;
    return is_it ? id : -1;
}

static qp_status read_model(reader *r, cursor c, const tokenizer_settings *settings,
                            qp_error *error)
{
    TRY(read_settings(r, c, error));
    TRY(refuse_kinds(r, error));
    field f;
    while (read_field(&c, &f)) {
        if (f.number == MODEL_PIECES && f.type == WIRE_BYTES) TRY(read_piece(r, f.bytes, error));
    }
    tokenizer *tokenizer = r->tokenizer;
    vocabulary *vocabulary = &tokenizer->vocabulary;
    tokenizer_special *special = &tokenizer->special;
    special->unknown = control_or_none(vocabulary, r->unk, PIECE_UNKNOWN);
    special->bos = control_or_none(vocabulary, r->bos, PIECE_CONTROL);
    special->eos = control_or_none(vocabulary, r->eos, PIECE_CONTROL);
    special->padding = control_or_none(vocabulary, r->pad, PIECE_CONTROL);
    vocabulary->unknown_id = special->unknown;
    vocabulary->fuse_unknown = true;
    tokenizer->default_flags = TOKENIZER_BOS; /* as in every model of the family */
    tokenizer->normalizer = (normalizer){
        .spaces_are_marked = r->escape,
        .remove_extra = r->remove_extra,
        .prefix = r->add_prefix ? SPACE_PREFIX_ALWAYS : SPACE_PREFIX_NEVER,
    };
    if (r->add_prefix) tokenizer->strip = DECODE_STRIP_ONE;
    if (r->remove_extra) tokenizer->strip = DECODE_STRIP_EACH;
    TRY(settings_add_tokens(settings, tokenizer, error));
    return vocabulary_index(vocabulary, error);
}

/* Llama 3's original tokenizer.model is not protobuf: it has lines "BASE64 RANK". */
static bool is_tiktoken(const uint8_t *data, size_t size)
{
    size_t i = 0;
    while (i < size && i < 64 &&
           (data[i] == '+' || data[i] == '=' || (data[i] | 0x20) >= 'a' ||
            (data[i] >= '/' && data[i] <= '9')) &&
           data[i] < 0x7B)
        i++;
    return i > 0 && i + 1 < size && data[i] == ' ' && data[i + 1] >= '0' && data[i + 1] <= '9';
}

qp_status tokenizer_build_sentencepiece(const void *data, size_t size, const char *where,
                                        const tokenizer_settings *settings, tokenizer **out,
                                        qp_error *error)
{
    *out = NULL;
    if (is_tiktoken(data, size))
        return error_set(error, QP_UNSUPPORTED,
                         "%s: this tokenizer.model is in tiktoken's form, which does not say how "
                         "text is split; use the model's tokenizer.json",
                         where);
    tokenizer *tokenizer;
    TRY(tokenizer_create(VOCABULARY_SCORES, &tokenizer, error));
    static const uint8_t unk_surface[] = " \xE2\x81\x87 ";
    reader r = {
        .where = where,
        .start = data,
        .tokenizer = tokenizer,
        .model_type = 1,
        .add_prefix = true,
        .remove_extra = true,
        .escape = true,
        .unk = 0,
        .bos = 1,
        .eos = 2,
        .pad = -1,
        .unk_surface = {unk_surface, unk_surface + sizeof unk_surface - 1},
    };
    cursor all = {data, (const uint8_t *)data + size};
    qp_status status = read_model(&r, all, settings, error);
    if (status != QP_OK) {
        tokenizer_free(tokenizer);
        return status;
    }
    return tokenizer_finish(tokenizer, where, out, error);
}
