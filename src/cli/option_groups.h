/* Groups of options. A command's row in commands.c lists the groups that it takes; help prints each
 * group under its title. */
#pragma once

#include "cli/cli.h"

/* options_engine.c */
extern const option_group cli_model_options, cli_engine_options, cli_context_options,
    cli_cache_options, cli_lora_options, cli_own_kernel_options, cli_speculation_options,
    cli_json_options, cli_info_options;

/* options_text.c */
extern const option_group cli_prompt_options, cli_run_options, cli_chat_options, cli_answer_options,
    cli_setting_options, cli_ending_options, cli_form_options, cli_tokenize_options,
    cli_detokenize_options, cli_template_options, cli_perplexity_options, cli_logits_options;

/* options_plan.c */
extern const option_group cli_fusing_options, cli_plan_options, cli_shapes_options,
    cli_schedule_options, cli_queue_options, cli_part_options, cli_trace_options, cli_diff_options,
    cli_bench_options, cli_convert_options;

/* options_ops.c */
extern const option_group cli_list_options, cli_describe_options, cli_prompt_page_options,
    cli_kernel_options, cli_check_options, cli_timing_options, cli_import_options,
    cli_improve_options;

/* options_serve.c */
extern const option_group cli_serve_options, cli_access_options, cli_limit_options;

/* options_load.c */
extern const option_group cli_server_options, cli_pace_options, cli_question_options,
    cli_replay_options, cli_simulation_options, cli_figures_options;

/* --plan, of the commands that run a pass and of those that show one. */
#define CLI_PLAN_FORM                                                                              \
    {                                                                                              \
        "plan", 0, OPTION_CHOICE_AT(cli_settings, plan_form),                                      \
            .expert = true, .choices = cli_plan_forms, .fallback = "paged", .argument = "WHICH",   \
            .help = "the operators of the forward pass. paged: attention over pages; flashinfer: " \
                    "FlashInfer's operators, with ragged prefill and paged decode; padded: those " \
                    "of a padded-batch engine, without a schedule; the last two run on the CPU"    \
    }

/* --kv-type, of the commands that run a model and of those that plan it. */
#define CLI_KV_TYPE                                                                                \
    {                                                                                              \
        "kv-type", 0, OPTION_CHOICE_AT(cli_settings, kv_type),                                     \
            .expert = true, .choices = cli_kv_types, .fallback = "F16", .argument = "TYPE",        \
            .help = "element type of the KV cache; F8 is E4M3: half of F16's memory at some loss " \
                    "of accuracy"                                                                  \
    }

/* --act-type, of the same commands. */
#define CLI_ACT_TYPE                                                                               \
    {                                                                                              \
        "act-type", 0, OPTION_CHOICE_AT(cli_settings, act_type),                                   \
            .expert = true, .choices = cli_act_types, .fallback = "F32", .argument = "TYPE",       \
            .help = "element type of what layers work on: BF16 takes half the memory and rounds "  \
                    "after each operator; on the CPU, with the plan paged"                         \
    }

#define CLI_RULES                                                                                  \
    {                                                                                              \
        "rules", 0, OPTION_STRING_AT(cli_settings, rules),                                         \
            .expert = true, .argument = "RULES",                                                   \
            .help = "rules of the plan, or of launches on a GPU, to take (+) and to leave out "    \
                    "(-), separated by commas: -norm_up, or -all,+parts; a number takes so many "  \
                    "matches of them; `quipu plan -v` lists rules"                                 \
    }

/* What the choices of --device mean where there is no `auto`: the CPU, or the GPU. */
extern const char *const cli_kernel_devices[];
