/* The prefix tree in a file: see prefix_file.h.
 *
 *     header | record | record ...
 *     record = parent, key, tokens [page_size], K and V of every layer, checksum
 *
 * All records have the same size. `parent` is the index of an earlier record; -1: the root.
 */
#include "engine/prefix_file.h"

#include "base/build_id.h"
#include "base/replace_file.h"
#include "engine/engine.h"
#include "lower/lower.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char magic[16] = "quipu prefixes 1";

typedef struct file_header {
    char magic[sizeof magic];
    uint64_t fingerprint[2]; /* of the weights, settings and program that computed the pages */
    uint64_t page_size, page_bytes, count;
    uint64_t checksum; /* of the bytes before it */
} file_header;

_Static_assert(sizeof(file_header) == 64, "no padding between members");

/* A record in memory. */
typedef struct record {
    char *bytes;
    size_t tokens, data, checksum, size; /* offsets; parent and key are the first 16 bytes */
} record;

typedef struct prefix_file {
    qp_engine *engine;
    const char *path;
    FILE *stream;                 /* that is read */
    file_replacement replacement; /* that is written */
    file_header header;
    record record;
    int64_t *places; /* [n_pages]: save: index of a page's record */
    int32_t *pages;  /* [count]: restore: page of each record; -1: left out */
} prefix_file;

/* ---- fingerprint --------------------------------------------------------------------------- */

typedef struct fingerprint {
    uint64_t sum[2];
} fingerprint;

static void mix(fingerprint *f, const void *bytes, size_t n)
{
    const hash_key first = {{f->sum[0], 0x9e3779b97f4a7c15u}};
    const hash_key second = {{f->sum[1], 0xd1b54a32d192ed03u}};
    *f = (fingerprint){{keyed_hash(first, bytes, n), keyed_hash(second, bytes, n)}};
}

static void mix_number(fingerprint *f, uint64_t number)
{
    mix(f, &number, sizeof number);
}

static void mix_text(fingerprint *f, const char *text)
{
    mix(f, text, strlen(text) + 1);
}

/* Type and shape of a weight, and some of its bytes if it lies in a file. */
static void mix_weight(fingerprint *f, const model *m, weight_slot slot, int64_t layer)
{
    enum { SAMPLE = 1024 };
    const model_weight *w = model_get_weight(m, slot, layer);
    const tensor *views[] = {&w->weight, &w->bias};
    for (int i = 0; i < 2; i++) {
        const tensor *t = views[i];
        mix_number(f, (uint64_t)t->rank);
        if (t->rank == 0) continue;
        mix_number(f, (uint64_t)t->type);
        for (int64_t d = 0; d < t->rank; d++)
            mix_number(f, (uint64_t)t->shape[d]);
        if (!t->data || !model_is_mapped(m, slot, layer)) continue;
        const size_t bytes = tensor_bytes(t), n = bytes < SAMPLE ? bytes : SAMPLE;
        mix(f, t->data, n);
        mix(f, (const char *)t->data + (bytes - n) / 2, n);
    }
}

static void mix_config(fingerprint *f, const model_config *c)
{
    const int64_t sizes[] = {c->hidden_size, c->intermediate_size, c->n_layers,   c->n_heads,
                             c->n_kv_heads,  c->head_dim,          c->vocab_size, c->window};
    float frequencies[ROPE_MAX_DIM / 2];
    mix(f, sizes, sizeof sizes);
    mix(f, &c->windowed, sizeof c->windowed);
    mix(f, &c->no_rope, sizeof c->no_rope);
    mix(f, &c->rms_norm_eps, sizeof c->rms_norm_eps);
    rope_inverse_frequencies(&c->rope, 0, frequencies);
    mix(f, frequencies, (size_t)c->rope.dim / 2 * sizeof *frequencies);
}

static fingerprint of_model(const qp_engine *e)
{
    fingerprint f = {{1, 2}};
    const model *m = e->model;
    mix_config(&f, model_get_config(m));
    for (int slot = 0; slot < WEIGHT_COUNT; slot++) {
        const bool each = weight_get_info((weight_slot)slot)->per_layer;
        for (int64_t layer = 0; layer < (each ? model_get_config(m)->n_layers : 1); layer++)
            mix_weight(&f, m, (weight_slot)slot, layer);
    }
    /* Weights that are made, not read, follow from the name. */
    if (!model_has_weights(m) || !model_is_mapped(m, WEIGHT_TOKEN_EMBD, 0))
        mix_text(&f, model_path(m));
    return f;
}

