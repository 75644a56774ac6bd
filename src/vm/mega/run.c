/* Launches of the megakernel, and the delivery of their tokens.
 *
 * The kernel writes each token into pinned memory, where -1 stands until then. The host polls every
 * 100 us, which costs next to no CPU time, but waits in the driver for a launch's last token, so
 * that the next launch begins at once. To stop a launch early the host copies its number into GPU
 * memory on another stream; the kernel reads it there once a pass.
 */
#include "vm/mega/opcodes.h"
#include "vm/mega/parts.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

enum { LOOK_EVERY_NS = 100000 };

bool cuda_mega_takes(const cuda_mega *m, const batch *b, bool verifies)
{
    return mega_takes_batch(m, b, verifies);
}

qp_status mega_explain(const cuda_mega *m, qp_status status, qp_error *error)
{
    static const char *const data[] = {
        [-MEGA_WAIT_X] = "x",
        [-MEGA_WAIT_QKV] = "q, k, v",
        [-MEGA_WAIT_STATES] = "parts of the context",
        [-MEGA_WAIT_CHOICE] = "the choice of a token",
        [-MEGA_WAIT_FEATURES] = "other blocks' features",
    };
    const mega_report *r = m->report.data;
    char counter[32];
    const char *what = counter;
    if (status == QP_OK || r->state == 0) return status;
    if (r->waits_for >= 0)
        snprintf(counter, sizeof counter, "counter %d", r->waits_for);
    else if (r->waits_for <= MEGA_WAIT_RANK)
        snprintf(counter, sizeof counter, "rank %d", MEGA_WAIT_RANK - r->waits_for);
    else
        what = data[-r->waits_for];
    op_code op = mega_operator_of(r->opcode);
    return error_set(error, QP_DEVICE,
                     "the megakernel was stuck: block %d, instruction %d (%s, layer %d) "
                     "waited for %s, expected %u, found %u, in pass %u; please report it, and use "
                     "--exec cuda meanwhile",
                     r->block, r->entry, op < OP_COUNT ? op_get(op)->name : "unknown", r->layer,
                     what, r->expected, r->found, r->pass);
}

static void set_request(cuda_mega *m, const cuda_mega_request *request)
{
    mega_arguments *a = &m->arguments;
    a->n_stops = request ? (int32_t)request->n_stops : 0;
    if (!request) return;
    a->sampling = request->sampling;
    a->history = request->history;
    if (request->n_stops > 0)
        memcpy(a->stops, request->stops, request->n_stops * sizeof *request->stops);
}

static qp_status launch(cuda_mega *m, const batch *b, bool chooses, int n_passes, qp_error *error)
{
    const cuda_executor *x = m->executor;
    const cuda_device *d = x->device;
    mega_arguments *a = &m->arguments;
    a->pages = cuda_executor_address(x, PLAN_KV_INDICES, 0);
    a->token = batch_i32(b, PLAN_TOKEN_IDS)[0];
    a->first_position = batch_i32(b, PLAN_POSITION_IDS)[0];
    a->n_passes = n_passes;
    a->launch++;
    memset(m->tokens.data, -1, (size_t)n_passes * sizeof(int32_t));
    return cuda_check(d->driver->launch_cooperative(chooses ? m->choosing : m->kernel,
                                                    (unsigned)m->n_blocks, 1, 1, MEGA_THREADS, 1, 1,
                                                    (unsigned)cuda_mega_shared_bytes(m), d->stream,
                                                    (void *[]){a}),
                      "launching the megakernel", error);
}

/* A launch's tokens on their way to the caller. */
typedef struct delivery {
    const cuda_mega *mega;
    const cuda_mega_request *request;
    int n_passes, delivered;
    bool stopped; /* the caller wants no more */
} delivery;

static int32_t token_at(const cuda_mega *m, int index)
{
    return __atomic_load_n((const int32_t *)m->tokens.data + index, __ATOMIC_RELAXED);
}

/* Asks the launch to stop. If the copy fails, the launch goes on to its last pass. */
static void request_stop(const cuda_mega *m)
{
    const cuda_device *d = m->executor->device;
    *(uint32_t *)m->stop_request.data = m->arguments.launch;
    d->driver->copy_to_device(m->arguments.stop_request, m->stop_request.data, sizeof(uint32_t),
                              m->side_stream);
}

/* Delivers the tokens that have come. */
static void deliver_tokens(delivery *h)
{
    while (!h->stopped) {
        int32_t token = h->delivered < h->n_passes ? token_at(h->mega, h->delivered) : -1;
        h->stopped = h->request->cancel && *h->request->cancel;
        if (token < 0 || h->stopped) break;
        h->stopped = !h->request->on_token(h->request->context, token);
        h->delivered++;
    }
}

/* Returns when the launch has ended, also with an error, or has been asked to stop, or has one
 * token left to make. */
static void poll_tokens(delivery *h)
{
    const cuda_device *d = h->mega->executor->device;
    const struct timespec pause = {.tv_nsec = LOOK_EVERY_NS};
    for (deliver_tokens(h); !h->stopped && h->delivered < h->n_passes - 1; deliver_tokens(h)) {
        if (d->driver->stream_query(d->stream) != CUDA_NOT_READY) return;
        nanosleep(&pause, NULL);
    }
    if (h->stopped) request_stop(h->mega);
}

qp_status cuda_mega_run(cuda_mega *m, const batch *b, const cuda_mega_request *request,
                        int *n_passes, int32_t *tokens, qp_error *error)
{
    TRY(cuda_executor_take_inputs(m->executor, b, error));
    if (batch_tokens(b) > 1) return mega_run_batch(m, b, *n_passes, tokens, error);
    delivery h = {.mega = m, .request = request, .n_passes = *n_passes};
    bool timed = mega_begin_timing(m, *n_passes);
    *n_passes = 0;
    set_request(m, request);
    TRY(launch(m, b, request && request->chooses, h.n_passes, error));
    if (request) poll_tokens(&h);
    TRY(mega_explain(m, cuda_device_wait(m->executor->device, "the megakernel", error), error));
    int made = 0;
    while (made < h.n_passes && token_at(m, made) >= 0)
        made++;
    if (request) deliver_tokens(&h);
    m->arguments.first_pass += (uint32_t)made;
    if (timed) m->n_timed += (size_t)made;
    if (tokens) memcpy(tokens, m->tokens.data, (size_t)made * sizeof *tokens);
    *n_passes = made;
    return QP_OK;
}
