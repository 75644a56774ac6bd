/* Makes tokens with the kernels with delays, whose warps sleep at random, and counts those that
 * differ from the program's kernels.
 *
 * Usage: tool_delays MODEL TOKENS DELAY [HOW [CONTEXT [alone]]]
 *
 * It repeats runs of up to 960 tokens after CONTEXT (default 21) other tokens until there are
 * TOKENS. A warp sleeps up to DELAY nanoseconds before one queue entry in sixteen, chosen anew in
 * each run. HOW is one of: "likeliest", the default; "drawn", with penalties, by the megakernels
 * that sample; "ranks" and "ranks-drawn", the same by two ranks on two GPUs; "beside-2" to
 * "beside-8" and "drawn-beside-2" to "drawn-beside-8", the same by that many ranks beside each
 * other on one GPU; 2 to 64, that many sequences of different lengths side by side; "ranks-2" to
 * "ranks-64", the same on two GPUs. "4-ranks" and the like take four GPUs. From 9 sequences on, on
 * two GPUs from 2 on, the chain kernel runs, which sleeps up to 8192 ns whatever DELAY is. MODEL
 * has heads of 64, such as synthetic:tiny:BF16, or of 128 for the likeliest tokens in BF16.
 *
 * The exit status is 0 if each token equals that of the program's kernel. With "alone", tokens are
 * compared with those of the first run and the program's kernel does not run, so that a sanitizer
 * sees only the kernels with delays. Prompts are then read eight tokens at a time by simple
 * kernels, because compute-sanitizer fails if kernels that use tensor maps run uninstrumented.
 */
#include "base/clock.h"
#include "ranks_one_gpu.h"
#include "kernels_for_tests.h"
#include "likeliest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LONGEST = 960, LAUNCH = 128, FURTHER = 11 /* tokens from prompt to prompt */ };
enum { ROWS = 64, MEGAKERNEL_ROWS = 8, FEW = 8 };
enum { LONGEST_PROMPT = 1024, CONTEXT = LONGEST_PROMPT + ROWS * FURTHER + LONGEST };

typedef struct task {
    const char *model;
    qp_engine *engine;
    int64_t rows; /* 0: one sequence, by qp_generate() */
    bool draws;   /* tokens other than the likeliest */
    int ranks;
    bool beside;        /* ranks share a GPU */
    bool alone;         /* only the kernels with delays */
    size_t run, prompt; /* tokens of a run, and of the prompt */
    qp_sampling sampling;
    /* Of the program's kernels, then of those with delays. */
    int32_t tokens[2][(LONGEST + 1) * ROWS];
} task;

static bool is_batch(const task *t)
{
    return t->rows > MEGAKERNEL_ROWS || (t->rows > 0 && t->ranks > 1);
}

static qp_status open_task(task *t, qp_error *error)
{
    int64_t several = t->rows ? t->rows : 1;
    qp_engine_options options = {.size = sizeof options,
                                 .model = t->model,
                                 .device = "cuda",
                                 .exec = is_batch(t) ? "cuda" : "megakernel",
                                 .ranks = t->ranks};
    if (t->beside) options = one_gpu_options(t->model, t->ranks);
    options.kv_type = "F16";
    options.context = CONTEXT;
    /* Ranks beside each other read prompts by the megakernel too. */
    options.chunk = t->beside ? 1 : t->alone && !t->rows ? FEW : 0;
    options.max_sessions = options.max_outputs = several;
    TRY(qp_engine_open(&options, &t->engine, error));
    return t->beside ? one_gpu_load(t->engine, t->ranks, error) : QP_OK;
}

/* Takes the kernels with delays in place of the program's. */
static qp_status use_delays(task *t, uint32_t delay, qp_error *error)
{
    if (is_batch(t)) {
        qp_engine_close(t->engine);
        t->engine = NULL;
        TRY(open_task(t, error));
        return delay_batches(t->engine, error);
    }
    for (int rank = 0; rank < t->ranks; rank++) {
        cuda_mega *m = mega_of_rank(t->engine, rank);
        m->arguments.delay = m->batch.delay = delay;
        if (t->rows) TRY(find_delayed_batch(t->engine, &m->batch_kernel, error));
        if (t->draws) TRY(find_delayed(m, true, &m->choosing, error));
        TRY(find_delayed(m, false, &m->kernel, error));
    }
    return cuda_device_enter(&t->engine->device, error);
}

