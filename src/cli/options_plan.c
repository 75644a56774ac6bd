/* Options of the commands that show, time and compare forward passes: plan, shapes, schedule,
 * trace, diff and bench; and those of convert. */
#include "cli/option_groups.h"

#define SETTINGS cli_settings

const char *const cli_cuts[] = {"auto", "gather", "reduce", NULL};
const char *const cli_kernel_devices[] = {"cpu", "cuda", NULL};
static const char *const formats[] = {"md", "csv", "json", NULL};
const char *const cli_schedule_settings[] = {"latency", "throughput", NULL};
const char *const cli_schedule_assignments[] = {"rr", "zz", "wave", "dag", "pool", NULL};

const char *const cli_plan_forms[] = {"paged", "flashinfer", "padded", NULL};
const char *const cli_act_types[] = {"F32", "BF16", NULL};

/* Which form of the forward pass is shown. */
static const option_spec fusing_options[] = {
    CLI_PLAN_FORM,
    CLI_ACT_TYPE,
    {"fuse", 0, OPTION_FLAG_AT(SETTINGS, fuse), .expert = true,
     .help = "the forward pass for few tokens, with fused operators"},
    {"sums", 0, OPTION_FLAG_AT(SETTINGS, sums), .expert = true,
     .help = "fused further, as in the megakernel: workers add their parts to the residual"},
    CLI_RULES,
    {"kv-partitions", 0, OPTION_INTEGER_AT(SETTINGS, kv_partitions), .expert = true,
     .argument = "N", .fallback = "1", .minimum = 1, .maximum = 1024,
     .help = "fused: parts of a sequence's positions that attention is split in"},
    {0}};
const option_group cli_fusing_options = {"Form of the pass", fusing_options};

static const option_spec plan_options[] = {
    {"tokens", 0, OPTION_INTEGER_AT(SETTINGS, tokens), .argument = "N", .fallback = "512",
     .minimum = 1, .maximum = 1 << 20, .help = "new tokens in the forward pass"},
    {"context", 'c', OPTION_INTEGER_AT(SETTINGS, context), .argument = "N", .fallback = "0",
     .maximum = 1 << 26, .help = "most positions of a sequence; 0: the model's"},
    {"sequences", 0, OPTION_INTEGER_AT(SETTINGS, sequences), .argument = "N", .fallback = "1",
     .minimum = 1, .maximum = 1 << 16, .help = "sequences in the batch"},
    {"ranks", 0, OPTION_INTEGER_AT(SETTINGS, ranks), .argument = "N", .fallback = "1", .minimum = 1,
     .maximum = 1024, .help = "ranks of tensor parallelism"},
    {"rank", 0, OPTION_INTEGER_AT(SETTINGS, rank), .argument = "R", .fallback = "0",
     .maximum = 1023, .help = "the rank whose plan is shown; the bytes of all are listed"},
    {"cut", 0, OPTION_CHOICE_AT(SETTINGS, cut), .choices = cli_cuts, .fallback = "auto",
     .argument = "HOW",
     .help = "gather: ranks cut every product by its outputs, which gives the bits of one rank; "
             "reduce: they add partial sums of the output and the down projection, in half as many "
             "exchanges; auto: gather on CPUs, reduce on GPUs"},
    {"memory", 0, OPTION_SIZE_AT(SETTINGS, memory), .argument = "BYTES", .fallback = "0",
     .help = "memory for which the largest context is computed, on the CPU or the GPU; 0: what is "
             "free now"},
    {"device", 0, OPTION_CHOICE_AT(SETTINGS, kernel_device), .choices = cli_kernel_devices,
     .fallback = "cpu", .argument = "DEVICE",
     .help = "cuda: show also the launches of a pass on a GPU and the exact memory of a run there"},
    {"kernels", 0, OPTION_FLAG_AT(SETTINGS, list_kernels), .excludes = "device",
     .help = "show the kernels of each module: FlashInfer's, and quipu's with the variants that "
             "this CPU runs"},
    {"arch", 0, OPTION_STRING_AT(SETTINGS, arch), .argument = "ARCH",
     .help = "with --device cuda: the GPU's architecture, sm_90 or sm_100, if it is not the GPU of "
             "this machine"},
    {"activations", 0, OPTION_CHOICE_AT(SETTINGS, activations), .expert = true,
     .choices = cli_activations, .fallback = "auto", .argument = "HOW",
     .help =
         "with --device cuda, for weights in FP8: they stay so with 8, which rounds activations "
         "of more than 64 tokens at a time to FP8 too, else they become BF16; auto: 8 where they "
         "have a scale a row"},
    {"json", 0, OPTION_FLAG_AT(SETTINGS, json), .help = "print JSON"},
    {0}};
