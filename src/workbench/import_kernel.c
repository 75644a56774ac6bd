/* Solutions that are kernels of operators: see import.h. */
#include "workbench/import.h"
#include "workbench/timing.h"

#include <stdio.h>
#include <string.h>

bool import_is_kernel(const schema_solution *solution, const definition *own)
{
    char expected[128];
    static const char *const languages[] = {"c", "cpp", "cuda"};
    bool compiled = false;
    for (size_t i = 0; i < sizeof languages / sizeof *languages; i++)
        compiled = compiled || strcmp(solution->language, languages[i]) == 0;
    if (!own || !compiled) return false;
    const bool cuda = strcmp(solution->language, "cuda") == 0;
    snprintf(expected, sizeof expected, "%s_%s", own->op, cuda ? "launch" : "kernel");
    return strcmp(solution->symbol, expected) == 0;
}

static void refuse(check_verdict *verdict, check_status status, const char *before,
                   const char *detail)
{
    verdict->status = status;
    snprintf(verdict->detail, sizeof verdict->detail, "%s%.400s", before, detail);
}

/* Times a kernel that passed its check; the results of the timed calls are verified too. */
static void time_kernel(const workbench_import_options *options, const candidate *candidate,
                        const char *case_text, evaluation *out)
{
    timing_report times = {0};
    timing_request request = {.op = candidate->op,
                              .workload = case_text,
                              .candidate = candidate,
                              .features = 0,
                              .threads = options->threads,
                              .timeout_ms = options->timeout_ms,
                              .rounds = options->rounds,
                              .seed = options->seed,
                              .with_reference = true};
    timing_run(&request, &times);
    const timing *last = &times.entries[times.n > 0 ? times.n - 1 : 0];
    if (times.status != CHECK_PASSED) {
        refuse(&out->verdict, times.status, "", times.detail);
    } else if (times.declined) {
        refuse(&out->verdict, CHECK_INCORRECT_SHAPE, "declined by accepts() of ",
               candidate->op->name);
    } else if (last->status != CHECK_PASSED) {
        refuse(&out->verdict, last->status, "wrong after the timing; ", times.detail);
    } else {
        out->latency_ms = last->result.seconds.median * 1e3;
        out->reference_ms = times.entries[0].result.seconds.median * 1e3;
    }
}

void import_kernel(const workbench_import_options *options, const candidate *candidate,
                   const char *case_text, evaluation *out)
{
    bool declined = false;
    *out = (evaluation){.verdict = candidate->verdict}; /* of compiling and loading it */
    check_verdict *verdict = &out->verdict;
    if (verdict->status == CHECK_PASSED)
        candidate_check(candidate, case_text, options->seed, options->timeout_ms, verdict,
                        &declined);
    if (verdict->status == CHECK_PASSED) time_kernel(options, candidate, case_text, out);
    if (verdict->status == CHECK_PASSED && candidate->cuda)
        snprintf(verdict->detail, sizeof verdict->detail,
                 "latency includes carrying the tensors to the device and back");
}
