/* A schedule's queues in a file.
 *
 *     header       128 bytes, below
 *     per_pass     uint32 [counters]
 *     lengths      int32 [workers]
 *     queues       int32 [workers][longest][32]; after a queue's end noops, or zeros
 *
 * All little-endian. A file of several ranks has all of this for each rank in turn. The program
 * that records refer to is not in the file: it is built again from the model, and the fingerprint
 * says whether it is the same. A schedule that was read is proved sound before it may run, like any
 * other; the checksum only shows that the file is damaged.
 */
#include "base/checked.h"
#include "base/hash.h"
#include "file/mapping.h"
#include "schedule/build.h"
#include "schedule/draft.h"
#include "schedule/verify.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "files are read and written as they are");

enum { FILE_VERSION = 1 };
static const char magic[8] = {'Q', 'U', 'I', 'P', 'U', 'S', 'C', 'H'};

typedef struct file_header {
    char magic[8];
    uint32_t version, workers, longest, n_counters;
    uint64_t fingerprint; /* of the program */
    uint64_t checksum;    /* of the header with 0 here, and of all that follows */
    uint32_t setting, assignment, last_step, zero;
    int64_t tokens, context, tile, group;
    double memory_fraction;
    machine_profile profile;
    uint64_t zeros;
} file_header;

_Static_assert(sizeof(file_header) == 128 && sizeof(instruction) == 128, "as the format says");

/* Words of 32 bits into a hash; all parts of the file are whole words. */
static uint64_t sum(uint64_t hash, const void *bytes, size_t n_bytes)
{
    const unsigned char *at = bytes;
    for (size_t i = 0; i < n_bytes; i += sizeof(uint32_t)) {
        uint32_t word;
        memcpy(&word, at + i, sizeof word);
        hash = hash_mix(hash ^ word);
    }
    return hash;
}

static size_t queue_bytes(const schedule *s)
{
    return (size_t)s->options.workers * (size_t)s->longest * sizeof(instruction);
}

static uint64_t checksum_of(file_header header, const void *rest, size_t n_bytes)
{
    header.checksum = 0;
    return sum(sum(0, &header, sizeof header), rest, n_bytes);
}

static file_header header_of(const schedule *s)
{
    const schedule_options *o = &s->options;
    file_header h = {.version = FILE_VERSION,
                     .workers = (uint32_t)o->workers,
                     .longest = (uint32_t)s->longest,
                     .n_counters = (uint32_t)s->n_counters,
                     .fingerprint = s->program->form_fingerprint,
                     .setting = (uint32_t)o->setting,
                     .assignment = (uint32_t)o->assignment,
                     .last_step = (uint32_t)o->last_step,
                     .tokens = o->tokens,
                     .context = o->context,
                     .tile = o->tile,
                     .group = o->group,
                     .memory_fraction = o->memory_fraction,
                     .profile = o->profile};
    memcpy(h.magic, magic, sizeof magic);
    return h;
}

void schedule_write(const schedule *s, strbuf *out)
{
    const size_t counters = (size_t)s->n_counters * sizeof *s->per_pass;
    const size_t lengths = (size_t)s->options.workers * sizeof *s->length;
    file_header h = header_of(s);
    h.checksum = sum(sum(sum(sum(0, &h, sizeof h), s->per_pass, counters), s->length, lengths),
                     s->instructions, queue_bytes(s));
    strbuf_append(out, &h, sizeof h);
    strbuf_append(out, s->per_pass, counters);
    strbuf_append(out, s->length, lengths);
    strbuf_append(out, s->instructions, queue_bytes(s));
}

qp_status schedule_save(const schedule *ranks, int n_ranks, const char *path, qp_error *error)
{
    strbuf bytes = {0};
    for (int r = 0; r < n_ranks; r++)
        schedule_write(&ranks[r], &bytes);
    if (bytes.failed) {
        strbuf_free(&bytes);
        return error_no_memory(error, "the schedule's file", queue_bytes(ranks));
    }
    FILE *file = fopen(path, "wb");
    bool written = file && fwrite(bytes.data, 1, bytes.length, file) == bytes.length;
    if (file && fclose(file) != 0) written = false;
    strbuf_free(&bytes);
    if (written) return QP_OK;
    return error_set(error, QP_IO, "%s: cannot be written: %s", path, strerror(errno));
}

/* The schedule of one rank in a file, and what comes after it. */
typedef struct section {
    const char *path;
    const uint8_t *data;
    size_t size; /* to the end of the file */
} section;