const option_group cli_plan_options = {"Plan", plan_options};

static const option_spec shapes_options[] = {
    {"tokens", 0, OPTION_INTEGER_AT(SETTINGS, tokens), .argument = "N", .fallback = "512",
     .minimum = 1, .maximum = 1 << 20, .help = "tokens of the prompt"},
    {"batch", 0, OPTION_INTEGER_AT(SETTINGS, batch), .argument = "B", .fallback = "1", .minimum = 1,
     .maximum = 1 << 16, .help = "sequences that decode together"},
    {"json", 0, OPTION_FLAG_AT(SETTINGS, json), .help = "print JSON"},
    {0}};
const option_group cli_shapes_options = {"Shapes", shapes_options};

static const option_spec schedule_options[] = {
    CLI_KV_TYPE,
    {"workers", 0, OPTION_INTEGER_AT(SETTINGS, workers), .expert = true, .argument = "N",
     .fallback = "0", .maximum = 1024,
     .help = "queues; 0: one for each processor that this process may use, or for each "
             "multiprocessor of the GPU"},
    {"device", 0, OPTION_CHOICE_AT(SETTINGS, kernel_device), .choices = cli_kernel_devices,
     .fallback = "cpu", .argument = "DEVICE",
     .help = "cuda: the megakernel's schedule, measured and compared on the GPU"},
    CLI_PLAN_FORM,
    {"setting", 0, OPTION_CHOICE_AT(SETTINGS, setting), .choices = cli_schedule_settings,
     .fallback = "latency", .argument = "WHICH",
     .help = "latency: for few tokens; throughput: for many, in tiles"},
    {"assign", 0, OPTION_CHOICE_AT(SETTINGS, assign), .choices = cli_schedule_assignments,
     .fallback = "rr", .argument = "HOW",
     .help = "rr: in turn; zz: there and back; wave: largest first onto the least loaded; dag: "
             "the critical path first; pool: memory-bound and compute-bound work apart"},
    {"memory-fraction", 0, OPTION_NUMBER_AT(SETTINGS, memory_fraction), .expert = true,
     .argument = "F", .fallback = "0", .high = 1,
     .help = "for --assign pool: share of the workers that get memory-bound work, unless a queue "
             "would exceed four times the mean; 0: computed from the costs"},
    {"context", 'c', OPTION_INTEGER_AT(SETTINGS, context), .argument = "N", .fallback = "0",
     .maximum = 1 << 26, .help = "positions of a sequence; 0: the model's, at most 8192"},
    {"chunk", 0, OPTION_INTEGER_AT(SETTINGS, chunk), .expert = true, .argument = "N",
     .fallback = "512", .minimum = 1, .maximum = 1 << 16,
     .help = "tokens of a prompt in one forward pass; with --sums the default is 1"},
    {"kv-partitions", 0, OPTION_INTEGER_AT(SETTINGS, kv_partitions), .expert = true,
     .argument = "N", .fallback = "0", .maximum = 1024,
     .help = "with --fuse or --sums: parts into which attention splits a sequence's positions; 0: "
             "one, as in run --fuse; with --sums enough to give each worker a part of a KV head"},
    {"ranks", 0, OPTION_INTEGER_AT(SETTINGS, ranks), .argument = "N", .fallback = "1", .minimum = 1,
     .maximum = 1024,
     .help =
         "ranks of tensor parallelism; --verify, --save and --load concern the schedules of all"},
    {"rank", 0, OPTION_INTEGER_AT(SETTINGS, rank), .argument = "R", .fallback = "0",
     .maximum = 1023, .help = "the rank whose schedule is shown"},
    {"cut", 0, OPTION_CHOICE_AT(SETTINGS, cut), .expert = true, .choices = cli_cuts,
     .fallback = "auto", .argument = "HOW",
     .help = "how ranks cut the model: gather or reduce, as in `quipu plan`; auto: gather"},
    {"network", 0, OPTION_STRING_AT(SETTINGS, network), .argument = "GBIT:US,...",
     .excludes = "list verify save load html",
     .help = "predict 1, 2, 4, ... up to --ranks hosts, one rank each, on networks of GBIT Gbit/s "
             "and US microseconds of latency, as in 10:30,100:5"},
    {"svg", 0, OPTION_STRING_AT(SETTINGS, svg), .argument = "FILE", .hint = OPTION_HINT_FILE,
     .help = "with --network: write a picture of the prediction"},
    {"fuse", 0, OPTION_FLAG_AT(SETTINGS, fuse), .expert = true,
     .help = "for latency: with fused operators, as in run --fuse; without it, the schedule of a "
             "plain run"},
    {"sums", 0, OPTION_FLAG_AT(SETTINGS, sums), .expert = true,
     .help = "for latency: fused further, as in the megakernel: workers add their parts to the "
             "residual"},
    {"group", 0, OPTION_INTEGER_AT(SETTINGS, group), .expert = true, .argument = "N",
     .fallback = "0", .maximum = 1 << 20,
     .help = "output features that one instruction keeps together; 0: as many as the CPU's kernels "
             "compute at a time"},
    {"bandwidth", 0, OPTION_NUMBER_AT(SETTINGS, bandwidth), .expert = true, .argument = "GB/s",
     .fallback = "0", .high = 1e6,
     .help = "memory bandwidth for predictions; 0: as measured, else 20"},
    {"gflops", 0, OPTION_NUMBER_AT(SETTINGS, gflops), .expert = true, .argument = "GFLOP/s",
     .fallback = "0", .high = 1e9,
     .help = "arithmetic rate for predictions; 0: as measured, else 100"},
    {"signal", 0, OPTION_NUMBER_AT(SETTINGS, signal_ns), .expert = true, .argument = "NS",
     .fallback = "0", .high = 1e9,
     .help = "time from a signal to the end of a wait, for predictions; 0: as measured, else 200"},
    {"list", 0, OPTION_FLAG_AT(SETTINGS, list),
     .help = "print every queue, instruction by "
             "instruction"},
    {"linear", 0, OPTION_FLAG_AT(SETTINGS, linear),
     .help =
         "print the instructions without workers, in an order that all dependencies follow: id, "
         "priority, what each needs; with --json also operands and parameters"},
    {"queues", 0, OPTION_STRING_AT(SETTINGS, queues), .argument = "FILE", .hint = OPTION_HINT_FILE,
     .help =
         "take the workers' queues from a JSON file, {\"queues\": [[id, ...], ...]}, with ids of "
         "--linear; they are proved sound, and --save writes them for run --schedule"},
    {"verify", 0, OPTION_FLAG_AT(SETTINGS, verify),
     .help = "prove that the schedule is sound in every order"},
    {"measure", 0, OPTION_FLAG_AT(SETTINGS, measure),
     .help =
         "measure what instructions cost on this machine with this number of workers, for "
         "later predictions; takes about three minutes, or with --types some 20 seconds a type"},
    {"types", 0, OPTION_STRING_AT(SETTINGS, types), .expert = true, .argument = "TYPES",
     .help = "with --measure: measure these types of weights alone, such as BF16,Q8_0; models of "
             "other types are then predicted from the two rates of the machine"},
    {"compare", 0, OPTION_FLAG_AT(SETTINGS, compare),
     .help =
         "run all strategies in turn, and show the predicted time of each beside the measured one"},
    {"tune", 0, OPTION_FLAG_AT(SETTINGS, tune), .excludes = "measure compare",
     .help =
         "search for a schedule that is quicker than the strategies' on this machine, and write "
         "it to --save FILE, for run --schedule FILE"},
    {"seconds", 0, OPTION_INTEGER_AT(SETTINGS, seconds), .expert = true, .argument = "N",
     .fallback = "60", .minimum = 1, .maximum = 86400, .help = "with --tune: how long it searches"},
    {"seed", 0, OPTION_INTEGER_AT(SETTINGS, seed), .expert = true, .argument = "N", .fallback = "1",
     .maximum = INT64_C(1) << 53, .help = "with --tune: of its random moves"},
    {"html", 0, OPTION_STRING_AT(SETTINGS, html), .argument = "FILE", .hint = OPTION_HINT_FILE,
     .help = "write a page for a browser that shows what each worker does when"},
    {"save", 0, OPTION_STRING_AT(SETTINGS, save), .argument = "FILE", .hint = OPTION_HINT_FILE,
     .help = "write the queues to a file"},
    {"load", 0, OPTION_STRING_AT(SETTINGS, load), .argument = "FILE", .hint = OPTION_HINT_FILE,
     .help =
         "show a schedule that --save wrote. It is proved sound again and compared with the "
         "schedule that the same options give now; with --compare it runs beside the strategies. "
         "Workers and setting come from the file; the other options must be given as they were "
         "for --save"},
    {"json", 0, OPTION_FLAG_AT(SETTINGS, json), .help = "print JSON"},
    {0}};