/* What the bits of a page depend on. */
static fingerprint of_engine(const qp_engine *e)
{
    fingerprint f = of_model(e);
    const plan_options *o = &e->program.options;
    mix_text(&f, QP_VERSION);
    mix_number(&f, build_id()); /* another build may round differently */
    mix_number(&f, (uint64_t)o->kv_type);
    if (o->act_type != DTYPE_F32) mix_number(&f, (uint64_t)o->act_type);
    mix_number(&f, (uint64_t)o->page_size);
    mix_number(&f, lower_rules_of(o));
    if (o->form != PLAN_PAGED) mix_number(&f, (uint64_t)o->form);     /* other roundings */
    mix_number(&f, e->step.fixed.rows ? (uint64_t)o->max_tokens : 0); /* see step_pad.c */
    mix_number(&f, e->cpu_features);
    mix_text(&f, e->info.device);
    mix_number(&f, (uint64_t)e->ranks.size);
    mix_number(&f, e->ranks.size > 1 ? (uint64_t)e->ranks.cut : 0);
    mix_number(&f, machine_copies_of(engine_memory(e)).made > 0);
    for (int i = 0; i < e->n_machines; i++)
        mix_text(&f, engine_machine(e, i)->type->name);
    return f;
}

uint64_t prefix_file_model(const qp_engine *e)
{
    return of_model(e).sum[0];
}

/* ---- common -------------------------------------------------------------------------------- */

static void describe(prefix_file *f, qp_engine *e, const char *path)
{
    const size_t page_size = (size_t)e->pages.page_size;
    const size_t page_bytes = machine_page_bytes(&e->program);
    const fingerprint print = of_engine(e);
    *f = (prefix_file){.engine = e, .path = path};
    f->header = (file_header){.page_size = page_size, .page_bytes = page_bytes};
    memcpy(f->header.magic, magic, sizeof magic);
    memcpy(f->header.fingerprint, print.sum, sizeof print.sum);
    f->record.tokens = 2 * sizeof(uint64_t);
    f->record.data = f->record.tokens + page_size * sizeof(int32_t);
    f->record.checksum = f->record.data + page_bytes;
    f->record.size = f->record.checksum + sizeof(uint64_t);
}

static qp_status allocate(prefix_file *f, size_t pages, qp_error *error)
{
    f->record.bytes = malloc(f->record.size);
    f->places = malloc((size_t)f->engine->pages.n_pages * sizeof *f->places);
    f->pages = malloc((pages + 1) * sizeof *f->pages);
    if (f->record.bytes && f->places && f->pages) return QP_OK;
    return error_no_memory(error, "the prompt cache's file", f->record.size);
}

static void close_file(prefix_file *f)
{
    if (f->stream) fclose(f->stream);
    file_replacement_drop(&f->replacement);
    free(f->record.bytes);
    free(f->places);
    free(f->pages);
    f->stream = NULL;
}

static uint64_t sum_header(const file_header *h)
{
    return keyed_hash((hash_key){{3, 4}}, h, offsetof(file_header, checksum));
}

/* Depends on the record's place, so that one cannot stand in another's. */
static uint64_t sum_record(const prefix_file *f, uint64_t index)
{
    const hash_key key = {{f->header.fingerprint[0], index}};
    return keyed_hash(key, f->record.bytes, f->record.checksum);
}

/* ---- save ---------------------------------------------------------------------------------- */

static qp_status write_record(prefix_file *f, uint64_t index, int32_t page, qp_error *error)
{
    const prefix_tree *t = &f->engine->prefixes;
    const int64_t parent = t->parents[page] < 0 ? -1 : f->places[t->parents[page]];
    record *r = &f->record;
    assert(parent < (int64_t)index);
    f->places[page] = (int64_t)index;
    memcpy(r->bytes, &parent, sizeof parent);
    memcpy(r->bytes + sizeof parent, &t->keys[page], sizeof t->keys[page]);
    memcpy(r->bytes + r->tokens, t->tokens + page * t->pool->page_size, r->data - r->tokens);
    TRY(machine_read_page(engine_memory(f->engine), page, r->bytes + r->data, error));
    const uint64_t sum = sum_record(f, index);
    memcpy(r->bytes + r->checksum, &sum, sizeof sum);
    return fwrite(r->bytes, r->size, 1, f->replacement.stream) == 1
               ? QP_OK
               : file_replacement_failed(&f->replacement, error);
}

static qp_status write_all(prefix_file *f, qp_error *error)
{
    const page_pool *pool = &f->engine->pages;
    int32_t page = pool->newest;
    f->header.checksum = sum_header(&f->header);
    if (fwrite(&f->header, sizeof f->header, 1, f->replacement.stream) != 1)
        return file_replacement_failed(&f->replacement, error);
    for (uint64_t i = 0; i < f->header.count; i++, page = pool->older[page])
        TRY(write_record(f, i, page, error));
    return file_replacement_end(&f->replacement, error);
}

