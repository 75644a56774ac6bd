/* Files of pages: see page_file.h. */
#include "engine/page_file.h"

#include "base/platform.h"
#include "engine/engine.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

_Static_assert(sizeof(page_file_header) == 64, "no padding between members");

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

static void mix_config(fingerprint *f, const model_config *c, int64_t context)
{
    const int64_t sizes[] = {c->hidden_size, c->intermediate_size, c->n_layers,          c->n_heads,
                             c->n_kv_heads,  c->head_dim,          c->vocab_size,        c->window,
                             c->n_experts,   c->n_experts_used,    c->experts_normalised};
    float frequencies[ROPE_MAX_DIM / 2];
    mix(f, sizes, sizeof sizes);
    mix(f, &c->windowed, sizeof c->windowed);
    mix(f, &c->no_rope, sizeof c->no_rope);
    mix(f, &c->rms_norm_eps, sizeof c->rms_norm_eps);
    mix(f, &c->scales, sizeof c->scales);
    mix(f, &c->rope_local.theta, sizeof c->rope_local.theta);
    rope_inverse_frequencies(&c->rope, c->rope.scaling == ROPE_LONGROPE ? context : 0, frequencies);
    mix(f, frequencies, (size_t)c->rope.dim / 2 * sizeof *frequencies);
    mix(f, &c->rope.attention_factor, sizeof c->rope.attention_factor);
}