/* ---- one run ------------------------------------------------------------------------------- */

static void set_prompt(int32_t *prompt, size_t length, int sequence)
{
    for (size_t i = 0; i < length; i++)
        prompt[i] = (int32_t)((i * 97 + (size_t)sequence * 31 + 5) % 500);
}

/* Reads sequence `which`'s prompt. */
static qp_status read_prompt(const task *t, qp_session *session, int which, qp_error *error)
{
    int32_t prompt[LONGEST_PROMPT + ROWS * FURTHER];
    size_t length = t->prompt + (size_t)(which * FURTHER), at_once = t->alone ? FEW : length;
    set_prompt(prompt, length, which);
    for (size_t at = 0; at < length; at += at_once) {
        size_t n = length - at < at_once ? length - at : at_once;
        qp_input input = {.session = session, .tokens = prompt + at, .count = n};
        TRY(qp_eval(t->engine, &input, 1, NULL, NULL, NULL, error));
    }
    return QP_OK;
}

static qp_status decode_rows(task *t, int32_t *tokens, qp_error *error)
{
    qp_session *sessions[ROWS] = {0};
    qp_status status = QP_OK;
    for (int i = 0; i < t->rows && status == QP_OK; i++) {
        tokens[i] = (i * 13 + 7) % 500;
        status = qp_session_open(t->engine, &sessions[i], error);
        if (status == QP_OK) status = read_prompt(t, sessions[i], i, error);
    }
    if (status == QP_OK)
        status = qp_decode(t->engine, sessions, (size_t)t->rows, t->run, tokens, NULL, error);
    for (int i = 0; i < t->rows; i++)
        qp_session_close(sessions[i]);
    return status;
}

/* The tokens of a run of every sequence to t->tokens[which]; *made counts them. */
static qp_status run(task *t, int which, int64_t *made, qp_error *error)
{
    memset(t->tokens[which], -1, sizeof t->tokens[which]);
    *made = (int64_t)t->run * t->rows;
    if (t->rows) return decode_rows(t, t->tokens[which], error);
    token_list list;
    int32_t prompt[LONGEST_PROMPT];
    set_prompt(prompt, t->prompt, 0);
    TRY(generate_by(t->engine, &t->sampling, prompt, t->prompt, (int64_t)t->run, LAUNCH, &list,
                    error));
    memcpy(t->tokens[which], list.of, (size_t)list.count * sizeof *list.of);
    *made = list.count;
    if (list.count > 0) return QP_OK;
    return error_set(error, QP_DEVICE, "a run made no tokens");
}

static qp_status repeat(task *t, int64_t tokens, uint32_t delay, int64_t *changed, qp_error *error)
{
    int64_t made, in_all;
    if (t->alone) TRY(use_delays(t, delay, error));
    TRY(run(t, 0, &made, error));
    if (!t->alone) TRY(use_delays(t, delay, error));
    uint64_t begin = clock_ns();
    in_all = t->alone ? made : 0;
    for (*changed = 0; in_all < tokens; in_all += made) {
        TRY(run(t, 1, &made, error));
        for (size_t i = 0; i < sizeof t->tokens[0] / sizeof *t->tokens[0]; i++)
            *changed += t->tokens[0][i] != t->tokens[1][i];
    }
    printf("%lld tokens, %lld changed, %.1f s\n", (long long)in_all, (long long)*changed,
           (double)(clock_ns() - begin) * 1e-9);
    return QP_OK;
}

/* ---- what is asked for --------------------------------------------------------------------- */