const option_group cli_schedule_options = {"Schedule", schedule_options};

/* The same of the commands that run a model. */
static const option_spec queue_options[] = {
    {"setting", 0, OPTION_CHOICE_AT(SETTINGS, setting), .expert = true,
     .choices = cli_schedule_settings, .fallback = "latency", .argument = "WHICH",
     .help = "latency: a schedule for few tokens; throughput: one for many, in tiles"},
    {"assign", 0, OPTION_CHOICE_AT(SETTINGS, assign), .expert = true,
     .choices = cli_schedule_assignments, .fallback = "rr", .argument = "HOW",
     .help =
         "how a schedule distributes instructions, of CPU threads or of the megakernel's blocks: "
         "rr, zz, wave, dag or pool; quipu schedule --compare measures them"},
    {"memory-fraction", 0, OPTION_NUMBER_AT(SETTINGS, memory_fraction), .expert = true,
     .argument = "F", .fallback = "0", .high = 1,
     .help = "for --assign pool: share of the workers that get memory-bound work; 0: computed from "
             "the costs"},
    {"schedule", 0, OPTION_STRING_AT(SETTINGS, schedule), .expert = true, .argument = "FILE",
     .hint = OPTION_HINT_FILE, .excludes = "setting assign memory-fraction",
     .help = "run the queues that quipu schedule --save wrote to a file, for the same model, "
             "--context and --chunk; they decide the number of threads"},
    {0}};
