/* Candidates for whole models: see kernel.h. */
#include "workbench/kernel.h"

#include "base/names.h"
#include "workbench/candidate.h"
#include "workbench/describe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct workbench_kernel {
    candidate candidate;
    const char *text; /* "rms_norm=mine.c" */
    int n_passed;
};

/* The operator and the file of "rms_norm=mine.c". */
static qp_status split(const char *text, const op_info **op, const char **file, qp_error *error)
{
    char name[64];
    const char *equals = strchr(text, '=');
    if (!equals || !equals[1] || (size_t)(equals - text) >= sizeof name)
        return error_set(error, QP_INVALID,
                         "--kernel takes OPERATOR=FILE, such as rms_norm=mine.c; found '%.200s'",
                         text);
    snprintf(name, sizeof name, "%.*s", (int)(equals - text), text);
    *file = equals + 1;
    return describe_find(name, op, error);
}

static qp_status refuse(const workbench_kernel *k, const check_verdict *verdict, qp_error *error)
{
    const char *name = k->candidate.op->name, *file = strchr(k->text, '=') + 1;
    return error_set(error, QP_FORMAT,
                     "--kernel %.200s: %s: %.400s; `quipu ops check %s --kernel %.200s` says more",
                     k->text, check_status_name(verdict->status), verdict->detail, name, file);
}

static qp_status check_cases(workbench_kernel *k, const workbench_kernel_options *options,
                             qp_error *error)
{
    char what[160];
    snprintf(what, sizeof what, "checking %.100s", k->text);
    if (k->candidate.verdict.status != CHECK_PASSED) return refuse(k, &k->candidate.verdict, error);
    check_verdict verdict;
    if (options->progress) options->progress(options->context, what);
    candidate_check_all(&k->candidate, options->seed, options->timeout_ms, &verdict, &k->n_passed);
    if (options->cancel && *options->cancel) return error_set(error, QP_CANCELLED, "interrupted");
    return verdict.status == CHECK_PASSED ? QP_OK : refuse(k, &verdict, error);
}

qp_status workbench_kernel_open(const char *text, const workbench_kernel_options *options,
                                workbench_kernel **out, qp_error *error)
{
    const op_info *op;
    const char *file = NULL;
    *out = NULL;
    TRY(split(text, &op, &file, error));
    workbench_kernel *k = calloc(1, sizeof *k);
    if (!k) return error_no_memory(error, "a kernel", sizeof *k);
    k->text = text;
    /* Its code is loaded into this process afterwards, with the user's rights. What can be confined
     * until then is. */
    char why[160];
    const bool unconfined = name_ends_with(file, ".cu") || sandbox_missing(why, sizeof why);
    qp_status status = candidate_open(op, file, unconfined, options->cancel, &k->candidate, error);
    if (status == QP_OK) status = check_cases(k, options, error);
    if (status == QP_OK)
        *out = k;
    else
        workbench_kernel_close(k);
    return status;
}

int workbench_kernel_cases(const workbench_kernel *kernel)
{
    return kernel->n_passed;
}

bool workbench_kernel_is_cuda(const workbench_kernel *k)
{
    return k->candidate.cuda;
}

/* The file's name without its folder. */
static const char *name_of(const workbench_kernel *k)
{
    const char *file = strchr(k->text, '=') + 1, *slash = strrchr(file, '/');
    return slash ? slash + 1 : file;
}

qp_status workbench_kernel_load_cuda(const workbench_kernel *k, qp_cuda_kernel *out,
                                     qp_error *error)
{
    char message[400];
    if (!candidate_load_cuda(&k->candidate, out, message, sizeof message))
        return error_set(error, QP_FORMAT, "--kernel %.200s: %s", k->text, message);
    out->name = name_of(k);
    return QP_OK;
}

qp_status workbench_kernel_load(const workbench_kernel *k, qp_kernel *out, qp_error *error)
{
    op_variant variant;
    char message[400];
    if (!candidate_load(&k->candidate, &variant, message, sizeof message))
        return error_set(error, QP_FORMAT, "--kernel %.200s: %s", k->text, message);
    *out = (qp_kernel){.op = k->candidate.op->name,
                       .name = name_of(k),
                       .kernel = variant.kernel,
                       .accepts = variant.accepts,
                       .scratch_bytes = variant.scratch_bytes};
    return QP_OK;
}

void workbench_kernel_close(workbench_kernel *k)
{
    if (!k) return;
    candidate_close(&k->candidate);
    free(k);
}