static qp_status set_up(task *t, qp_error *error)
{
    static const struct {
        qp_setting setting;
        double value;
    } drawn[] = {{QP_TEMPERATURE, 1.5},
                 {QP_TOP_K, 40},
                 {QP_TOP_P, 0.95},
                 {QP_SEED, 7},
                 {QP_REPETITION_PENALTY, 1.1},
                 {QP_FREQUENCY_PENALTY, 0.25}};
    const cuda_mega *m = mega_of(t->engine);
    if (is_batch(t)) return QP_OK;
    TRY(check_kernels_for_tests(t->engine, !t->draws, error));
    if (t->rows && !m->batch_kernel)
        return error_set(error, QP_UNSUPPORTED, "this model's sequences do not run side by side");
    t->sampling.size = sizeof t->sampling;
    TRY(qp_sampling_defaults(t->engine, &t->sampling, error));
    t->sampling.n_stop_tokens = 0;
    for (size_t i = 0; i < sizeof drawn / sizeof *drawn; i++)
        if (t->draws || i == 0)
            TRY(qp_sampling_set(&t->sampling, drawn[i].setting, t->draws ? drawn[i].value : 0,
                                QP_FROM_PROGRAM, error));
    return QP_OK;
}

static const char *after(const char *word, const char *prefix)
{
    const size_t n = strlen(prefix);
    return strncmp(word, prefix, n) == 0 ? word + n : NULL;
}

/* Reads what makes the tokens: "likeliest", "drawn", "ranks", "ranks-drawn", "4-ranks", "beside-2",
 * "drawn-beside-2", "8", "ranks-8". */
static bool read_how(task *t, const char *how)
{
    char *end;
    const long count = strtol(how, &end, 10);
    const char *ranks = after(*end == '-' ? end + 1 : end, "ranks"), *drawn = after(how, "drawn-"),
               *beside = after(drawn ? drawn : how, "beside-");
    t->ranks = beside ? (int)strtol(beside, NULL, 10) : !ranks ? 1 : count ? (int)count : 2;
    t->beside = beside != NULL;
    t->draws = drawn || strcmp(ranks ? ranks : how, ranks ? "-drawn" : "drawn") == 0;
    if (t->ranks < 1 || t->ranks > ONE_GPU_MAX_RANKS || (t->beside && t->ranks < 2)) return false;
    if (drawn && !beside) return false;
    if (t->beside || t->draws || strcmp(how, "likeliest") == 0 || (ranks && !*ranks)) return true;
    t->rows = ranks ? strtoll(ranks + 1, NULL, 10) : count;
    return t->rows > 1 && t->rows <= ROWS;
}

/* Reads the arguments after the first three. */
static bool read_rest(task *t, int count, char **words)
{
    t->prompt = count > 1 ? strtoul(words[1], NULL, 10) : PROMPT;
    t->alone = count > 2;
    if (count > 3 || (t->alone && strcmp(words[2], "alone") != 0)) return false;
    if (t->prompt < 1 || t->prompt > LONGEST_PROMPT) return false;
    return read_how(t, count > 0 ? words[0] : "likeliest");
}

int main(int argc, char **argv)
{
    static task t;
    if (argc < 4 || !read_rest(&t, argc - 4, argv + 4)) {
        fprintf(stderr, "usage: tool_delays MODEL TOKENS DELAY [likeliest|drawn|[N-]ranks|"
                        "[N-]ranks-drawn|[drawn-]beside-N|[[N-]ranks-]2..64 [CONTEXT [alone]]]\n");
        return 2;
    }
    int64_t changed = 0, several = t.rows ? t.rows : 1, tokens = strtoll(argv[2], NULL, 10);
    t.run = tokens < LONGEST * several ? (size_t)((tokens + several - 1) / several) : LONGEST;
    t.model = argv[1];
    if (t.beside) one_gpu_prepare();
    qp_error error;
    qp_status status = open_task(&t, &error);
    if (status == QP_OK) status = set_up(&t, &error);
    if (status == QP_OK)
        status = repeat(&t, tokens, (uint32_t)strtoul(argv[3], NULL, 10), &changed, &error);
    if (status != QP_OK) fprintf(stderr, "tool_delays: %s\n", error.message);
    qp_engine_close(t.engine);
    return status != QP_OK || changed ? 1 : 0;
}
