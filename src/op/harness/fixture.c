/* Guarded, filled and poisoned tensors: see fixture.h. */
#include "op/harness/fixture.h"

#include "base/checked.h"
#include "op/harness/fill.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Index of the tensor in whose memory tensor t lies. */
static int owner_of(const fixture *fixture, int t)
{
    int other = fixture->about->tensors[t].same_as;
    return other >= 0 ? other : t;
}

/* Bytes of a row's elements. */
static size_t row_bytes(const tensor *view)
{
    return dtype_row_bytes(view->type, view->shape[view->rank - 1]);
}

static void mark_roles(fixture_tensor *owner, const tensor *view, unsigned char role)
{
    size_t length = row_bytes(view);
    for (int64_t row = 0; row < view_rows(view); row++) {
        unsigned char *roles =
            owner->roles + ((unsigned char *)view_row(view, row) - owner->memory);
        for (size_t i = 0; i < length; i++)
            roles[i] |= role;
    }
}

static unsigned char direction_role(op_direction direction)
{
    return direction == OP_IN    ? ROLE_INPUT
           : direction == OP_OUT ? ROLE_OUTPUT
                                 : ROLE_INPUT | ROLE_OUTPUT;
}

static qp_status create_tensor(fixture *out, int t, int shift, qp_error *error)
{
    const op_tensor *described = &out->op->tensors[t];
    fixture_tensor *own = &out->tensors[t];
    tensor *view = &out->call.tensors[t];
    size_t bytes = out->about->tensors[t].bytes;
    *view = out->about->tensors[t].view;
    size_t row = row_bytes(view), shifted = (size_t)shift * dtype_block_bytes(view->type);
    size_t guard = round_up(FIXTURE_GUARD + row, 64);
    own->bytes = round_up(guard + shifted + bytes + guard, 64);
    own->memory = aligned_alloc(64, own->bytes);
    own->roles = calloc(own->bytes, 1);
    own->locked = malloc(own->bytes);
    own->images[POISON_NAN] = malloc(own->bytes);
    own->images[POISON_LARGE] = malloc(own->bytes);
    if (!own->memory || !own->roles || !own->locked || !own->images[POISON_NAN] ||
        !own->images[POISON_LARGE])
        return error_no_memory(error, described->name, 5 * own->bytes);
    memset(own->memory, 0, own->bytes);
    view->data = own->memory + guard + shifted;
    mark_roles(own, view, direction_role(described->direction));
    return QP_OK;
}

/* A view of another tensor's memory. */
static void share_tensor(fixture *out, int t)
{
    int other = out->about->tensors[t].same_as;
    tensor *view = &out->call.tensors[t];
    *view = out->about->tensors[t].view;
    view->data = out->call.tensors[other].data;
    mark_roles(&out->tensors[other], view, direction_role(out->op->tensors[t].direction));
}

qp_status fixture_create(fixture *out, const op_info *op, const op_variant *variant,
                         const op_case *about, int shift, qp_error *error)
{
    *out = (fixture){.op = op, .variant = variant, .about = about};
    memcpy(out->call.params, about->params, sizeof out->call.params);
    qp_status status = QP_OK;
    for (int t = 0; t < op_n_tensors(op) && status == QP_OK; t++) {
        if (!about->tensors[t].absent && about->tensors[t].same_as < 0)
            status = create_tensor(out, t, shift, error);
    }
    for (int t = 0; t < op_n_tensors(op) && status == QP_OK; t++) {
        if (!about->tensors[t].absent && about->tensors[t].same_as >= 0) share_tensor(out, t);
    }
    if (status != QP_OK) fixture_destroy(out);
    return status;
}

static void *map_shared(size_t bytes)
{
    void *there = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return there == MAP_FAILED ? NULL : there;
}

qp_status fixture_share(fixture *fixture, qp_error *error)
{
    for (int t = 0; t < op_n_tensors(fixture->op); t++) {
        fixture_tensor *own = &fixture->tensors[t];
        if (!own->memory) continue;
        own->there = map_shared(own->bytes);
        if (!own->there) return error_no_memory(error, "shared tensors", own->bytes);
    }
    fixture->scratch_there = map_shared(FIXTURE_SCRATCH_MOST);
    if (fixture->scratch_there) return QP_OK;
    return error_no_memory(error, "shared scratch memory", FIXTURE_SCRATCH_MOST);
}

static size_t scratch_all(const fixture *fixture)
{
    return FIXTURE_GUARD + FIXTURE_WORKERS * fixture->scratch_stride;
}

