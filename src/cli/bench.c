/* quipu bench: how fast a model reads a prompt and generates, in the conventions of llama-bench.
 *
 * pp N: one prompt of N tokens. tg N: N forward passes of one token each. Both begin after --depth
 * tokens of context. With --parallel P, P sequences of different tokens run side by side, as in
 * llama-batched-bench: the tokens of all sequences count, and the generated ones are the likeliest.
 * With --speculate or --draft, tg N makes N tokens, the likeliest each, in fewer passes.
 * The model is loaded once; every test has one warm-up run that is not counted. With --kernel all
 * tests run with quipu's own kernels and with those of the files, in turn. With --skip see
 * bench_skip.c.
 */
#include "cli/bench.h"

#include "base/clock.h"
#include "base/hash.h"
#include "base/status.h"
#include "text/json_string.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Whether rows say which kernels ran. */
static bool names_kernels(const bench *b)
{
    return b->call->settings->kernels.count > 0;
}

/* "rms_norm=mine.c, linear=other.c" */
static void put_kernels(const bench *b, strbuf *out)
{
    const option_strings *kernels = &b->call->settings->kernels;
    if (!b->own) strbuf_puts(out, "quipu's own");
    for (int i = 0; b->own && i < kernels->count; i++)
        strbuf_printf(out, "%s%s", i ? " " : "", kernels->items[i]);
}

static bool has_ranks(const bench *b)
{
    return b->call->settings->ranks > 1;
}

/* Columns that most tables do not have, before the others. */
static void put_first_heads(const bench *b, strbuf *out)
{
    const bool csv = b->call->settings->format == CSV;
    if (names_kernels(b)) strbuf_puts(out, csv ? "kernels," : "| kernels ");
    if (has_ranks(b)) strbuf_puts(out, csv ? "ranks," : "| ranks ");
}

static void put_first_cells(const bench *b, strbuf *out)
{
    const bool csv = b->call->settings->format == CSV;
    if (names_kernels(b)) {
        strbuf_puts(out, csv ? "" : "| ");
        put_kernels(b, out);
        strbuf_puts(out, csv ? "," : " ");
    }
    if (has_ranks(b))
        strbuf_printf(out, csv ? "%lld," : "| %lld ", (long long)b->call->settings->ranks);
}

static size_t parallel_of(const bench *b)
{
    return (size_t)b->call->settings->parallel;
}

static qp_status eval(bench *b, size_t first, size_t count)
{
    for (size_t i = 0; i < parallel_of(b); i++)
        b->inputs[i] = (qp_input){
            .session = b->sessions[i],
            .tokens = b->tokens + i * (size_t)b->call->settings->context + first,
            .count = count,
        };
    return qp_eval(b->engine, b->inputs, parallel_of(b), NULL, NULL, &cli_interrupted,
                   b->call->error);
}

static bool speculates(const bench *b)
{
    return b->call->settings->speculate || b->call->settings->draft;
}

/* Makes `count` tokens of each sequence after the depth, with proposals. */
static qp_status speculate(bench *b, size_t depth, size_t count)
{
    const size_t n = parallel_of(b);
    const qp_sampling likeliest = {.size = sizeof likeliest,
                                   .value = {[QP_TOP_P] = 1, [QP_REPETITION_PENALTY] = 1}};
    for (size_t i = 0; i < n; i++) {
        b->options[i] = (qp_generate_options){
            .size = sizeof *b->options,
            .prompt = b->tokens + i * (size_t)b->call->settings->context + depth,
            .n_prompt = 1,
            .sampling = &likeliest,
            .max_tokens = (int64_t)count,
            .cancel = &cli_interrupted};
        b->made[i].size = sizeof *b->made;
        b->answers[i] = (qp_answer){b->sessions[i], &b->options[i], &b->made[i]};
    }
    TRY(qp_generate_together(b->answers, n, b->call->error));
    for (size_t i = 0; i < n; i++) {
        b->proposed += b->made[i].proposed_tokens;
        b->accepted += b->made[i].accepted_tokens;
        b->generated += b->made[i].generated_tokens;
        b->passes += b->made[i].prompt_passes + b->made[i].generate_passes;
    }
    return cli_interrupted ? error_set(b->call->error, QP_CANCELLED, "interrupted") : QP_OK;
}

