/* quipu ops list, describe, prompt: prints the operators' descriptions. */
#include "cli/cli.h"

#include "base/cpu.h"
#include "base/option_cache.h"
#include "base/status.h"
#include "base/threads.h"
#include "inspect/kernels_print.h"
#include "workbench/workbench.h"

/* Writes the text if it was made, and frees it. */
static qp_status print(strbuf *text, qp_status status, qp_error *error)
{
    if (status == QP_OK) status = cli_write(strbuf_text(text), text->length, error);
    strbuf_free(text);
    return status;
}

/* The operators of a model's plan, which may be named by a preset; 0: no model was named. */
static qp_status find_operators(const cli_call *call, uint64_t *operators)
{
    const cli_settings *s = call->settings;
    char preset[128];
    *operators = 0;
    if (!s->of) return QP_OK;
    plan_print_options options = {.sequences = 1,
                                  .ranks = 1,
                                  .page_size = 16,
                                  .kv_type = cli_kv_types[0],
                                  .form = (plan_form)s->plan_form};
    snprintf(preset, sizeof preset, "synthetic:%.100s", s->of);
    options.model = preset;
    if (kernels_of_plan(&options, operators, call->error) == QP_OK) return QP_OK;
    TRY(cli_hub_path(s->of, false, &options.model, call->error));
    return kernels_of_plan(&options, operators, call->error);
}

qp_status command_ops_list(const cli_call *call)
{
    strbuf text = {0};
    uint64_t only = 0;
    TRY(find_operators(call, &only));
    qp_status status =
        workbench_list(cpu_features(0), only, call->settings->json, &text, call->error);
    return print(&text, status, call->error);
}

qp_status command_ops_describe(const cli_call *call)
{
    const option_result *options = call->options;
    workbench_format format = (workbench_format)call->settings->page_format;
    bool all = call->settings->all;
    if (all == (options->n_positional == 1))
        return error_set(call->error, QP_INVALID,
                         "name one operator, or give --all; `quipu ops list` shows them");
    strbuf text = {0};
    qp_status status = all ? workbench_describe_all(format, &text, call->error)
                           : workbench_describe(options->positional[0], format, &text, call->error);
    return print(&text, status, call->error);
}

/* The file with the verdict on an operator's last candidate; NULL when there is no cache folder. */
static const char *verdict_path(const char *op_name)
{
    static char path[4096];
    char name[128];
    snprintf(name, sizeof name, "verdicts/%.60s.txt", op_name);
    return option_cache_path(name, path, sizeof path) ? path : NULL;
}

qp_status command_ops_prompt(const cli_call *call)
{
    const char *op_name = call->options->positional[0];
    const char *path = call->settings->last ? verdict_path(op_name) : NULL;
    if (call->settings->last && !path)
        return error_set(call->error, QP_INVALID,
                         "--last: without HOME there is no cache that could hold a verdict");
    strbuf text = {0};
    return print(
        &text,
        workbench_prompt(op_name, path, call->settings->kernel_device == 1, &text, call->error),
        call->error);
}

static void end_progress(void)
{
    if (cli_line()) cli_show_line(NULL, "");
}

/* A run that is cut off has shown what it has found so far. */
static qp_status show_rows(void *context, strbuf *text, qp_error *error)
{
    (void)context;
    end_progress();
    TRY(cli_write(strbuf_text(text), text->length, error));
    strbuf_clear(text);
    return cli_flush(error);
}

qp_status command_ops_check(const cli_call *call)
{
    const cli_settings *s = call->settings;
    const option_result *options = call->options;
    uint32_t off = 0;
    if (s->cpu_mask) TRY(cpu_features_parse(s->cpu_mask, &off, call->error));
    workbench_check_options check = {
        .ops = options->positional,
        .n_ops = options->n_positional,
        .variant = s->variant,
        .kernel = s->kernel,
        .unconfined = s->unconfined,
        .seed = (uint64_t)s->seed,
        .features = cpu_features(off),
        .device = s->kernel_device == 1,
        .timeout_ms = (int)s->timeout * 1000,
        .json = s->json,
        .cancel = &cli_interrupted,
        .verdict_path = options->n_positional ? verdict_path(options->positional[0]) : NULL,
        .progress = cli_line(),
        .rows = show_rows};
    strbuf text = {0};
    int n_failed = 0;
    if (s->kernel) cli_catch_endings();
    qp_status status = workbench_check(&check, &text, &n_failed, call->error);
    if (s->kernel) cli_release_endings();
    end_progress();
    TRY(print(&text, status, call->error));
    if (n_failed == 0) return QP_OK;
    return error_set(call->error, QP_FORMAT, "%d check%s did not pass", n_failed,
                     n_failed == 1 ? "" : "s");
}