const option_group cli_queue_options = {"Schedule", queue_options};

/* A part of the pass. */
static const option_spec part_options[] = {
    {"skip", 0, OPTION_STRING_AT(SETTINGS, left_out), .expert = true, .argument = "KINDS",
     .help = "replace the instructions of these operators or steps by noops, which tells what they "
             "cost: linear,rope or ffn_down; waits: no instruction waits, as if all counters were "
             "full; bench measures with and without them, and with --skip all each kind in turn"},
    {"start-after", 0, OPTION_STRING_AT(SETTINGS, start_after), .expert = true, .argument = "STEP",
     .help = "run only the steps after this one, such as 5.attn_qkv"},
    {"stop-after", 0, OPTION_STRING_AT(SETTINGS, stop_after), .expert = true, .argument = "STEP",
     .help = "run only the steps up to this one"},
    {"layers", 0, OPTION_INTEGER_AT(SETTINGS, layers), .expert = true, .argument = "N",
     .fallback = "0", .maximum = 1 << 15,
     .help = "run only the first N layers and the steps after the last layer; 0: all layers"},
    {0}};
const option_group cli_part_options = {"Part of the pass", part_options};

static const option_spec trace_options[] = {
    {"ids", 0, OPTION_STRING_AT(SETTINGS, ids), .argument = "1,2,3",
     .help = "token ids in place of a prompt"},
    {"n-predict", 'n', OPTION_INTEGER_AT(SETTINGS, n_predict), .argument = "N", .fallback = "16",
     .minimum = 1, .maximum = 1 << 16, .help = "number of tokens to generate"},
    {"out", 'o', OPTION_STRING_AT(SETTINGS, out), .argument = "FILE", .hint = OPTION_HINT_FILE,
     .help = "write JSON for ui.perfetto.dev or chrome://tracing"},
    {"html", 0, OPTION_STRING_AT(SETTINGS, html), .argument = "FILE", .hint = OPTION_HINT_FILE,
     .help = "write a page for a browser that shows the planned pass above the measured one"},
    {"tracks", 0, OPTION_INTEGER_AT(SETTINGS, tracks), .argument = "N", .fallback = "4",
     .minimum = 1, .maximum = 64,
     .help = "with --exec serial: cut products by features and attention by heads into N chunks, "
             "each on a track of its own"},
    {"parts", 0, OPTION_FLAG_AT(SETTINGS, parts),
     .help = "run the instructions of --exec threads in their mathematical parts too: "
             "Linear, MatMul, ReduceMax, ..."},
    {"describe", 0, OPTION_FLAG_AT(SETTINGS, describe), .excludes = "out html svg table parts",
     .help =
         "run nothing: print each step of the pass with its mathematics, and the operators that "
         "a trace in parts shows of it"},
    {"svg", 0, OPTION_STRING_AT(SETTINGS, svg), .argument = "FILE", .hint = OPTION_HINT_FILE,
     .help = "write a picture of the plan and of one typical pass"},
    {"table", 0, OPTION_FLAG_AT(SETTINGS, table),
     .help = "print the sums by operator; this is the default when no file is written"},
    {0}};
