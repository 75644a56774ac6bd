/* quipu schedule: the forward pass as queues of instructions, before anything runs. */
#include "cli/cli.h"

#include "base/status.h"
#include "base/threads.h"
#include "schedule/print.h"

qp_status command_schedule(const cli_call *call)
{
    static const char *const settings[] = {"latency", "throughput"};
    static const char *const assignments[] = {"rr", "zz", "wave", "dag", "pool"};
    const cli_settings *s = call->settings;
    schedule_print_options options = {.workers = s->workers ? s->workers : threads_available(),
                                      .setting = settings[s->setting],
                                      .assignment = assignments[s->assign],
                                      .memory_fraction = s->memory_fraction,
                                      .context = s->context,
                                      .chunk = s->chunk,
                                      .bytes_per_second = s->bandwidth * 1e9,
                                      .flops_per_second = s->gflops * 1e9,
                                      .signal_ns = s->signal_ns,
                                      .list = s->list,
                                      .json = s->json,
                                      .verify = s->verify,
                                      .save = s->save};
    TRY(cli_model_path(call, &options.model));
    strbuf text = {0};
    qp_status status = schedule_print(&options, &text, call->error);
    if (status == QP_OK) status = cli_write(strbuf_text(&text), text.length, call->error);
    strbuf_free(&text);
    return status;
}
