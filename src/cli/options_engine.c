/* Options that many commands share: the model, the engine that runs it, its KV cache, and JSON. */
#include "cli/option_groups.h"

#include <string.h>

#define SETTINGS cli_settings

const char *const cli_exchanges[] = {"auto", "peers", "nccl", "host", NULL};
static const char *const cli_rank_transports[] = {"auto", "threads", "mpi", "messages", NULL};

const char *const cli_kv_types[] = {"F16", "BF16", "F32", "F8", NULL};
const char *const cli_execs[] = {"auto",      "reference", "serial",     "threads",
                                 "operators", "cuda",      "megakernel", NULL};
static const char *const old_execs[][2] = {{"ref", "it is reference now"},
                                           {"ops", "it is operators now, and cuda on a GPU"},
                                           {"mk", "it is megakernel now"},
                                           {NULL, NULL}};
int cli_exec_index(const char *name)
{
    int i = 0;
    while (strcmp(cli_execs[i], name) != 0)
        i++;
    return i;
}

const char *const cli_activations[] = {"auto", "8", "16", "float", "bf16", NULL};
const char *const cli_copies[] = {"auto", "on", "off", NULL};
const char *const cli_devices[] = {"auto", "cpu", "cuda", NULL};

static const option_spec model_options[] = {
    {"model", 'm', OPTION_STRING_AT(SETTINGS, model), .argument = "MODEL", .hint = OPTION_HINT_FILE,
     .help = "a GGUF file, a Hugging Face directory, hf:OWNER/REPOSITORY[:FILE or TYPE], a short "
             "name of `quipu pull`, or synthetic:PRESET[:TYPE[+OTHER][:SEED]], where a path to a "
             "config.json may stand for "
             "the preset; the first word without "
             "-m is the model, too; without a name the default model"},
    {"hf", 0, OPTION_STRING_AT(SETTINGS, hub), .argument = "REPOSITORY", .single_dash = true,
     .excludes = "model",
     .help =
         "a model of Hugging Face: OWNER/REPOSITORY[:FILE or TYPE], fetched where it is missing"},
    {"verbose", 'v', OPTION_FLAG_AT(SETTINGS, verbose),
     .help = "print which device, kernels and types are used, and why"},
    {0}};
const option_group cli_model_options = {"Model", model_options};

