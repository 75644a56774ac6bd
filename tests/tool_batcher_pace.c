/* The batcher over a machine that only takes time, and no real time: what the rules of scheduling
 * make of given times of passes, and what the engine thread itself costs.
 *
 *     tool_batcher_pace NAME=VALUE...
 *
 * First as many requests as streams, to warm up, then a closed loop of `streams` requests with
 * `input` and `output` tokens, as `quipu load -C` has it. The clock moves only while a pass runs. A
 * pass of up to 64 rows takes `few` milliseconds, a larger one `many` and `row` microseconds a row,
 * but at least `few`; each sequence that decodes adds `attention` microseconds. `gap` microseconds
 * pass before a pass that reads prompts, because such a pass is begun when the one before it has
 * ended.
 *
 * Prints tokens a second of the whole run and of its middle third, passes by kind, the time to the
 * first token, the time between tokens, and the processor time of a step without its passes: what
 * the batcher takes (with admission, and the events of clients) and what qp_step() takes.
 */
#include "base/hash.h"
#include "engine/engine.h"
#include "engine/step_parts.h"
#include "server/batcher_state.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { GROUP = 8, KINDS = 3, MOST_READERS = 16 };

typedef enum pass_kind { MIXED, PROMPTS, DECODING } pass_kind;

typedef struct setting {
    const char *name, *help;
    double value;
} setting;

enum {
    STREAMS,
    INPUT,
    OUTPUT,
    REQUESTS,
    CHUNK,
    FEW,
    MANY,
    ROW,
    ATTENTION,
    GAP,
    PASSES,
    MORE,
    READERS,
    INVARIANT
};
static setting settings[] = {
    [STREAMS] = {"streams", "requests at a time", 64},
    [INPUT] = {"input", "tokens of a prompt", 1024},
    [OUTPUT] = {"output", "tokens of an answer", 128},
    [REQUESTS] = {"requests", "in all", 640},
    [CHUNK] = {"chunk", "rows that a pass may have", 2048},
    [FEW] = {"few", "ms of a pass of up to 64 rows", 4.5},
    [MANY] = {"many", "ms of a larger one, to which rows add", 0},
    [ROW] = {"row", "us that a row adds", 22.4},
    [ATTENTION] = {"attention", "us that a decoding sequence adds", 33},
    [GAP] = {"gap", "us before a pass with prompts", 200},
    [PASSES] = {"passes", "batcher_options.prompt_passes; 0: the default", 0},
    [READERS] = {"readers", "threads that read events meanwhile; 0: this one does, between steps",
                 0},
    [MORE] = {"more", "ms, batcher_options.prompt_ns; 0: the default", 0},
    [INVARIANT] = {"invariant", "1: passes of fixed shapes, as with batch_invariant", 0},
};
enum { N_SETTINGS = sizeof settings / sizeof *settings };

/* A run of the machine; at most two are under way. */
typedef struct flight {
    machine_request request;
    int64_t n_outputs;
    double ms;
} flight;

static struct {
    flight flights[2];
    int n_begun, n_ended;
    atomic_ullong now; /* virtual */
    double ms[KINDS];
    size_t passes[KINDS], rows[KINDS];
    uint64_t cpu, engine_cpu; /* processor time of the machine; of the engine, with the machine */
} fake;

static uint64_t cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* In place of clock_ns() and qp_step(): the linker's --wrap. */
uint64_t __wrap_clock_ns(void);
uint64_t __wrap_clock_ns(void)
{
    return fake.now;
}

qp_status __real_qp_step(qp_engine *engine, qp_sequence *sequences, size_t n, qp_error *error);
qp_status __wrap_qp_step(qp_engine *engine, qp_sequence *sequences, size_t n, qp_error *error);
qp_status __wrap_qp_step(qp_engine *engine, qp_sequence *sequences, size_t n, qp_error *error)
{
    const uint64_t begin = cpu_ns();
    const qp_status status = __real_qp_step(engine, sequences, n, error);
    fake.engine_cpu += cpu_ns() - begin;
    return status;
}

/* ---- the machine --------------------------------------------------------------------------- */

static int64_t decoding(const batch *b)
{
    int64_t n = 0;
    while (n < b->sizes.of[AXIS_SEQUENCES] && batch_i32(b, PLAN_QO_INDPTR)[n + 1] == n + 1)
        n++;
    return n;
}

static double value(int of)
{
    return settings[of].value;
}

static double pass_ms(const batch *b)
{
    const double rows = (double)batch_tokens(b);
    double ms = rows <= 64 ? value(FEW) : value(MANY) + rows * value(ROW) * 1e-3;
    if (ms < value(FEW)) ms = value(FEW);
    return ms + (double)decoding(b) * value(ATTENTION) * 1e-3;
}

static const char *accepts(const void *self, const machine_request *r)
{
    (void)self, (void)r;
    return NULL;
}

static machine_pace pace(const void *self, int64_t n, machine_choice choice)
{
    (void)self, (void)choice;
    return (machine_pace){.passes = n > 64 ? 2 : GROUP, .runs = 2};
}