/* Runs `count` passes after the depth. */
static qp_status generate(bench *b, size_t depth, size_t count)
{
    if (speculates(b)) return speculate(b, depth, count);
    if (parallel_of(b) == 1 && !b->feeds_back) {
        for (size_t i = 0; i < count; i++)
            TRY(eval(b, depth + i, 1));
        return QP_OK;
    }
    for (size_t i = 0; i < parallel_of(b); i++)
        b->next[i] = b->tokens[i * (size_t)b->call->settings->context + depth];
    return qp_decode(b->engine, b->sessions, parallel_of(b), count, b->next, &cli_interrupted,
                     b->call->error);
}

qp_status bench_time_run(bench *b, size_t depth, size_t count, bool one_by_one, double *seconds)
{
    for (size_t i = 0; i < parallel_of(b); i++)
        TRY(qp_session_truncate(b->sessions[i], depth, b->call->error));
    cli_hold_progress(true);
    uint64_t start = clock_ns();
    qp_status status = one_by_one ? generate(b, depth, count) : eval(b, depth, count);
    *seconds = (double)(clock_ns() - start) * 1e-9;
    cli_hold_progress(false);
    return status;
}

void bench_show_run(const char *kind, int64_t count, int64_t run, int64_t runs)
{
    cli_progress_callback *show = cli_progress();
    char text[80] = "warming up";
    if (!show) return;
    if (run)
        snprintf(text, sizeof text, "%s%lld: run %lld of %lld", kind, (long long)count,
                 (long long)run, (long long)runs);
    show(NULL, text, run > runs);
}

/* What a side's runs add up to. */
typedef struct bench_sums {
    double speed, squares; /* tokens per second */
} bench_sums;

static bench_result result_of(const bench *b, bool one_by_one, int64_t count, bench_sums sums)
{
    const cli_settings *s = b->call->settings;
    const double n = (double)s->repetitions, mean = sums.speed / n;
    const double variance = n > 1 ? (sums.squares - n * mean * mean) / (n - 1) : 0;
    const int64_t tokens = one_by_one ? s->parallel : count * s->parallel;
    double passes = mean / (double)(tokens < b->info.chunk ? tokens : b->info.chunk);
    if (one_by_one && b->generated) passes *= (double)b->passes / (double)b->generated;
    return (bench_result){.kind = one_by_one ? "tg" : "pp",
                          .tokens = count,
                          .mean = mean,
                          .deviation = variance > 0 ? sqrt(variance) : 0,
                          .gigabytes = passes * (double)b->info.read_bytes * 1e-9,
                          .proposed = b->proposed,
                          .accepted = b->accepted};
}

/* The sides take turns, so that what else the machine does disturbs them alike. */
static qp_status run_test(bench *const *sides, int n_sides, bool one_by_one, int64_t count)
{
    const char *kind = one_by_one ? "tg" : "pp";
    const cli_settings *s = sides[0]->call->settings;
    bench_sums sums[2] = {0};
    double seconds;
    int64_t runs = s->repetitions;
    int64_t warm = one_by_one && count > 8 ? 8 : count;
    bench_show_run(kind, count, 0, runs);
    for (int side = 0; side < n_sides; side++) {
        TRY(bench_time_run(sides[side], (size_t)s->depth, (size_t)warm, one_by_one, &seconds));
        sides[side]->proposed = sides[side]->accepted = 0;
        sides[side]->generated = sides[side]->passes = 0;
    }
    for (int64_t i = 0; i < runs * n_sides; i++) {
        const int64_t side = i % n_sides;
        bench_show_run(kind, count, i / n_sides + 1, runs);
        TRY(bench_time_run(sides[side], (size_t)s->depth, (size_t)count, one_by_one, &seconds));
        double speed = (double)(count * s->parallel) / seconds;
        sums[side].speed += speed;
        sums[side].squares += speed * speed;
    }
    bench_show_run(kind, count, runs + 1, runs);
    for (int side = 0; side < n_sides; side++) {
        bench *b = sides[side];
        b->results[b->n_results++] = result_of(b, one_by_one, count, sums[side]);
    }
    return QP_OK;
}