static const option_spec engine_options[] = {
    {"threads", 't', OPTION_INTEGER_AT(SETTINGS, threads), .argument = "N", .fallback = "0",
     .maximum = 1024, .help = "CPU threads; 0: all that this process may use"},
    {"chunk", 0, OPTION_INTEGER_AT(SETTINGS, chunk), .expert = true, .argument = "N",
     .fallback = "0", .maximum = 1 << 16,
     .help = "tokens of a prompt in one forward pass; 0: 512, or 2048 on a GPU"},
    {"exec", 0, OPTION_CHOICE_AT(SETTINGS, exec), .expert = true, .choices = cli_execs,
     .renamed = old_execs, .fallback = "auto", .argument = "MACHINE",
     .help =
         "the machine that runs forward passes. threads: a schedule, with a queue for each CPU "
         "thread; serial: a schedule, one instruction at a time, with reference kernels; "
         "operators: one operator after the other; reference: the same with reference kernels; "
         "megakernel: many tokens in one kernel on a GPU; cuda: one operator after the other on a "
         "GPU; auto: on the CPU threads, on a GPU megakernel if it supports the model, else cuda"},
    {"order", 0, OPTION_INTEGER_AT(SETTINGS, order), .expert = true, .argument = "SEED",
     .fallback = "0", .minimum = 0, .maximum = INT64_MAX,
     .help = "for --exec serial: run instructions in a random order that the schedule allows; 0: "
             "each worker in turn, as far as it can go"},
    {"device", 0, OPTION_CHOICE_AT(SETTINGS, device), .choices = cli_devices, .fallback = "auto",
     .argument = "DEVICE", .help = "where the model runs; auto: on an NVIDIA GPU if there is one"},
    {"workers", 0, OPTION_INTEGER_AT(SETTINGS, workers), .expert = true, .argument = "N",
     .fallback = "0", .maximum = 1024,
     .help =
         "thread blocks of the megakernel; 0: one for each multiprocessor of the GPU, on several "
         "GPUs up to a sixteenth fewer"},
    CLI_PLAN_FORM,
    CLI_ACT_TYPE,
    {"fuse", 0, OPTION_FLAG_AT(SETTINGS, fuse), .expert = true,
     .help = "fuse operators that need no results of other threads: the same answer with fewer "
             "waits, for few tokens on many threads"},
    CLI_RULES,
    {"activations", 0, OPTION_CHOICE_AT(SETTINGS, activations), .expert = true,
     .choices = cli_activations, .fallback = "auto", .argument = "HOW",
     .help =
         "on the CPU, how products round activations. 8, 16: to that number of bits for quantised "
         "weights; bf16: to BF16 for BF16 weights, to 8 bits for quantised ones; float: not "
         "at all, which is slow for quantised weights. With 8, 16 and float, BF16 weights meet "
         "float32. auto: 16 for small models (a token reads at most 256 MiB of weights), else "
         "bf16 on processors with AMX and on AMD's with AVX-512 BF16, else 8. On a Hopper GPU, "
         "for weights in FP8: 8 keeps them in FP8, and rounds activations of more than 64 "
         "tokens at a time to FP8; others read them as BF16; auto keeps those with a scale a "
         "row"},
    {"cache-packed", 0, OPTION_STRING_AT(SETTINGS, cache_packed), .argument = "DIR",
     .hint = OPTION_HINT_FOLDER,
     .help = "on the CPU, keep weights in this folder in the form that kernels read: the "
             "next start is faster"},
    {"cache-packed-size", 0, OPTION_SIZE_AT(SETTINGS, cache_packed_size), .expert = true,
     .argument = "BYTES", .fallback = "64G", .minimum = 1024, .maximum = (int64_t)1 << 50,
     .help = "largest size of all files in --cache-packed; the least recently used are "
             "removed"},
    {"bf16-copies", 0, OPTION_CHOICE_AT(SETTINGS, bf16_copies), .expert = true,
     .choices = cli_copies, .fallback = "auto", .argument = "WHEN",
     .help = "on a GPU, keep weights a second time, for speed: weights of other types in "
             "BF16, for prompts and several sequences, which round otherwise; weights in "
             "BF16 in the order in which several sequences read them. auto: where twice the "
             "size of the weights stays free beside them; on: or refuse to run; off: never"},
    {"cpu-mask", 0, OPTION_STRING_AT(SETTINGS, cpu_mask), .expert = true, .argument = "FEATURES",
     .help = "CPU features not to use, separated by commas"},
    {"ranks", 0, OPTION_INTEGER_AT(SETTINGS, ranks), .argument = "N", .fallback = "0",
     .maximum = 1024,
     .help = "tensor parallelism: N ranks, each with a part of the model and --threads of its own; "
             "0: one, or as many as mpirun has started"},
    {"ranks-by", 0, OPTION_CHOICE_AT(SETTINGS, ranks_by), .expert = true,
     .choices = cli_rank_transports, .fallback = "auto", .argument = "HOW",
     .help = "what ranks are. threads: of this process; mpi: processes, which mpirun starts; "
             "those of one host share memory; messages: the same without shared memory; auto: mpi "
             "under mpirun, else threads"},
    {"gpus", 0, OPTION_STRING_AT(SETTINGS, gpus), .argument = "0,1",
     .help = "numbers of the GPUs to run on, one for each rank, as `quipu doctor` lists them; "
             "without it, the first ones"},
    {"exchange", 0, OPTION_CHOICE_AT(SETTINGS, exchange), .expert = true, .choices = cli_exchanges,
     .fallback = "auto", .argument = "HOW",
     .help = "how ranks on GPUs exchange rows. peers: kernels write to the memory of the other "
             "GPUs of this process; nccl: by NCCL, also between processes and hosts; host: through "
             "the host's memory, also if ranks share a GPU; auto: the first that is possible"},
    {"cut", 0, OPTION_CHOICE_AT(SETTINGS, cut), .expert = true, .choices = cli_cuts,
     .fallback = "auto", .argument = "HOW",
     .help = "gather: ranks cut every product by its outputs: the bits of one rank; reduce: they "
             "add partial sums, in half as many exchanges; auto: gather on CPUs, reduce on GPUs"},
    {0}};