/* Choices, and reserved words. */
static qp_status check_words(const section *from, const file_header *h, qp_error *error)
{
    if (!schedule_setting_name((int)h->setting) || !schedule_assignment_name((int)h->assignment) ||
        h->last_step > UINT16_MAX)
        return error_set(error, QP_FORMAT, "%s: setting %u with assignment %u is none", from->path,
                         h->setting, h->assignment);
    if (h->zero == 0 && h->zeros == 0) return QP_OK;
    return error_set(error, QP_FORMAT,
                     "%s: the reserved words of its header must be 0, found %u and %llu: make it "
                     "anew",
                     from->path, h->zero, (unsigned long long)h->zeros);
}

/* Reads the header and compares its sizes with the file's. *bytes: of the section. */
static qp_status read_header(const section *at, file_header *h, size_t *bytes, qp_error *error)
{
    if (at->size < sizeof *h || memcmp(at->data, magic, sizeof magic) != 0)
        return error_set(error, QP_FORMAT, "%s: not a schedule (it should begin with \"%.8s\")",
                         at->path, magic);
    memcpy(h, at->data, sizeof *h);
    if (h->version != FILE_VERSION)
        return error_set(error, QP_FORMAT,
                         "%s: version %u of the format, expected %d: make it anew", at->path,
                         h->version, FILE_VERSION);
    size_t rest = (size_t)h->n_counters + h->workers;
    bool fits = h->workers >= 1 && h->workers <= SCHEDULE_MAX_WORKERS && h->n_counters >= 1 &&
                h->longest <= INT32_MAX / SCHEDULE_MAX_WORKERS &&
                checked_mul((size_t)h->workers * h->longest, sizeof(instruction), bytes) &&
                checked_mul(rest, sizeof(uint32_t), &rest) && checked_add(*bytes, rest, bytes) &&
                checked_add(*bytes, sizeof *h, bytes) && *bytes <= at->size;
    if (!fits)
        return error_set(error, QP_FORMAT,
                         "%s: %zu bytes cannot hold %u queues of %u instructions and %u counters",
                         at->path, at->size, h->workers, h->longest, h->n_counters);
    if (checksum_of(*h, at->data + sizeof *h, *bytes - sizeof *h) != h->checksum)
        return error_set(error, QP_FORMAT, "%s: damaged: the checksum is wrong", at->path);
    return check_words(at, h, error);
}

/* Checks all sections; *out: that of the rank, of which there must be `ranks`. */
static qp_status find_section(section at, int rank, int ranks, section *out, qp_error *error)
{
    const section whole = at;
    int n = 0;
    *out = at;
    do {
        file_header h;
        size_t bytes = 0;
        TRY(read_header(&at, &h, &bytes, error));
        if (n++ == rank) *out = at;
        at.data += bytes;
        at.size -= bytes;
    } while (at.size > 0);
    if (n == ranks) return QP_OK;
    return error_set(
        error, QP_FORMAT,
        "%s: schedules of %d rank%s, but there %s %d: give --ranks %d, or make it with "
        "quipu schedule --ranks %d --save",
        whole.path, n, n == 1 ? "" : "s", ranks == 1 ? "is" : "are", ranks, n, ranks);
}

/* Records after a queue's end, which other programs leave zero, become noops. */
static void fill_ends(schedule *s)
{
    static const instruction zeros;
    for (int w = 0; w < s->options.workers; w++)
        for (int i = s->length[w] < 0 ? 0 : s->length[w]; i < s->longest; i++) {
            instruction *in = &s->instructions[(size_t)w * (size_t)s->longest + (size_t)i];
            if (memcmp(in, &zeros, sizeof zeros) == 0) in->opcode = INSTRUCTION_NOOP;
        }
}

static qp_status read_queues(const section *from, const file_header *h, schedule *out,
                             qp_error *error)
{
    const uint8_t *at = from->data + sizeof *h;
    out->n_counters = (int)h->n_counters;
    out->per_pass = arena_alloc(&out->memory, h->n_counters, sizeof *out->per_pass);
    if (!out->per_pass) return error_no_memory(error, "the schedule's counters", 0);
    TRY(tensorize_allocate(out, (int)h->longest, error));
    memcpy(out->per_pass, at, h->n_counters * sizeof *out->per_pass);
    at += h->n_counters * sizeof *out->per_pass;
    memcpy(out->length, at, h->workers * sizeof *out->length);
    at += h->workers * sizeof *out->length;
    memcpy(out->instructions, at, queue_bytes(out));
    fill_ends(out);
    return QP_OK;
}

