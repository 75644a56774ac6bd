/* Copies of rows to other GPUs beside kernels: see exchange_push_cuda.h. */
#include "op/exchange_push_cuda.h"

#include <string.h>

enum { TAG_COPIES = 0x636f7079 };

/* A copy, as a record's parameter. */
typedef struct pushed {
    cuda_address from, to;
    size_t bytes;
} pushed;

static const char preparing[] = "preparing copies between GPUs";

qp_status cuda_pusher_open(cuda_pusher *p, const cuda_device *device, comm *group, qp_error *error)
{
    const cuda_driver *driver = device->driver;
    *p = (cuda_pusher){.device = device, .group = group};
    TRY(cuda_check(driver->stream_create(&p->stream, CUDA_STREAM_NON_BLOCKING), preparing, error));
    TRY(cuda_check(driver->event_create(&p->made, CUDA_EVENT_NO_TIMING), preparing, error));
    return cuda_check(driver->event_create(&p->sent, CUDA_EVENT_NO_TIMING), preparing, error);
}

void cuda_pusher_close(cuda_pusher *p)
{
    if (!p->device) return;
    const cuda_driver *driver = p->device->driver;
    if (p->made) driver->event_destroy(p->made);
    if (p->sent) driver->event_destroy(p->sent);
    if (p->stream) driver->stream_destroy(p->stream);
    *p = (cuda_pusher){0};
}

/* A copy begins when the kernels that were launched before have ended. */
static int push(const void *context, const void *argument, cuda_stream stream)
{
    const cuda_pusher *p = context;
    const cuda_driver *driver = p->device->driver;
    pushed rows;
    memcpy(&rows, argument, sizeof rows);
    int result = driver->event_record(p->made, stream);
    if (result == CUDA_SUCCESS) result = driver->stream_wait(p->stream, p->made, 0);
    if (result == CUDA_SUCCESS)
        result = driver->copy_on_device(rows.to, rows.from, rows.bytes, p->stream);
    return result == CUDA_SUCCESS ? driver->event_record(p->sent, p->stream) : result;
}

/* If the group has failed it knows why: comm_check(). */
static int wait_for_copies(const void *context, const void *argument, cuda_stream stream)
{
    const cuda_pusher *p = context;
    (void)argument;
    comm_exchange(p->group, TAG_COPIES, 0, 0, COMM_BUSY);
    return p->device->driver->stream_wait(stream, p->sent, 0);
}

qp_status cuda_push(cuda_ops *ops, cuda_address from, cuda_address to, size_t bytes,
                    qp_error *error)
{
    const pushed rows = {from, to, bytes};
    return cuda_recording_add_host(ops->recording, "copy to a GPU", push, ops->pusher,
                                   (cuda_argument)CUDA_ARGUMENT(rows), error);
}

qp_status cuda_push_wait(cuda_ops *ops, qp_error *error)
{
    const uint64_t none = 0;
    return cuda_recording_add_host(ops->recording, "wait for copies", wait_for_copies, ops->pusher,
                                   (cuda_argument)CUDA_ARGUMENT(none), error);
}