static qp_status save(prefix_file *f, qp_error *error)
{
    TRY(allocate(f, 0, error));
    TRY(file_replacement_begin(f->path, 0600, &f->replacement, error));
    return write_all(f, error);
}

qp_status prefix_file_save(qp_engine *e, const char *path, uint64_t most, prefix_file_result *out,
                           qp_error *error)
{
    prefix_file f;
    *out = (prefix_file_result){0};
    step_drop(e); /* machines are read while nothing runs */
    describe(&f, e, path);
    const uint64_t idle = (uint64_t)e->pages.n_idle, head = sizeof f.header;
    const uint64_t room = most > head ? (most - head) / f.record.size : 0;
    f.header.count = idle < room ? idle : room;
    const qp_status status = save(&f, error);
    close_file(&f);
    *out = (prefix_file_result){.pages = f.header.count,
                                .skipped = idle - f.header.count,
                                .bytes = head + f.header.count * f.record.size};
    return status;
}

/* ---- restore ------------------------------------------------------------------------------- */

static qp_status read_failed(const prefix_file *f, qp_error *error)
{
    return error_set(error, QP_IO, "%s cannot be read: %s", f->path, strerror(errno));
}

static qp_status read_header(prefix_file *f, qp_error *error)
{
    file_header found;
    if (fread(&found, sizeof found, 1, f->stream) != 1 ||
        memcmp(found.magic, magic, sizeof magic) != 0 || found.checksum != sum_header(&found))
        return error_set(error, QP_FORMAT,
                         "%s is damaged, or not a prompt cache: its header is wrong", f->path);
    f->header.count = found.count;
    if (memcmp(found.fingerprint, f->header.fingerprint, sizeof found.fingerprint) == 0 &&
        found.page_size == f->header.page_size && found.page_bytes == f->header.page_bytes)
        return QP_OK;
    return error_set(error, QP_FORMAT,
                     "%s was written by another build of quipu, or for other settings (device, "
                     "machine, KV cache, pages, activations)",
                     f->path);
}

/* The tree's node of the record; -1: it is left out. */
static qp_status restore_record(prefix_file *f, uint64_t index, int32_t *page, qp_error *error)
{
    const record *r = &f->record;
    int64_t parent;
    uint64_t key;
    memcpy(&parent, r->bytes, sizeof parent);
    memcpy(&key, r->bytes + sizeof parent, sizeof key);
    *page = -1;
    if (parent >= (int64_t)index || (parent >= 0 && f->pages[parent] < 0)) return QP_OK;
    const int32_t *tokens = (const int32_t *)(const void *)(r->bytes + r->tokens);
    *page =
        prefix_tree_restore(&f->engine->prefixes, key, parent < 0 ? -1 : f->pages[parent], tokens);
    if (*page < 0) return QP_OK;
    return machine_write_page(engine_memory(f->engine), *page, r->bytes + r->data, error);
}

static qp_status read_all(prefix_file *f, prefix_file_result *out, qp_error *error)
{
    const record *r = &f->record;
    for (uint64_t i = 0; i < f->header.count; i++) {
        uint64_t sum;
        f->pages[i] = -1;
        if (fread(r->bytes, r->size, 1, f->stream) != 1) { /* the file ends early */
            out->damaged += f->header.count - i;
            break;
        }
        memcpy(&sum, r->bytes + r->checksum, sizeof sum);
        if (sum != sum_record(f, i)) {
            out->damaged++;
            continue;
        }
        TRY(restore_record(f, i, &f->pages[i], error));
        out->pages += f->pages[i] >= 0;
        out->skipped += f->pages[i] < 0;
    }
    return QP_OK;
}

static qp_status restore(prefix_file *f, prefix_file_result *out, qp_error *error)
{
    struct stat file;
    TRY(read_header(f, error));
    if (fstat(fileno(f->stream), &file) != 0) return read_failed(f, error);
    out->bytes = (uint64_t)file.st_size;
    const uint64_t most = out->bytes / f->record.size;
    if (f->header.count > most) out->damaged = f->header.count - most; /* cut off */
    if (f->header.count > most) f->header.count = most;
    TRY(allocate(f, f->header.count, error));
    return read_all(f, out, error);
}

qp_status prefix_file_restore(qp_engine *e, const char *path, prefix_file_result *out,
                              qp_error *error)
{
    prefix_file f;
    *out = (prefix_file_result){0};
    describe(&f, e, path);
    f.stream = fopen(path, "rbe");
    if (!f.stream && errno == ENOENT) return QP_OK;
    if (!f.stream) return read_failed(&f, error);
    out->found = true;
    const qp_status status = restore(&f, out, error);
    close_file(&f);
    return status;
}