qp_status fixture_set_scratch(fixture *fixture, size_t bytes, qp_error *error)
{
    size_t most = SIZE_MAX / (2 * FIXTURE_WORKERS);
    if (fixture->scratch_there) most = (FIXTURE_SCRATCH_MOST - FIXTURE_GUARD) / FIXTURE_WORKERS;
    free(fixture->scratch);
    fixture->scratch = NULL;
    fixture->scratch_bytes = bytes;
    if (bytes == 0) return QP_OK;
    if (bytes > most - FIXTURE_GUARD - 64) return error_no_memory(error, "scratch memory", bytes);
    fixture->scratch_stride = round_up(bytes, 64) + FIXTURE_GUARD;
    fixture->scratch = aligned_alloc(64, scratch_all(fixture));
    return fixture->scratch ? QP_OK
                            : error_no_memory(error, "scratch memory", scratch_all(fixture));
}

static qp_status create_scratch(fixture *fixture, qp_error *error)
{
    const op_info *op = fixture->op;
    const op_variant *variant = fixture->variant;
    size_t bytes = op->scratch_bytes ? op->scratch_bytes(&fixture->call) : 0;
    if (variant && variant->scratch_bytes) bytes = variant->scratch_bytes(&fixture->call);
    return fixture_set_scratch(fixture, bytes, error);
}

op_call fixture_call(const fixture *fixture)
{
    op_call call = fixture->call;
    call.begin = 0;
    call.end = fixture->op->units(&call);
    call.scratch = fixture_scratch(fixture);
    if (!fixture->scratch_there) return call;
    if (call.scratch) call.scratch = fixture->scratch_there + FIXTURE_GUARD;
    for (int t = 0; t < op_n_tensors(fixture->op); t++) {
        const fixture_tensor *own = &fixture->tensors[owner_of(fixture, t)];
        if (call.tensors[t].data)
            call.tensors[t].data =
                own->there + ((unsigned char *)call.tensors[t].data - own->memory);
    }
    return call;
}

void fixture_collect(fixture *fixture)
{
    for (int t = 0; t < op_n_tensors(fixture->op); t++) {
        fixture_tensor *own = &fixture->tensors[t];
        if (own->there) memcpy(own->memory, own->there, own->bytes);
    }
    if (fixture->scratch && fixture->scratch_there)
        memcpy(fixture->scratch, fixture->scratch_there, scratch_all(fixture));
}

static size_t packed_all(const fixture *fixture)
{
    return round_up(fixture->packed_bytes, 64) + 2 * FIXTURE_GUARD;
}

static qp_status create_packed(fixture *fixture, qp_error *error)
{
    const op_variant *variant = fixture->variant;
    if (!variant || !variant->packed_bytes) return QP_OK;
    fixture->packed_bytes = variant->packed_bytes(&fixture->call);
    free(fixture->packed);
    free(fixture->packed_before);
    fixture->packed = aligned_alloc(64, packed_all(fixture));
    fixture->packed_before = malloc(packed_all(fixture));
    if (!fixture->packed || !fixture->packed_before)
        return error_no_memory(error, "packed weights", 2 * packed_all(fixture));
    fixture->call.packed = fixture->packed_bytes ? fixture->packed + FIXTURE_GUARD : NULL;
    return QP_OK;
}

/* The bytes around the elements of an input: see the poisons. */
static unsigned char gap_byte(dtype type, poison poison, size_t offset)
{
    bool is_index = type == DTYPE_I32 || type == DTYPE_I64;
    if (is_index) return poison == POISON_LARGE && offset % dtype_block_bytes(type) == 0;
    return poison == POISON_NAN ? 0xff : 0x5a;
}

static unsigned char filler(poison poison)
{
    return poison == POISON_NAN ? 0xff : 0x5a;
}

/* How many bytes from `begin` on have the same role. */
static size_t role_run(const fixture_tensor *own, size_t begin)
{
    uint64_t same, next;
    size_t end = begin + 1;
    memset(&same, own->roles[begin], sizeof same);
    for (; end + sizeof next <= own->bytes; end += sizeof next) {
        memcpy(&next, own->roles + end, sizeof next);
        if (next != same) break;
    }
    while (end < own->bytes && own->roles[end] == own->roles[begin])
        end++;
    return end - begin;
}

