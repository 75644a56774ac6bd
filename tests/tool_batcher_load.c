/* The load of `quipu load` without HTTP: a closed loop of requests to the batcher, in one process.
 * The difference to `quipu load` over a server is what sockets, JSON and text cost.
 *
 *     tool_batcher_load MODEL DEVICE KV-TYPE STREAMS INPUT-TOKENS OUTPUT-TOKENS REQUESTS
 */
#include "base/clock.h"
#include "base/hash.h"
#include "server/batcher.h"

#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct world {
    qp_engine *engine;
    batcher *batcher;
    sem_t events;
    size_t input, output, asked, ended, tokens;
} world;

static void wake(void *context)
{
    sem_post(&((world *)context)->events);
}

static void fail(const qp_error *error)
{
    fprintf(stderr, "%s\n", error->message);
    exit(1);
}

static void ask(world *w)
{
    qp_error error;
    request *r = request_new();
    const uint64_t vocab = (uint64_t)qp_engine_get_info(w->engine)->vocab_size;
    r->prompt = malloc(w->input * sizeof *r->prompt);
    for (size_t i = 0; i < w->input; i++)
        r->prompt[i] = (int32_t)(hash_random(7, w->asked, i) % vocab);
    r->n_prompt = w->input;
    r->max_tokens = w->output;
    r->ignore_eos = true;
    if (qp_sampling_defaults(w->engine, &r->sampling, &error) != QP_OK) fail(&error);
    r->sampling.value[QP_TEMPERATURE] = 0;
    if (batcher_submit(w->batcher, r, &error) != QP_OK) fail(&error);
    request_release(r); /* the batcher holds it until its last event */
    w->asked++;
}

/* Reads the events of a request; true: it has ended. */
static bool read_events(world *w, request *r)
{
    bool ended = false;
    token_event event;
    do {
        while (!ended && request_next(r, 0, &event)) {
            ended = event.last;
            w->tokens += !event.last;
        }
    } while (!ended && !request_drained(r));
    request_release(r);
    return ended;
}

/* Asks `n` requests, at most `streams` at a time. Returns the seconds. */
static double run(world *w, size_t streams, size_t n)
{
    const uint64_t begin = clock_ns();
    size_t left = n;
    w->ended = w->tokens = 0;
    for (; left > 0 && n - left < streams; left--)
        ask(w);
    while (w->ended < n) {
        request *r = batcher_take_ready(w->batcher);
        if (!r) {
            sem_wait(&w->events);
        } else if (read_events(w, r)) {
            w->ended++;
            if (left > 0) ask(w), left--;
        }
    }
    return (double)(clock_ns() - begin) * 1e-9;
}

int main(int argc, char **argv)
{
    qp_error error;
    if (argc != 8) {
        fprintf(stderr, "usage: %s MODEL DEVICE KV-TYPE STREAMS INPUT OUTPUT REQUESTS\n", argv[0]);
        return 2;
    }
    const size_t streams = strtoul(argv[4], NULL, 10), n = strtoul(argv[7], NULL, 10);
    world w = {.input = strtoul(argv[5], NULL, 10), .output = strtoul(argv[6], NULL, 10)};
    const qp_engine_options options = {.size = sizeof options,
                                       .model = argv[1],
                                       .device = argv[2],
                                       .kv_type = argv[3],
                                       .context = (int64_t)(w.input + w.output + 128),
                                       .max_sessions = (int64_t)streams,
                                       .max_outputs = streams < 32 ? 32 : (int64_t)streams};
    const batcher_options loop = {.wake = wake, .wake_context = &w};
    sem_init(&w.events, 0, 0);
    if (qp_engine_open(&options, &w.engine, &error) != QP_OK) fail(&error);
    if (batcher_open(&loop, w.engine, &w.batcher, &error) != QP_OK) fail(&error);
    run(&w, streams, streams);
    const double seconds = run(&w, streams, n);
    printf("%zu streams, %zu requests of %zu and %zu tokens: %.1f s, %.0f tokens/s out\n", streams,
           n, w.input, w.output, seconds, (double)w.tokens / seconds);
    batcher_close(w.batcher);
    qp_engine_close(w.engine);
    return 0;
}