const option_group cli_trace_options = {"Trace", trace_options};

static const option_spec diff_options[] = {
    {"prompt", 'p', OPTION_STRING_AT(SETTINGS, prompt), .argument = "TEXT", .excludes = "file ids",
     .help = "the prompt to run; without a prompt or ids, pseudo-random tokens"},
    {"file", 'f', OPTION_STRING_AT(SETTINGS, file), .argument = "FILE", .hint = OPTION_HINT_FILE,
     .excludes = "ids", .help = "read the prompt from a file"},
    {"ids", 0, OPTION_STRING_AT(SETTINGS, ids), .argument = "1,2,3",
     .help = "token ids in place of a prompt"},
    {"tokens", 0, OPTION_INTEGER_AT(SETTINGS, tokens), .argument = "N", .fallback = "16",
     .minimum = 1, .maximum = 1 << 16, .help = "number of pseudo-random tokens"},
    {"one-by-one", 0, OPTION_INTEGER_AT(SETTINGS, singles), .argument = "N", .fallback = "2",
     .maximum = 1 << 16, .help = "how many of the tokens run alone at the end, as in generation"},
    {"a", 0, OPTION_STRING_AT(SETTINGS, machine_a), .argument = "MACHINE", .fallback = "reference",
     .help = "the machine that counts as right: reference, serial, threads, operators or cuda, as "
             "in --exec of other commands"},
    {"b", 0, OPTION_STRING_AT(SETTINGS, machine_b), .argument = "MACHINE", .fallback = "threads",
     .help = "the machine that is compared with it: one of these or megakernel"},
    {"order", 0, OPTION_INTEGER_AT(SETTINGS, order), .expert = true, .argument = "SEED",
     .fallback = "1", .minimum = 1, .maximum = INT64_MAX,
     .help = "for serial: seed of a random order of instructions that the schedule allows"},
    {"start-after", 0, OPTION_STRING_AT(SETTINGS, start_after), .expert = true, .argument = "STEP",
     .help = "compare only the steps after this one, such as 5.attn_qkv; b starts from the tensors "
             "of a"},
    {"stop-after", 0, OPTION_STRING_AT(SETTINGS, stop_after), .expert = true, .argument = "STEP",
     .help = "compare only up to this step"},
    {"layers", 0, OPTION_INTEGER_AT(SETTINGS, layers), .expert = true, .argument = "N",
     .fallback = "0", .maximum = 1 << 15,
     .help = "run only the first N layers and the steps after the last layer; 0: all layers"},
    {"setting", 0, OPTION_CHOICE_AT(SETTINGS, setting), .choices = cli_schedule_settings,
     .fallback = "latency", .argument = "WHICH", .help = "for schedules: latency or throughput"},
    {"assign", 0, OPTION_CHOICE_AT(SETTINGS, assign), .choices = cli_schedule_assignments,
     .fallback = "rr", .argument = "HOW", .help = "for schedules: rr, zz, wave, dag or pool"},
    {"memory-fraction", 0, OPTION_NUMBER_AT(SETTINGS, memory_fraction), .expert = true,
     .argument = "F", .fallback = "0", .high = 1,
     .help = "for --assign pool: share of the workers that get memory-bound work; 0: computed from "
             "the costs"},
    {"schedule", 0, OPTION_STRING_AT(SETTINGS, schedule), .expert = true, .argument = "FILE",
     .hint = OPTION_HINT_FILE, .excludes = "setting assign memory-fraction threads layers ranks",
     .help = "run b by the queues that quipu schedule --save wrote to a file, for the same model, "
             "--context and --chunk; they decide the number of threads, and the steps after the "
             "logits are left out"},
    {"context", 'c', OPTION_INTEGER_AT(SETTINGS, context), .expert = true, .argument = "N",
     .fallback = "0", .maximum = 1 << 26,
     .help = "positions for which there is room; 0: as many as the tokens need, with --schedule as "
             "many as quipu schedule takes"},
    {"skip", 0, OPTION_STRING_AT(SETTINGS, left_out), .expert = true, .argument = "KINDS",
     .help = "leave these operators or steps out of the schedule of b (linear,ffn_down), or its "
             "waits (waits), to see which tensors that changes"},
    {"first-rule", 0, OPTION_FLAG_AT(SETTINGS, first_rule),
     .excludes = "schedule skip start-after stop-after layers ranks list json sums",
     .help =
         "compare the logits of b with and without --rules, and name the first rule whose result "
         "differs"},
    {"list", 0, OPTION_FLAG_AT(SETTINGS, list),
     .help = "print the steps of every layer, not only the worst of each kind"},
    {"json", 0, OPTION_FLAG_AT(SETTINGS, json), .help = "print JSON"},
    {"threads", 't', OPTION_INTEGER_AT(SETTINGS, threads), .argument = "N", .fallback = "0",
     .maximum = 1024, .help = "CPU threads; 0: all that this process may use"},
    {"ranks", 0, OPTION_INTEGER_AT(SETTINGS, ranks), .argument = "N", .fallback = "1", .minimum = 1,
     .maximum = 1024,
     .help =
         "run b on N ranks of this process, each with --threads, and put their tensors together"},
    {"gpus", 0, OPTION_STRING_AT(SETTINGS, gpus), .argument = "0,1",
     .help = "numbers of the GPUs of b's ranks; without it, the first ones"},
    {"exchange", 0, OPTION_CHOICE_AT(SETTINGS, exchange), .choices = cli_exchanges,
     .fallback = "auto", .argument = "HOW",
     .help = "how ranks on GPUs exchange rows: peers, nccl or host, as in `quipu run`"},
    {"chunk", 0, OPTION_INTEGER_AT(SETTINGS, chunk), .expert = true, .argument = "N",
     .fallback = "512", .minimum = 1, .maximum = 1 << 16, .help = "tokens in one forward pass"},
    {"activations", 0, OPTION_CHOICE_AT(SETTINGS, activations), .choices = cli_activations,
     .fallback = "auto", .argument = "HOW",
     .help = "how products round activations, as in `quipu run`, but that auto is 8 for "
             "quantised and float for BF16 weights"},
    {"cpu-mask", 0, OPTION_STRING_AT(SETTINGS, cpu_mask), .expert = true, .argument = "FEATURES",
     .help = "CPU features not to use, separated by commas"},
    {0}};