/* The bytes of the tensor before a run, and which of them must not change. */
static void make_image(fixture *fixture, int t, poison poison)
{
    fixture_tensor *own = &fixture->tensors[t];
    const dtype type = fixture->call.tensors[t].type;
    memcpy(own->images[poison], own->memory, own->bytes);
    memset(own->locked, 0xff, own->bytes);
    for (size_t at = 0, n; at < own->bytes; at += n) {
        const unsigned char role = own->roles[at];
        n = role_run(own, at);
        if (role == ROLE_OUTPUT) memset(own->images[poison] + at, filler(poison), n);
        for (size_t i = at; !role && i < at + n; i++)
            own->images[poison][i] = gap_byte(type, poison, i);
        if (role & ROLE_OUTPUT) memset(own->locked + at, 0, n);
    }
}

qp_status fixture_fill(fixture *fixture, fill_kind fill, uint64_t seed, qp_error *error)
{
    const op_info *op = fixture->op;
    for (int t = 0; t < op_n_tensors(op); t++) {
        const case_tensor *about = &fixture->about->tensors[t];
        if (about->absent || about->same_as >= 0) continue;
        fill_tensor(&fixture->call.tensors[t], fill, hash_random(seed, 0x9e37, (uint64_t)t));
    }
    if (op->prepare) op->prepare(&fixture->call, seed);
    TRY(op_bind(op, &fixture->call, NULL, error));
    for (int t = 0; t < op_n_tensors(op); t++) {
        if (!fixture->tensors[t].memory) continue;
        make_image(fixture, t, POISON_NAN);
        make_image(fixture, t, POISON_LARGE);
    }
    TRY(create_scratch(fixture, error));
    return create_packed(fixture, error);
}

/* Packs into poisoned memory, group by group or all at once: bytes that pack() leaves out, or that
 * depend on the cut, change the results. */
static void pack_weights(fixture *fixture)
{
    if (!fixture->packed_bytes) return;
    const op_variant *variant = fixture->variant;
    op_call call = fixture->call;
    int64_t units = fixture->op->units(&call);
    int64_t step = fixture->armed == POISON_NAN ? variant->pack_units : units;
    memset(fixture->packed, filler(fixture->armed), packed_all(fixture));
    for (call.begin = 0; call.begin < units; call.begin = call.end) {
        call.end = step < units - call.begin ? call.begin + step : units;
        variant->pack(&call, fixture->packed + FIXTURE_GUARD);
    }
    memcpy(fixture->packed_before, fixture->packed, packed_all(fixture));
}

void fixture_arm(fixture *fixture, poison poison)
{
    fixture->armed = poison;
    for (int t = 0; t < op_n_tensors(fixture->op); t++) {
        fixture_tensor *own = &fixture->tensors[t];
        if (own->memory) memcpy(own->memory, own->images[poison], own->bytes);
        if (own->there) memcpy(own->there, own->images[poison], own->bytes);
    }
    if (fixture->scratch) memset(fixture->scratch, filler(poison), scratch_all(fixture));
    if (fixture->scratch && fixture->scratch_there)
        memcpy(fixture->scratch_there, fixture->scratch, scratch_all(fixture));
    pack_weights(fixture);
}

void *fixture_scratch(const fixture *fixture)
{
    return fixture->scratch ? fixture->scratch + FIXTURE_GUARD : NULL;
}

bool fixture_is_poison(const fixture *fixture, int t, int64_t row, int64_t i)
{
    const fixture_tensor *own = &fixture->tensors[owner_of(fixture, t)];
    const tensor *view = &fixture->call.tensors[t];
    size_t size = dtype_block_bytes(view->type);
    const unsigned char *at = (unsigned char *)view_row(view, row) + (size_t)i * size;
    size_t offset = (size_t)(at - own->memory);
    return own->roles[offset] == ROLE_OUTPUT &&
           memcmp(at, own->images[fixture->armed] + offset, size) == 0;
}

/* Describes where a changed byte lies: in an input's element, or how far before or after the
 * nearest row.
 */