static const bench_result *own_result(const bench *b, const bench_result *r)
{
    return &b->own->results[r - b->results];
}

static void print_row(const bench *b, const bench_result *r, strbuf *out)
{
    static const char *const rows[] = {
        "| %s | %s | %.2f | %d | %lld | %lld | %s%lld | %.2f ± %.2f | %.1f |\n",
        "%s,%s,%.3f,%d,%lld,%lld,%s%lld,%.4f,%.4f,%.3f\n",
    };
    const cli_settings *s = b->call->settings;
    put_first_cells(b, out);
    strbuf_printf(out, rows[s->format], b->model, b->info.device,
                  (double)b->info.weight_bytes * 1e-9, b->info.threads, (long long)s->parallel,
                  (long long)s->depth, r->kind, (long long)r->tokens, r->mean, r->deviation,
                  r->gigabytes);
}

static void print_object(const bench *b, const bench_result *r, strbuf *out)
{
    const cli_settings *s = b->call->settings;
    strbuf_puts(out, "{\"model\": ");
    json_put_string(out, b->model, strlen(b->model));
    strbuf_puts(out, ", \"device\": ");
    json_put_string(out, b->info.device, strlen(b->info.device));
    strbuf_printf(out,
                  ", \"gigabytes\": %.4f, \"threads\": %d, \"parallel\": %lld, \"depth\": %lld, "
                  "\"test\": \"%s%lld\", \"tokens_per_second\": %.4f, \"deviation\": %.4f, "
                  "\"gigabytes_per_second\": %.3f",
                  (double)b->info.weight_bytes * 1e-9, b->info.threads, (long long)s->parallel,
                  (long long)s->depth, r->kind, (long long)r->tokens, r->mean, r->deviation,
                  r->gigabytes);
    if (has_ranks(b)) strbuf_printf(out, ", \"ranks\": %lld", (long long)s->ranks);
    if (r->proposed)
        strbuf_printf(out, ", \"proposed_tokens\": %llu, \"accepted_tokens\": %llu",
                      (unsigned long long)r->proposed, (unsigned long long)r->accepted);
    if (b->read_speed > 0)
        strbuf_printf(out, ", \"read_gigabytes_per_second\": %.1f", b->read_speed * 1e-9);
    if (names_kernels(b)) {
        strbuf kernels = {0};
        put_kernels(b, &kernels);
        strbuf_puts(out, ", \"kernels\": ");
        json_put_string(out, strbuf_text(&kernels), kernels.length);
        strbuf_free(&kernels);
    }
    if (b->own) strbuf_printf(out, ", \"times_own\": %.4f", r->mean / own_result(b, r)->mean);
    strbuf_puts(out, "}");
}

/* The GPU's own read bandwidth, measured in the same run, with which generation is compared. */
static void print_read_speed(const bench *b, double gigabytes, strbuf *out)
{
    strbuf_printf(out, "\nread bandwidth of this GPU in this run: %.0f GB/s", b->read_speed * 1e-9);
    if (b->call->settings->n_generate)
        strbuf_printf(out, "; generating reads weights at %.1f %% of it",
                      100e9 * gigabytes / b->read_speed);
    strbuf_puts(out, "\n");
}