const option_group cli_diff_options = {"Comparison", diff_options};

static const option_spec bench_options[] = {
    {"n-prompt", 'p', OPTION_INTEGER_AT(SETTINGS, n_prompt), .argument = "N", .fallback = "512",
     .maximum = 1 << 24, .help = "tokens of the prompt test; 0: no such test"},
    {"n-gen", 'n', OPTION_INTEGER_AT(SETTINGS, n_generate), .argument = "N", .fallback = "128",
     .maximum = 1 << 24, .help = "tokens of the generation test; 0: no such test"},
    {"depth", 'd', OPTION_INTEGER_AT(SETTINGS, depth), .argument = "N", .fallback = "0",
     .maximum = 1 << 24, .help = "tokens of context before each test"},
    {"parallel", 0, OPTION_INTEGER_AT(SETTINGS, parallel), .argument = "N", .fallback = "1",
     .minimum = 1, .maximum = 512,
     .help = "sequences side by side; each pass takes one token of each, and the likeliest tokens "
             "come next"},
    {"repetitions", 'r', OPTION_INTEGER_AT(SETTINGS, repetitions), .argument = "N", .fallback = "5",
     .minimum = 1, .maximum = 1000, .help = "runs of each test"},
    {"output", 'o', OPTION_CHOICE_AT(SETTINGS, format), .choices = formats, .fallback = "md",
     .argument = "FORMAT", .help = "format of the table"},
    {0}};
