/* Tensors and pages of the machine `ranks`: read together from the parts of all ranks, and written
 * to all of them. See ranks_machine.h.
 */
#include "vm/ranks_machine.h"

#include "vm/machine_run.h"
#include "lower/lower.h"

#include <stdlib.h>
#include <string.h>

/* The pieces of every rank's tensors, from the programs of all. */
static qp_status find_pieces(ranks_machine *m, qp_error *error)
{
    const size_t n = (size_t)(m->size * m->first.program.n_tensors);
    if (m->pieces) return QP_OK;
    rank_pieces *pieces = calloc(n, sizeof *pieces);
    if (!pieces) return error_no_memory(error, "ranks", n * sizeof *pieces);
    qp_status status = QP_OK;
    for (int r = 0; r < m->size && status == QP_OK; r++) {
        plan_options options = m->first.program.options;
        program of;
        options.rank = r;
        status = lower_rebuild(&m->first.program, &options, &of, error);
        for (int id = 0; status == QP_OK && id < of.n_tensors; id++)
            pieces[r * m->first.program.n_tensors + id] = rank_pieces_of(&of, (plan_tensor_id)id);
        program_free(&of);
    }
    if (status == QP_OK) m->pieces = pieces;
    if (status != QP_OK) free(pieces);
    return status;
}

/* Puts rows together from the parts of all ranks, which are as many as the command asks for. */
static qp_status join(ranks_machine *m, const rank_command *c, void *data, qp_error *error)
{
    const plan_tensor_id id = c->what == RANK_READ_PAGE ? PLAN_K_CACHE : (plan_tensor_id)c->tensor;
    TRY(find_pieces(m, error));
    TRY(rank_command_send(m->first.comm, c, NULL, error));
    const comm_part *parts = rank_member_collect(&m->first, c, error);
    if (!parts) return QP_IO;
    if (m->pieces[id].n == 0) {
        memcpy(data, parts[0].data, c->bytes);
        for (int r = 1; r < m->size; r++)
            rank_pieces_add(&m->pieces[id], c->bytes, parts[r].data, data);
        return QP_OK;
    }
    for (int r = 0; r < m->size; r++) {
        const rank_pieces *pieces = &m->pieces[r * m->first.program.n_tensors + id];
        rank_pieces_join(pieces, c->bytes / pieces->whole_row, parts[r].data, data);
    }
    return QP_OK;
}

qp_status ranks_read(void *self, plan_tensor_id id, int64_t layer, void *data, size_t bytes,
                     qp_error *error)
{
    const rank_command c = {.what = RANK_READ, .tensor = id, .layer = layer, .bytes = bytes};
    return join(self, &c, data, error);
}

qp_status ranks_read_page(void *self, int32_t page, void *data, qp_error *error)
{
    const ranks_machine *m = self;
    const rank_command c = {
        .what = RANK_READ_PAGE, .from = page, .bytes = machine_page_bytes(m->setup.program)};
    return join(self, &c, data, error);
}

static qp_status write_all(ranks_machine *m, const rank_command *c, const void *data,
                           qp_error *error)
{
    TRY(rank_command_send(m->first.comm, c, data, error));
    return ranks_checked(m, rank_member_put(&m->first, c, data, error), error);
}

qp_status ranks_write(void *self, plan_tensor_id id, int64_t layer, const void *data, size_t bytes,
                      qp_error *error)
{
    const rank_command c = {.what = RANK_WRITE, .tensor = id, .layer = layer, .bytes = bytes};
    return write_all(self, &c, data, error);
}

qp_status ranks_write_page(void *self, int32_t page, const void *data, qp_error *error)
{
    ranks_machine *m = self;
    const rank_command c = {
        .what = RANK_WRITE_PAGE, .from = page, .bytes = machine_page_bytes(m->setup.program)};
    return write_all(m, &c, data, error);
}

qp_status ranks_copy_page(void *self, int32_t from, int32_t to, qp_error *error)
{
    ranks_machine *m = self;
    const rank_command c = {.what = RANK_COPY_PAGE, .from = from, .to = to};
    TRY(rank_command_send(m->first.comm, &c, NULL, error));
    return ranks_checked(m, machine_copy_page(&m->first.machine, from, to, error), error);
}
