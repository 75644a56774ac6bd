/* The launches of a pass: see pass_launches.h. */
#include "inspect/pass_launches.h"

#include "inspect/launch_print.h"
#include "op/attention/attention_cuda.h"
#include "vm/cuda/executor.h"
#include "lower/lower.h"

static qp_status find_gpu(const char *arch, cuda_device *out, qp_error *error)
{
    if (!arch && cuda_device_probe(out, NULL) == QP_OK) return QP_OK;
    if (cuda_device_describe(arch ? arch : "sm_90", out)) return QP_OK;
    return error_set(error, QP_INVALID,
                     "no GPU of architecture '%.40s' is known; expected sm_90 or sm_100", arch);
}

uint32_t pass_launches_features(const char *arch)
{
    cuda_device gpu = {0};
    return find_gpu(arch, &gpu, NULL) == QP_OK ? gpu.features : 0;
}

static launch_class class_of(const program *program, const launch_setting *setting, int64_t tokens,
                             int64_t sequences)
{
    const bool decodes = tokens <= sequences;
    launch_class of = {
        .sizes = program->capacity, .last = program->logits_end, .likeliest = decodes};
    if (sequences > tokens) sequences = tokens;
    of.sizes.of[AXIS_TOKENS] = tokens;
    of.sizes.of[AXIS_SEQUENCES] = sequences;
    program_set_outputs(of.sizes.of, sequences);
    of.sizes.of[AXIS_SEQUENCE_ENDS] = sequences + 1;
    if (decodes && sequences >= (setting->ops.few_rows == 0 ? 1 : 2))
        of.n_chunks = cuda_decode_chunks(program->options.context);
    return of;
}

qp_status pass_launches_make(const model *model, const plan_options *options, int64_t tokens,
                             int64_t sequences, const char *arch, pass_launches *out,
                             qp_error *error)
{
    *out = (pass_launches){0};
    TRY(find_gpu(arch, &out->gpu, error));
    TRY(lower_build(model_get_config(model), model, options, &out->program, error));
    TRY(cuda_weights_place(&out->program, &out->weights, error));
    TRY(launch_setting_init(&out->setting, &out->program, &out->weights, &out->gpu, NULL, true,
                            cuda_executor_count(&out->program, NULL).workspace, error));
    const launch_class of = class_of(&out->program, &out->setting, tokens, sequences);
    return launch_list_make(&out->setting, &of, NULL, NULL, &out->list, error);
}

void pass_launches_free(pass_launches *l)
{
    launch_list_free(&l->list);
    launch_setting_free(&l->setting);
    cuda_weights_free(NULL, &l->weights);
    program_free(&l->program);
}

qp_status pass_launches_explain(const pass_launches *l, strbuf *out, qp_error *error)
{
    launch_setting setting = l->setting;
    launch_list list;
    strbuf text = {0};
    setting.explained = &text;
    const qp_status status = launch_list_make(&setting, &l->list.of, NULL, NULL, &list, error);
    strbuf_printf(out, "\nrules of launches\n%s", strbuf_text(&text));
    launch_list_free(&list);
    strbuf_free(&text);
    return status;
}

void pass_launches_print(const pass_launches *l, strbuf *out)
{
    const launch_class *of = &l->list.of;
    const long long tokens = of->sizes.of[AXIS_TOKENS], n = of->sizes.of[AXIS_SEQUENCES];
    strbuf_printf(out,
                  "\nlaunches of a pass of %lld token%s of %lld sequence%s, on compute capability "
                  "%d.%d with %d multiprocessors%s\n",
                  tokens, tokens == 1 ? "" : "s", n, n == 1 ? "" : "s", l->gpu.major, l->gpu.minor,
                  l->gpu.n_multiprocessors, of->n_chunks > 1 ? ", at full context" : "");
    launch_list_print(&l->setting, &l->list, out);
}