const option_group cli_bench_options = {"Tests", bench_options};

static const option_spec convert_options[] = {
    {"out", 'o', OPTION_STRING_AT(SETTINGS, out), .argument = "FILE", .hint = OPTION_HINT_FILE,
     .help = "the GGUF file to write"},
    {"type", 0, OPTION_STRING_AT(SETTINGS, type), .argument = "TYPE",
     .help = "element type, by llama.cpp's names for its mixes: BF16, Q8_0, Q4_0, Q4_K_M, ...; "
             "without it types stay as they are"},
    {"pure", 0, OPTION_FLAG_AT(SETTINGS, pure),
     .help = "all matrices in that type, without the mix"},
    {"imatrix", 0, OPTION_STRING_AT(SETTINGS, imatrix), .argument = "FILE",
     .hint = OPTION_HINT_FILE,
     .help = "an importance matrix of llama.cpp, or a text from which it is made: quantised types "
             "keep the weights better whose inputs are large"},
    {"imatrix-out", 0, OPTION_STRING_AT(SETTINGS, imatrix_out), .argument = "FILE",
     .hint = OPTION_HINT_FILE,
     .help = "write that importance matrix to a GGUF file, which llama.cpp reads, too"},
    {"clamp", 0, OPTION_FLAG_AT(SETTINGS, clamp),
     .help = "weights that the type cannot hold become the largest of F16, 65504, with a warning; "
             "without it they are refused"},
    {"threads", 't', OPTION_INTEGER_AT(SETTINGS, threads), .argument = "N", .fallback = "0",
     .maximum = 1024, .help = "CPU threads; 0: all that this process may use"},
    {0}};
const option_group cli_convert_options = {"Conversion", convert_options};