qp_status command_ops_bench(const cli_call *call)
{
    const cli_settings *s = call->settings;
    const option_result *options = call->options;
    uint32_t off = 0;
    if (s->cpu_mask) TRY(cpu_features_parse(s->cpu_mask, &off, call->error));
    workbench_bench_options bench = {.ops = options->positional,
                                     .n_ops = options->n_positional,
                                     .variant = s->variant,
                                     .kernel = s->kernel,
                                     .workload = s->workload,
                                     .unconfined = s->unconfined,
                                     .seed = 1,
                                     .features = cpu_features(off),
                                     .device = s->kernel_device == 1,
                                     .threads = s->threads ? (int)s->threads : threads_available(),
                                     .rounds = (int)s->repetitions,
                                     .timeout_ms = (int)s->timeout * 1000,
                                     .cancel = &cli_interrupted,
                                     .format = s->json       ? WORKBENCH_JSON
                                               : s->markdown ? WORKBENCH_MARKDOWN
                                                             : WORKBENCH_TEXT,
                                     .progress = cli_line(),
                                     .rows = show_rows};
    strbuf text = {0};
    int n_wrong = 0;
    if (s->kernel) cli_catch_endings();
    qp_status status = workbench_bench(&bench, &text, &n_wrong, call->error);
    if (s->kernel) cli_release_endings();
    end_progress();
    TRY(print(&text, status, call->error));
    if (n_wrong == 0) return QP_OK;
    return error_set(call->error, QP_FORMAT, "%d kernels computed wrong results after the timing",
                     n_wrong);
}

qp_status command_ops_export(const cli_call *call)
{
    strbuf text = {0};
    qp_status status = workbench_export(call->options->positional[0], &text, call->error);
    return print(&text, status, call->error);
}

qp_status command_ops_import(const cli_call *call)
{
    const cli_settings *s = call->settings;
    const workbench_import_options options = {.data = s->data,
                                              .definition = s->definition,
                                              .python = s->python,
                                              .device = s->kernel_device == 1,
                                              .unconfined = s->unconfined,
                                              .save = s->save_traces,
                                              .atol = s->atol,
                                              .rtol = s->rtol,
                                              .seed = 1,
                                              .threads = s->threads ? (int)s->threads
                                                                    : threads_available(),
                                              .rounds = (int)s->repetitions,
                                              .timeout_ms = (int)s->timeout * 1000,
                                              .cancel = &cli_interrupted,
                                              .progress = cli_line()};
    strbuf text = {0}, notes = {0};
    int n_failed = 0;
    cli_catch_endings();
    qp_status status = workbench_import(call->options->positional[0], &options, &text, &notes,
                                        &n_failed, call->error);
    cli_release_endings();
    end_progress();
    if (notes.length) fprintf(stderr, "%s", strbuf_text(&notes));
    strbuf_free(&notes);
    TRY(print(&text, status, call->error));
    if (n_failed == 0) return QP_OK;
    return error_set(call->error, QP_FORMAT, "%d traces are not PASSED", n_failed);
}

qp_status command_ops_leaderboard(const cli_call *call)
{
    strbuf text = {0};
    qp_status status = workbench_leaderboard(call->options->positional[0], call->settings->json,
                                             &text, call->error);
    return print(&text, status, call->error);
}

qp_status command_ops_improve(const cli_call *call)
{
    const cli_settings *s = call->settings;
    if (!s->command)
        return error_set(call->error, QP_INVALID,
                         "--command is missing: the shell command that writes kernels");
    const workbench_improve_options options = {.op = call->options->positional[0],
                                               .command = s->command,
                                               .folder = s->out,
                                               .workload = s->workload,
                                               .rounds = (int)s->rounds,
                                               .seconds = (int)s->seconds,
                                               .command_timeout_ms = 600000,
                                               .beam = (int)s->beam,
                                               .resume = s->resume,
                                               .device = s->kernel_device == 1,
                                               .unconfined = s->unconfined,
                                               .seed = 1,
                                               .features = cpu_features(0),
                                               .threads = s->threads ? (int)s->threads
                                                                     : threads_available(),
                                               .repetitions = (int)s->repetitions,
                                               .timeout_ms = (int)s->timeout * 1000,
                                               .cancel = &cli_interrupted,
                                               .progress = cli_line()};
    strbuf text = {0};
    cli_catch_endings();
    qp_status status = workbench_improve(&options, &text, call->error);
    end_progress();
    /* What the rounds came to, also where none succeeded. */
    qp_error ignored;
    cli_write(strbuf_text(&text), text.length, &ignored);
    strbuf_free(&text);
    cli_release_endings();
    return status;
}