static qp_status run(void *self, const machine_request *r, qp_error *error)
{
    const uint64_t begin = cpu_ns();
    const int64_t rows = batch_tokens(r->batch), alone = decoding(r->batch);
    const pass_kind kind = alone == rows ? DECODING : alone > 0 ? MIXED : PROMPTS;
    const int n = r->passes > 0 ? r->passes : 1;
    flight *f = &fake.flights[fake.n_begun++ % 2];
    (void)self, (void)error;
    *f = (flight){.request = *r, .n_outputs = batch_outputs(r->batch)};
    f->ms = pass_ms(r->batch) * n + (kind == DECODING ? 0 : value(GAP) * 1e-3);
    fake.ms[kind] += f->ms;
    fake.passes[kind] += (size_t)n;
    fake.rows[kind] += (size_t)(rows * n);
    for (int64_t i = 0; r->choice != MACHINE_LOGITS && i < f->n_outputs * n; i++)
        r->tokens[i] = (int32_t)(i % 100);
    fake.cpu += cpu_ns() - begin;
    return QP_OK;
}

static qp_status finish(void *self, int *passes, qp_error *error)
{
    const flight *f = &fake.flights[fake.n_ended++ % 2];
    const machine_request *r = &f->request;
    (void)self, (void)error;
    *passes = r->passes > 0 ? r->passes : 1;
    fake.now += (uint64_t)(f->ms * 1e6);
    for (int pass = 0; r->on_tokens && pass < *passes; pass++)
        if (!r->on_tokens(r->context, r->tokens + pass * f->n_outputs)) break;
    return QP_OK;
}

static float *logits(void *self)
{
    static float none[1 << 20];
    (void)self;
    return none;
}

static qp_status copy_page(void *self, int32_t from, int32_t to, qp_error *error)
{
    (void)self, (void)from, (void)to, (void)error;
    return QP_OK;
}

static const machine_type machine_time_only = {.name = "time only",
                                               .accepts = accepts,
                                               .pace = pace,
                                               .run = run,
                                               .wait = finish,
                                               .logits = logits,
                                               .copy_page = copy_page};

/* ---- the clients --------------------------------------------------------------------------- */

typedef struct world {
    qp_engine *engine;
    batcher *batcher;
    pthread_mutex_t mutex; /* of what follows, among readers */
    atomic_bool over;
    atomic_size_t n_over; /* as `ended`, for the engine's thread */
    size_t n, asked, ended, tokens;
    size_t turns;
    uint64_t turn_cpu;
    uint64_t prompts; /* so far: each has tokens of its own */
    uint64_t thirds[4];
    size_t tokens_at[4];
    double *first; /* [requests], ms */
} world;

static void fail(const qp_error *error)
{
    fprintf(stderr, "%s\n", error->message);
    exit(1);
}

static void ask(world *w)
{
    qp_error error;
    request *r = request_new();
    r->n_prompt = (size_t)value(INPUT);
    r->prompt = malloc(r->n_prompt * sizeof *r->prompt);
    for (size_t i = 0; i < r->n_prompt; i++)
        r->prompt[i] = (int32_t)(hash_random(7, w->prompts, i) % 100);
    r->max_tokens = (size_t)value(OUTPUT);
    r->ignore_eos = true;
    if (qp_sampling_defaults(w->engine, &r->sampling, &error) != QP_OK) fail(&error);
    r->sampling.value[QP_TEMPERATURE] = 0;
    if (batcher_submit(w->batcher, r, &error) != QP_OK) fail(&error);
    request_release(r);
    w->asked++;
    w->prompts++;
}

/* The next request begins at once. */
static void note_end(world *w, const request *r)
{
    w->first[w->ended++] = (double)(r->first_token - r->arrived) * 1e-6;
    for (size_t i = 1; i < 4; i++)
        if (w->ended == w->n * i / 3) w->thirds[i] = fake.now, w->tokens_at[i] = w->tokens;
    if (w->asked < w->n) ask(w);
    atomic_store(&w->n_over, w->ended);
}

static void read_events(world *w, request *r)
{
    bool ended = false;
    size_t tokens = 0;
    token_event event;
    do {
        while (!ended && request_next(r, 0, &event)) {
            ended = event.last;
            tokens += !event.last;
        }
    } while (!ended && !request_drained(r));
    pthread_mutex_lock(&w->mutex);
    w->tokens += tokens;
    if (ended) note_end(w, r);
    pthread_mutex_unlock(&w->mutex);
    request_release(r);
}

static bool read_ready(world *w)
{
    request *r = batcher_take_ready(w->batcher);
    if (r) read_events(w, r);
    return r != NULL;
}