static schedule_options options_of(const file_header *h)
{
    return (schedule_options){.workers = (int)h->workers,
                              .setting = (schedule_setting)h->setting,
                              .assignment = (schedule_assignment)h->assignment,
                              .memory_fraction = h->memory_fraction,
                              .tokens = h->tokens,
                              .context = h->context,
                              .tile = h->tile,
                              .group = h->group,
                              .last_step = (int)h->last_step,
                              .profile = h->profile};
}

/* A schedule of another context or chunk is predicted for sizes that this program has, too. */
static void fit_sizes(file_header *h, const program *p)
{
    enum { MOST_TOKENS = 1 << 20, MOST_CONTEXT = 1 << 26 }; /* of any program */
    const int64_t tokens = p->capacity.of[AXIS_TOKENS], context = p->options.context;
    if (h->tokens > tokens && h->tokens <= MOST_TOKENS) h->tokens = tokens;
    if (h->context > context && h->context <= MOST_CONTEXT) h->context = context;
    if (h->tokens > h->context) h->tokens = h->context;
}

/* Options that no schedule of the program has: they are printed and predicted from. */
static qp_status check_header(const section *from, const file_header *h, const program *p,
                              qp_error *error)
{
    const machine_profile *m = &h->profile;
    const bool sizes = h->tokens >= 1 && h->tokens <= p->capacity.of[AXIS_TOKENS] &&
                       h->context >= h->tokens && h->context <= p->options.context &&
                       h->tile >= 1 && h->tile <= SCHEDULE_MAX_TILE && h->group >= 0 &&
                       h->group <= SCHEDULE_MAX_TILE;
    const bool rates = h->memory_fraction >= 0 && h->memory_fraction <= 1 &&
                       m->bytes_per_second > 0 && m->flops_per_second > 0 && m->signal_ns > 0;
    if (sizes && rates && isfinite(m->bytes_per_second + m->flops_per_second + m->signal_ns))
        return QP_OK;
    return error_set(error, QP_FORMAT,
                     "%s: not sound: %lld tokens at %lld positions, tiles of %lld rows, groups of "
                     "%lld, or the rates of its machine",
                     from->path, (long long)h->tokens, (long long)h->context, (long long)h->tile,
                     (long long)h->group);
}

static qp_status read_section(const section *from, const program *p, schedule *out, qp_error *error)
{
    file_header h;
    size_t bytes = 0;
    TRY(read_header(from, &h, &bytes, error));
    out->options = options_of(&h);
    TRY(draft_take_program(p, out, error));
    if (p->form_fingerprint != h.fingerprint)
        return error_set(error, QP_FORMAT,
                         "%s: made for another model, other options or another version "
                         "(fingerprint %016llx, expected %016llx): give what it was saved with, or "
                         "make it anew",
                         from->path, (unsigned long long)h.fingerprint,
                         (unsigned long long)p->form_fingerprint);
    fit_sizes(&h, p);
    out->options = options_of(&h);
    TRY(check_header(from, &h, p, error));
    TRY(read_queues(from, &h, out, error));
    qp_status status = schedule_verify(out, error);
    if (status != QP_INVALID) return status;
    error_prefix(error, "%s: not sound", from->path);
    if (error) error->status = QP_FORMAT;
    return QP_FORMAT;
}

qp_status schedule_read(const char *name, const void *bytes, size_t n_bytes, const program *p,
                        schedule *out, qp_error *error)
{
    const section whole = {name, bytes, n_bytes};
    section one;
    *out = (schedule){0};
    TRY(find_section(whole, 0, 1, &one, error));
    return read_section(&one, p, out, error);
}

qp_status schedule_peek(const char *path, schedule_options *out, qp_error *error)
{
    mapping map = {0};
    file_header h;
    size_t bytes = 0;
    TRY(mapping_open(path, &map, error));
    const section first = {map.path, map.data, map.size};
    qp_status status = read_header(&first, &h, &bytes, error);
    if (status == QP_OK) *out = options_of(&h);
    mapping_close(&map);
    return status;
}

qp_status schedule_load(const char *path, const program *p, schedule *out, qp_error *error)
{
    const int ranks = p->options.ranks > 1 ? p->options.ranks : 1;
    section own;
    *out = (schedule){0};
    mapping map = {0};
    TRY(mapping_open(path, &map, error));
    const section whole = {map.path, map.data, map.size};
    qp_status status = find_section(whole, ranks > 1 ? p->options.rank : 0, ranks, &own, error);
    if (status == QP_OK) status = read_section(&own, p, out, error);
    mapping_close(&map);
    return status;
}
