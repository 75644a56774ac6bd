/* quipu schedule: the forward pass as queues of instructions, before anything runs. */
#include "cli/cli.h"

#include "base/status.h"
#include "base/threads.h"
#include "generate/compare.h"
#include "generate/measure.h"
#include "schedule/print.h"

static qp_status measure(const cli_call *call, int64_t workers, strbuf *out)
{
    measure_options options = {.threads = (int)workers,
                               .path = cli_costs_path(workers),
                               .progress = cli_progress(),
                               .cancel = &cli_interrupted};
    if (!options.path)
        return error_set(call->error, QP_INVALID,
                         "--measure: without HOME there is no cache that could hold the costs");
    cli_catch_interrupt();
    qp_status status = measure_costs(&options, out, call->error);
    cli_release_interrupt();
    return status;
}

static qp_status compare(const cli_call *call, int64_t workers, strbuf *out)
{
    const cli_settings *s = call->settings;
    bool asked = option_source_at(call->options, &s->setting) != OPTION_FROM_DEFAULT;
    compare_options options = {.threads = (int)workers,
                               .context = s->context,
                               .chunk = s->chunk,
                               .costs = cli_costs_path(workers),
                               .memory_fraction = s->memory_fraction,
                               .latency = asked && s->setting == 0,
                               .throughput = asked && s->setting == 1,
                               .json = s->json,
                               .progress = cli_progress(),
                               .cancel = &cli_interrupted};
    TRY(cli_model_path(call, &options.model));
    cli_catch_interrupt();
    qp_status status = schedule_compare(&options, out, call->error);
    cli_release_interrupt();
    return status;
}

static qp_status print(const cli_call *call, int64_t workers, strbuf *out)
{
    static const char *const settings[] = {"latency", "throughput"};
    static const char *const assignments[] = {"rr", "zz", "wave", "dag", "pool"};
    const cli_settings *s = call->settings;
    strbuf page = {0};
    schedule_print_options options = {.workers = workers,
                                      .setting = settings[s->setting],
                                      .assignment = assignments[s->assign],
                                      .memory_fraction = s->memory_fraction,
                                      .context = s->context,
                                      .chunk = s->chunk,
                                      .kv_partitions = s->kv_partitions,
                                      .sums = s->sums,
                                      .group = s->group,
                                      .bytes_per_second = s->bandwidth * 1e9,
                                      .flops_per_second = s->gflops * 1e9,
                                      .signal_ns = s->signal_ns,
                                      .costs = cli_costs_path(workers),
                                      .list = s->list,
                                      .json = s->json,
                                      .verify = s->verify,
                                      .save = s->save,
                                      .page = s->html ? &page : NULL};
    TRY(cli_model_path(call, &options.model));
    qp_status status = schedule_print(&options, out, call->error);
    if (status == QP_OK && s->html)
        status = cli_write_file(s->html, strbuf_text(&page), page.length, call->error);
    strbuf_free(&page);
    return status;
}

qp_status command_schedule(const cli_call *call)
{
    const cli_settings *s = call->settings;
    int64_t workers = s->workers ? s->workers : threads_available();
    strbuf text = {0};
    qp_status status = s->measure   ? measure(call, workers, &text)
                       : s->compare ? compare(call, workers, &text)
                                    : print(call, workers, &text);
    if (status == QP_OK) status = cli_write(strbuf_text(&text), text.length, call->error);
    strbuf_free(&text);
    return status;
}