static void *reader(void *context)
{
    world *w = context;
    while (!atomic_load(&w->over))
        if (!read_ready(w)) usleep(20);
    return NULL;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Answers `n` requests, at most `streams` at a time. */
static void loop(world *w, size_t n)
{
    const size_t streams = (size_t)value(STREAMS);
    memset(fake.ms, 0, sizeof fake.ms);
    memset(fake.passes, 0, sizeof fake.passes);
    memset(fake.rows, 0, sizeof fake.rows);
    fake.cpu = fake.engine_cpu = 0;
    w->asked = w->ended = w->tokens = w->turns = 0;
    w->turn_cpu = 0;
    atomic_store(&w->n_over, 0);
    w->thirds[0] = fake.now;
    w->n = n;
    for (size_t i = 0; i < n && i < streams; i++)
        ask(w);
    while (atomic_load(&w->n_over) < n) {
        const uint64_t begin = cpu_ns();
        batcher_turn(w->batcher);
        w->turn_cpu += cpu_ns() - begin;
        w->turns++;
        if (value(READERS) > 0)
            sched_yield();
        else
            while (read_ready(w))
                continue;
    }
}

static void print(world *w)
{
    static const char *const kinds[] = {"mixed", "prompts", "decoding"};
    const size_t n = w->ended;
    const double turns = (double)w->turns * 1e3;
    const histogram *next = &w->batcher->stats.next_token;
    qsort(w->first, n, sizeof *w->first, by_value);
    printf("%.0f tokens/s out, %.0f in the middle third; TTFT p50 %.1f ms, p99 %.0f; between "
           "tokens %.2f ms; a step takes the batcher %.1f us, the engine %.1f us\n",
           (double)w->tokens / ((double)(fake.now - w->thirds[0]) * 1e-9),
           (double)(w->tokens_at[2] - w->tokens_at[1]) /
               ((double)(w->thirds[2] - w->thirds[1]) * 1e-9),
           w->first[n / 2], w->first[n * 99 / 100], next->sum / (double)next->count * 1e3,
           (double)(w->turn_cpu - fake.engine_cpu) / turns,
           (double)(fake.engine_cpu - fake.cpu) / turns);
    for (int k = 0; k < KINDS; k++)
        if (fake.passes[k])
            printf("  %-8s %6zu passes of %6.1f rows, %7.3f ms each, %6.0f ms\n", kinds[k],
                   fake.passes[k], (double)fake.rows[k] / (double)fake.passes[k],
                   fake.ms[k] / (double)fake.passes[k], fake.ms[k]);
}

static int take_settings(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const char *equals = strchr(argv[i], '=');
        int s = 0;
        while (s < N_SETTINGS && equals &&
               (strlen(settings[s].name) != (size_t)(equals - argv[i]) ||
                strncmp(settings[s].name, argv[i], (size_t)(equals - argv[i])) != 0))
            s++;
        if (!equals || s == N_SETTINGS) {
            for (s = 0; s < N_SETTINGS; s++)
                fprintf(stderr, "  %-10s %s (%g)\n", settings[s].name, settings[s].help, value(s));
            return 2;
        }
        settings[s].value = strtod(equals + 1, NULL);
    }
    return 0;
}

int main(int argc, char **argv)
{
    qp_error error;
    if (take_settings(argc, argv)) return 2;
    const int64_t streams = (int64_t)value(STREAMS), fillers = value(INVARIANT) != 0;
    const double filled = value(INPUT) + value(OUTPUT) > value(CHUNK) ? 0 : value(CHUNK);
    const qp_engine_options options = {.size = sizeof options,
                                       .model = "synthetic:tiny",
                                       .device = "cpu",
                                       .threads = 1,
                                       .context =
                                           (int64_t)(value(INPUT) + value(OUTPUT) + filled) + 128,
                                       .chunk = (int64_t)value(CHUNK),
                                       .max_sessions = streams + fillers,
                                       .max_outputs = streams < 32 ? 32 : streams};
    const batcher_options loop_options = {.prompt_passes = value(PASSES),
                                          .prompt_ns = (uint64_t)(value(MORE) * 1e6)};
    pthread_t readers[MOST_READERS];
    world w = {.first = calloc((size_t)(value(REQUESTS) + value(STREAMS)), sizeof(double))};
    if (qp_engine_open(&options, &w.engine, &error) != QP_OK) fail(&error);
    machine *memory = &w.engine->slots[ENGINE_MACHINES - 1];
    const machine own = *memory;
    *memory = (machine){.type = &machine_time_only};
    w.engine->max_sessions = streams;
    if (fillers && step_fix_shapes(w.engine, &error) != QP_OK) fail(&error);
    w.engine->device.context = (void *)&fake; /* the batcher's rules are those of a GPU */
    if (batcher_create(&loop_options, w.engine, &w.batcher, &error) != QP_OK) fail(&error);
    pthread_mutex_init(&w.mutex, NULL);
    for (int i = 0; i < (int)value(READERS) && i < MOST_READERS; i++)
        pthread_create(&readers[i], NULL, reader, &w);
    loop(&w, (size_t)value(STREAMS)); /* the batcher measures passes meanwhile */
    loop(&w, (size_t)value(REQUESTS));
    atomic_store(&w.over, true);
    for (int i = 0; i < (int)value(READERS) && i < MOST_READERS; i++)
        pthread_join(readers[i], NULL);
    print(&w);
    batcher_close(w.batcher);
    step_drop(w.engine);
    *memory = own;
    w.engine->device.context = NULL;
    qp_engine_close(w.engine);
    free(w.first);
    return 0;
}