/* How fast each test was with the files' kernels, as a multiple of quipu's own. */
static void print_ratios(const bench *b, strbuf *out)
{
    put_kernels(b, out);
    for (int i = 0; i < b->n_results; i++) {
        const bench_result *r = &b->results[i];
        strbuf_printf(out, "%s %s%lld %.3f times", i ? "," : ":", r->kind, (long long)r->tokens,
                      r->mean / own_result(b, r)->mean);
    }
    strbuf_puts(out, " the tokens/s of quipu's own kernels\n");
}

static void print_proposals(const bench_result *r, strbuf *out)
{
    strbuf_printf(out, "\n%s%lld: %llu of %llu proposed tokens were accepted\n", r->kind,
                  (long long)r->tokens, (unsigned long long)r->accepted,
                  (unsigned long long)r->proposed);
}

static void print_rows(const bench *b, strbuf *out)
{
    const bool json = b->call->settings->format == JSON;
    for (int i = 0; i < b->n_results; i++) {
        if (json && (i > 0 || b->own)) strbuf_puts(out, ",\n ");
        (json ? print_object : print_row)(b, &b->results[i], out);
    }
}

static void print_results(const bench *b, strbuf *out)
{
    static const char *const heads[] = {
        "| model | device | weights GB | threads | parallel | depth | test | tokens/s | "
        "weights GB/s |\n|---|---|---|---|---|---|---|---|---|\n",
        "model,device,gigabytes,threads,parallel,depth,test,tokens_per_second,"
        "deviation,gigabytes_per_second\n",
        "["};
    const int format = b->call->settings->format;
    const bool json = format == JSON;
    const int n_first = names_kernels(b) + has_ranks(b);
    if (!json) put_first_heads(b, out);
    if (format == MARKDOWN)
        strbuf_printf(out, "%.*s%.*s%s", (int)strcspn(heads[0], "\n") + 1, heads[0], 4 * n_first,
                      "|---|---", strchr(heads[0], '\n') + 1);
    else
        strbuf_puts(out, heads[format]);
    if (b->own) print_rows(b->own, out);
    print_rows(b, out);
    if (json) strbuf_puts(out, "]\n");
    if (!json && b->read_speed > 0)
        print_read_speed(b, b->results[b->n_results - 1].gigabytes, out);
    for (int i = 0; format == MARKDOWN && i < b->n_results; i++)
        if (b->results[i].proposed) print_proposals(&b->results[i], out);
    if (format == MARKDOWN && b->own) print_ratios(b, out);
}

static qp_status run_tests(bench *const *sides, int n_sides)
{
    bench *b = sides[n_sides - 1];
    const cli_settings *s = b->call->settings;
    double seconds;
    for (int side = 0; side < n_sides && s->depth; side++)
        TRY(bench_time_run(sides[side], 0, (size_t)s->depth, false, &seconds));
    if (s->n_prompt) TRY(run_test(sides, n_sides, false, s->n_prompt));
    if (s->n_generate) TRY(run_test(sides, n_sides, true, s->n_generate));
    if (s->format != CSV && b->feeds_back)
        TRY(qp_measure_read(b->engine, &b->read_speed, b->call->error));
    return QP_OK;
}

/* The context is exactly what the tests need, unless --context asks for more; with a schedule from
 * a file it is the usual one of `quipu schedule`. */
static qp_status choose_context(const cli_call *call)
{
    cli_settings *s = call->settings;
    int64_t most = s->n_prompt > s->n_generate ? s->n_prompt : s->n_generate;
    int64_t need = s->depth + most;
    if (most == 0)
        return error_set(call->error, QP_INVALID,
                         "-p 0 and -n 0 leave nothing to measure: give one of them a number");
    if (s->context && s->context < need)
        return error_set(call->error, QP_INVALID,
                         "the tests need a context of %lld, --context says %lld; without it they "
                         "get what they need",
                         (long long)need, (long long)s->context);
    if (!s->context && !s->schedule) s->context = need;
    return QP_OK;
}

