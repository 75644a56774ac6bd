/* Masks on their way to a GPU: see masks.h. */
#include "vm/cuda/masks.h"

#include <string.h>

qp_status cuda_masks_write(cuda_masks *m, const cuda_device *d, const program *p, int64_t slot,
                           const void *mask, size_t bytes, qp_error *error)
{
    const plan_tensor *t = &p->tensors[PLAN_ALLOWED];
    const size_t of_slot = t->bytes / (size_t)t->dims[0].size;
    const size_t begin = slot > 0 ? (size_t)slot * of_slot : 0, end = begin + bytes;
    if (!m->all.data) {
        TRY(cuda_pinned_alloc(d, t->bytes, "masks", &m->all, error));
        memset(m->all.data, 0, t->bytes);
    }
    memcpy((char *)m->all.data + begin, mask, bytes);
    const bool none = m->begin == m->end;
    if (none || begin < m->begin) m->begin = begin;
    if (none || end > m->end) m->end = end;
    return QP_OK;
}

qp_status cuda_masks_send(cuda_masks *m, const cuda_device *d, cuda_address to, qp_error *error)
{
    if (m->begin == m->end) return QP_OK;
    const size_t begin = m->begin, bytes = m->end - begin;
    m->begin = m->end = 0;
    return cuda_check(
        d->driver->copy_to_device(to + begin, (char *)m->all.data + begin, bytes, d->stream),
        "copying masks to the GPU", error);
}