const option_group cli_engine_options = {"Running", engine_options};

static const option_spec context_options[] = {
    {"context", 'c', OPTION_INTEGER_AT(SETTINGS, context), .argument = "N", .fallback = "0",
     .maximum = 1 << 26, .help = "most positions of a conversation; 0: the model's, up to 8192"},
    {0}};
const option_group cli_context_options = {"Running", context_options};

static const option_spec cache_options[] = {{"page-size", 0, OPTION_INTEGER_AT(SETTINGS, page_size),
                                             .expert = true, .argument = "N", .fallback = "16",
                                             .minimum = 1, .maximum = 1 << 16,
                                             .help = "positions in a page of the KV cache"},
                                            CLI_KV_TYPE,
                                            {0}};
const option_group cli_cache_options = {"KV cache", cache_options};

static const option_spec lora_options[] = {
    {"lora", 0, OPTION_STRINGS_AT(SETTINGS, lora), .argument = "[NAME=]FILE[:SCALE]",
     .hint = OPTION_HINT_FILE,
     .help = "apply a LoRA adapter, SCALE (1) times: a GGUF file, or a directory of PEFT; for more "
             "adapters give it again"},
    {"lora-merge", 0, OPTION_FLAG_AT(SETTINGS, lora_merge),
     .help =
         "add the adapters to the weights, which must be F32, F16 or BF16, at the start: passes "
         "then cost nothing more, on every machine"},
    {0}};
const option_group cli_lora_options = {"Adapters", lora_options};

static const option_spec own_kernel_options[] = {
    {"kernel", 0, OPTION_STRINGS_AT(SETTINGS, kernels), .argument = "OPERATOR=FILE",
     .help = "run the kernel of a file in place of the operator's own, in the whole model: of a .c "
             "or .so file on the CPU, of a .cu file on the GPU, by the machine cuda; it is checked "
             "first; for more kernels give it again"},
    {0}};
const option_group cli_own_kernel_options = {"Kernels", own_kernel_options};

const char *const cli_speculations[] = {"off", "lookup", NULL};

static const option_spec speculation_options[] = {
    {"speculate", 0, OPTION_CHOICE_AT(SETTINGS, speculate), .choices = cli_speculations,
     .fallback = "off", .argument = "HOW",
     .help = "propose tokens that one pass verifies together; the answer stays the same, and text "
             "that repeats is made in fewer passes. lookup: propose what followed the last time "
             "that the text read the same"},
    {"draft", 0, OPTION_STRING_AT(SETTINGS, draft), .argument = "MODEL", .hint = OPTION_HINT_FILE,
     .excludes = "speculate",
     .help = "a smaller model with the same vocabulary, which proposes the tokens"},
    {0}};
const option_group cli_speculation_options = {"Speculation", speculation_options};

static const option_spec info_options[] = {
    {"modules", 0, OPTION_FLAG_AT(SETTINGS, modules),
     .help = "print the modules as a tree, as PyTorch does, with their parameters; a config.json "
             "is enough"},
    {"module", 0, OPTION_STRING_AT(SETTINGS, module), .argument = "NAME",
     .help = "print only this module and what is in it, such as model.layers.0"},
    {"config", 0, OPTION_FLAG_AT(SETTINGS, config), .excludes = "modules module json",
     .help = "print the configuration as transformers does, also of a GGUF file"},
    {"json", 0, OPTION_FLAG_AT(SETTINGS, json), .help = "print JSON"},
    {0}};
const option_group cli_info_options = {"Output", info_options};

static const option_spec json_options[] = {
    {"json", 0, OPTION_FLAG_AT(SETTINGS, json), .help = "print JSON"}, {0}};
const option_group cli_json_options = {"Output", json_options};