static qp_status open_bench(bench *b)
{
    cli_settings *s = b->call->settings;
    TRY(cli_model_path(b->call, &b->model));
    TRY(cli_open_engine(b->call, s->parallel, &b->engine));
    b->info = *qp_engine_get_info(b->engine);
    s->context = b->info.context;
    TRY(choose_context(b->call)); /* once more: the tests must fit the engine's */
    size_t parallel = parallel_of(b), ids = parallel * (size_t)s->context;
    b->feeds_back = strcmp(b->info.device, "cpu") != 0;
    b->sessions = calloc(parallel, sizeof *b->sessions);
    b->inputs = calloc(parallel, sizeof *b->inputs);
    b->tokens = malloc(ids * sizeof *b->tokens);
    b->next = malloc(((size_t)s->n_generate + 1) * parallel * sizeof *b->next);
    b->options = calloc(parallel, sizeof *b->options);
    b->made = calloc(parallel, sizeof *b->made);
    b->answers = calloc(parallel, sizeof *b->answers);
    if (!b->sessions || !b->inputs || !b->tokens || !b->next || !b->options || !b->made ||
        !b->answers)
        return error_no_memory(b->call->error, "the tokens", ids);
    for (size_t i = 0; i < parallel; i++)
        TRY(qp_session_open(b->engine, &b->sessions[i], b->call->error));
    for (size_t i = 0; i < ids; i++)
        b->tokens[i] = (int32_t)(hash_random(1, 0, (uint64_t)i) % (uint64_t)b->info.vocab_size);
    return QP_OK;
}

static void close_bench(bench *b)
{
    for (size_t i = 0; b->sessions && i < parallel_of(b); i++)
        qp_session_close(b->sessions[i]);
    qp_engine_close(b->engine);
    free(b->sessions);
    free(b->inputs);
    free(b->tokens);
    free(b->next);
    free(b->options);
    free(b->made);
    free(b->answers);
}

/* The engine opens with the whole schedule; --skip changes it between runs. */
static qp_status take_skip(bench *b)
{
    cli_settings *s = b->call->settings;
    b->skip = s->left_out;
    s->left_out = NULL;
    if (b->skip && (b->own || speculates(b)))
        return error_set(b->call->error, QP_INVALID,
                         "--skip compares passes with and without kinds of instructions, and "
                         "cannot be combined with --%s",
                         b->own         ? "kernel"
                         : s->speculate ? "speculate"
                                        : "draft");
    return QP_OK;
}

/* quipu's own kernels run on the machine of those from files, not on the megakernel. */
static void compare_on_cuda(cli_settings *s)
{
    if (strcmp(cli_execs[s->exec], "auto") == 0) s->exec = cli_exec_index("cuda");
}

static qp_status run_and_print(bench *b, bench *const *sides, int n_sides, strbuf *out)
{
    if (b->skip) return bench_skip(b, out);
    TRY(run_tests(sides, n_sides));
    print_results(b, out);
    return QP_OK;
}

qp_status command_bench(const cli_call *call)
{
    cli_call without = *call;
    const bool given = call->n_kernels > 0 || call->n_cuda_kernels > 0;
    without.n_kernels = without.n_cuda_kernels = 0;
    bench own = {.call = &without}, b = {.call = call, .own = given ? &own : NULL};
    bench *const sides[] = {&own, &b};
    const int first = b.own ? 0 : 1;
    strbuf text = {0};
    TRY(choose_context(call));
    if (call->n_cuda_kernels > 0) compare_on_cuda(call->settings);
    TRY(take_skip(&b));
    cli_catch_interrupt();
    qp_status status = QP_OK;
    for (int side = first; side < 2 && status == QP_OK; side++)
        status = open_bench(sides[side]);
    if (status == QP_OK) status = run_and_print(&b, sides + first, 2 - first, &text);
    cli_release_interrupt();
    if (status == QP_OK) status = cli_write(strbuf_text(&text), text.length, call->error);
    strbuf_free(&text);
    for (int side = first; side < 2; side++)
        close_bench(sides[side]);
    return status;
}