static void describe_change(const fixture *fixture, int t, size_t offset, char *detail, size_t size)
{
    const char *name = fixture->op->tensors[t].name;
    const tensor *view = &fixture->call.tensors[t];
    const unsigned char *at = fixture->tensors[t].memory + offset;
    size_t length = row_bytes(view), best = SIZE_MAX;
    int64_t nearest = -1;
    for (int64_t row = 0; row < view_rows(view); row++) {
        const unsigned char *begin = view_row(view, row);
        if (at < begin) continue;
        size_t distance = (size_t)(at - begin);
        if (distance < best) best = distance, nearest = row;
    }
    char index[64] = "";
    if (nearest < 0) {
        snprintf(detail, size, "wrote before the first element of %s", name);
    } else if (best < length) {
        size_t element = best / dtype_block_bytes(view->type);
        view_index(view, nearest, (int64_t)element * dtype_block_elements(view->type), index,
                   sizeof index);
        snprintf(detail, size, "changed %s%s, which is an input", name, index);
    } else {
        view_index(view, nearest, view->shape[view->rank - 1] - 1, index, sizeof index);
        snprintf(detail, size, "wrote outside of %s, %zu bytes after the end of the row of %s%s",
                 name, best - length, name, index);
    }
}

static bool all_are(const unsigned char *bytes, size_t n, unsigned char value)
{
    return n == 0 || (bytes[0] == value && memcmp(bytes, bytes + 1, n - 1) == 0);
}

static bool scratch_intact(const fixture *fixture)
{
    if (!fixture->scratch) return true;
    const unsigned char expected = filler(fixture->armed);
    bool intact = all_are(fixture->scratch, FIXTURE_GUARD, expected);
    for (size_t worker = 0; worker < FIXTURE_WORKERS; worker++) {
        const unsigned char *own =
            fixture->scratch + FIXTURE_GUARD + worker * fixture->scratch_stride;
        intact = intact && all_are(own + fixture->scratch_bytes,
                                   fixture->scratch_stride - fixture->scratch_bytes, expected);
    }
    return intact;
}

/* Whether pack() wrote only its own bytes and the kernel did not change them. */
static bool packed_intact(const fixture *fixture, char *detail, size_t size)
{
    if (!fixture->packed_bytes) return true;
    const size_t end = FIXTURE_GUARD + fixture->packed_bytes;
    const unsigned char expected = filler(fixture->armed);
    const bool same = memcmp(fixture->packed + FIXTURE_GUARD,
                             fixture->packed_before + FIXTURE_GUARD, fixture->packed_bytes) == 0;
    if (same && all_are(fixture->packed, FIXTURE_GUARD, expected) &&
        all_are(fixture->packed + end, packed_all(fixture) - end, expected))
        return true;
    snprintf(detail, size,
             same ? "wrote outside of the %zu bytes of packed weights"
                  : "changed the %zu bytes of packed weights",
             fixture->packed_bytes);
    return false;
}

/* The first byte that changed and must not have, or own->bytes; compares 8 bytes at a time. */
static size_t find_change(const fixture_tensor *own, const unsigned char *before)
{
    for (size_t i = 0; i < own->bytes; i += 8) {
        uint64_t now, then, locked;
        memcpy(&now, own->memory + i, 8);
        memcpy(&then, before + i, 8);
        memcpy(&locked, own->locked + i, 8);
        if (((now ^ then) & locked) == 0) continue;
        while (own->memory[i] == before[i] || !own->locked[i])
            i++;
        return i;
    }
    return own->bytes;
}

bool fixture_intact(const fixture *fixture, char *detail, size_t size)
{
    for (int t = 0; t < op_n_tensors(fixture->op); t++) {
        const fixture_tensor *own = &fixture->tensors[t];
        if (!own->memory) continue;
        size_t at = find_change(own, own->images[fixture->armed]);
        if (at == own->bytes) continue;
        describe_change(fixture, t, at, detail, size);
        return false;
    }
    if (!packed_intact(fixture, detail, size)) return false;
    if (scratch_intact(fixture)) return true;
    snprintf(detail, size, "wrote outside of its %zu bytes of scratch memory",
             fixture->scratch_bytes);
    return false;
}

void fixture_destroy(fixture *fixture)
{
    for (int t = 0; t < OP_MAX_TENSORS; t++) {
        free(fixture->tensors[t].memory);
        free(fixture->tensors[t].images[POISON_NAN]);
        free(fixture->tensors[t].images[POISON_LARGE]);
        free(fixture->tensors[t].roles);
        free(fixture->tensors[t].locked);
        if (fixture->tensors[t].there) munmap(fixture->tensors[t].there, fixture->tensors[t].bytes);
    }
    if (fixture->scratch_there) munmap(fixture->scratch_there, FIXTURE_SCRATCH_MOST);
    fixture->scratch_there = NULL;
    free(fixture->scratch);
    free(fixture->packed);
    free(fixture->packed_before);
    fixture->scratch = fixture->packed = fixture->packed_before = NULL;
    memset(fixture->tensors, 0, sizeof fixture->tensors);
}