static fingerprint of_model(const qp_engine *e)
{
    fingerprint f = {{1, 2}};
    const model *m = e->model;
    mix_config(&f, model_get_config(m), e->program.options.context);
    for (int slot = 0; slot < WEIGHT_COUNT; slot++) {
        const bool each = weight_get_info((weight_slot)slot)->per_layer;
        for (int64_t layer = 0; layer < (each ? model_get_config(m)->n_layers : 1); layer++)
            mix_weight(&f, m, (weight_slot)slot, layer);
    }
    if (model_get_config(m)->adapters.merged) mix_number(&f, model_get_config(m)->adapters.merged);
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
    mix_number(&f, platform_build_id()); /* another build may round differently */
    mix_number(&f, (uint64_t)o->kv_type);
    if (o->act_type != DTYPE_F32) mix_number(&f, (uint64_t)o->act_type);
    mix_number(&f, (uint64_t)o->page_size);
    mix_number(&f, o->fuse);
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

uint64_t page_file_model(const qp_engine *e)
{
    return of_model(e).sum[0];
}

/* ---- the file ------------------------------------------------------------------------------ */

qp_status page_file_init(page_file *f, qp_engine *e, const char *path, const char *magic,
                         const char *what, qp_error *error)
{
    const size_t page_size = (size_t)e->pages.page_size;
    const size_t page_bytes = machine_page_bytes(&e->program);
    const fingerprint print = of_engine(e);
    *f = (page_file){.engine = e, .path = path, .what = what};
    f->header = (page_file_header){.page_size = page_size, .page_bytes = page_bytes};
    memcpy(f->header.magic, magic, sizeof f->header.magic);
    memcpy(f->header.fingerprint, print.sum, sizeof print.sum);
    f->record.tokens = 2 * sizeof(uint64_t);
    f->record.data = f->record.tokens + page_size * sizeof(int32_t);
    f->record.checksum = f->record.data + page_bytes;
    f->record.size = f->record.checksum + sizeof(uint64_t);
    f->record.bytes = malloc(f->record.size);
    return f->record.bytes ? QP_OK : error_no_memory(error, what, f->record.size);
}

void page_file_close(page_file *f)
{
    if (f->stream) fclose(f->stream);
    file_replacement_drop(&f->replacement);
    free(f->record.bytes);
    *f = (page_file){0};
}

/* Depends on the record's place, so that one cannot stand in another's. */
static uint64_t sum_record(const page_file *f, uint64_t index)
{
    const hash_key key = {{f->header.fingerprint[0], index}};
    return keyed_hash(key, f->record.bytes, f->record.checksum);
}

uint64_t page_file_sum(const void *bytes, size_t size)
{
    return keyed_hash((hash_key){{3, 4}}, bytes, size);
}

static uint64_t sum_header(const page_file_header *h)
{
    return page_file_sum(h, offsetof(page_file_header, checksum));
}

qp_status page_file_write(page_file *f, const void *bytes, size_t size, qp_error *error)
{
    return fwrite(bytes, size, 1, f->replacement.stream) == 1
               ? QP_OK
               : file_replacement_failed(&f->replacement, error);
}

qp_status page_file_begin(page_file *f, uint64_t count, qp_error *error)
{
    f->header.count = count;
    f->header.checksum = sum_header(&f->header);
    TRY(file_replacement_begin(f->path, 0600, &f->replacement, error));
    return page_file_write(f, &f->header, sizeof f->header, error);
}

qp_status page_file_write_record(page_file *f, uint64_t index, page_file_entry entry,
                                 const int32_t *tokens, int32_t page, qp_error *error)
{
    page_file_record *r = &f->record;
    memcpy(r->bytes, &entry, sizeof entry);
    memcpy(r->bytes + r->tokens, tokens, r->data - r->tokens);
    TRY(machine_read_page(engine_memory(f->engine), page, r->bytes + r->data, error));
    const uint64_t sum = sum_record(f, index);
    memcpy(r->bytes + r->checksum, &sum, sizeof sum);
    return page_file_write(f, r->bytes, r->size, error);
}

qp_status page_file_end(page_file *f, qp_error *error)
{
    return file_replacement_end(&f->replacement, error);
}

static qp_status read_failed(const page_file *f, qp_error *error)
{
    return error_set(error, QP_IO, "%s cannot be read: %s", f->path, strerror(errno));
}

static qp_status read_header(page_file *f, qp_error *error)
{
    page_file_header found;
    if (fread(&found, sizeof found, 1, f->stream) != 1 ||
        memcmp(found.magic, f->header.magic, sizeof found.magic) != 0 ||
        found.checksum != sum_header(&found))
        return error_set(error, QP_FORMAT, "%s is damaged, or not %s: its header is wrong", f->path,
                         f->what);
    f->header.count = found.count;
    if (memcmp(found.fingerprint, f->header.fingerprint, sizeof found.fingerprint) == 0 &&
        found.page_size == f->header.page_size && found.page_bytes == f->header.page_bytes)
        return QP_OK;
    return error_set(error, QP_FORMAT,
                     "%s was written for another model, by another build of quipu, or for other "
                     "settings (device, machine, KV cache, pages, activations)",
                     f->path);
}

qp_status page_file_open(page_file *f, bool *found, qp_error *error)
{
    struct stat file;
    f->stream = fopen(f->path, "rbe");
    *found = f->stream != NULL;
    if (!f->stream && errno == ENOENT) return QP_OK;
    if (!f->stream) return read_failed(f, error);
    TRY(read_header(f, error));
    if (fstat(fileno(f->stream), &file) != 0) return read_failed(f, error);
    f->bytes = (uint64_t)file.st_size;
    return QP_OK;
}

bool page_file_read(page_file *f, void *bytes, size_t size)
{
    return fread(bytes, size, 1, f->stream) == 1;
}

page_file_found page_file_read_record(page_file *f, uint64_t index, page_file_entry *entry)
{
    const page_file_record *r = &f->record;
    uint64_t sum;
    if (!page_file_read(f, r->bytes, r->size)) return PAGE_FILE_ENDED;
    memcpy(&sum, r->bytes + r->checksum, sizeof sum);
    memcpy(entry, r->bytes, sizeof *entry);
    return sum == sum_record(f, index) ? PAGE_FILE_GOOD : PAGE_FILE_DAMAGED;
}

const int32_t *page_file_tokens(const page_file *f)
{
    return (const int32_t *)(const void *)(f->record.bytes + f->record.tokens);
}

qp_status page_file_restore_page(const page_file *f, int32_t page, qp_error *error)
{
    return machine_write_page(engine_memory(f->engine), page, f->record.bytes + f->record.data,
                              error);
}
