/* Parts of the manual page that are not in the tables of options. */
#include "cli/cli.h"

const option_entry cli_exit_statuses[] = {
    {"0", "Success"},
    {"1", "Failure: a file, the memory or a device; a message on standard error says which. For a "
          "command that compares or checks, also a difference"},
    {"2", "Wrong usage: an option, a value or a combination of them"},
    {"130", "Interrupted by Ctrl-C. If no half-written file has to be removed, the process ends by "
            "the signal itself, which a shell reports by the same number"},
    {"141", "The reader of standard output has closed it, as in quipu plan | head; a shell reports "
            "the signal SIGPIPE by this number"},
    {0}};

const option_entry cli_files[] = {
    {"$XDG_CACHE_HOME/quipu, or ~/.cache/quipu",
     "The default model, the costs that quipu schedule --measure measured, and the verdicts of "
     "quipu ops check. Everything there can be made again"},
    {"$XDG_STATE_HOME/quipu/history, or ~/.local/state/quipu/history",
     "The last 1000 messages typed in quipu chat; only their owner can read the file"},
    {"$HF_HUB_CACHE, or $HF_HOME/hub, or ~/.cache/huggingface/hub",
     "Models that quipu pull and -m fetched, shared with Hugging Face's Python library"},
    {"MODEL.generation_config.json",
     "Sampling settings of MODEL.gguf, in the form of a Hugging Face directory's "
     "generation_config.json"},
    {0}};

const option_entry cli_variables[] = {
    {"HOME, XDG_CACHE_HOME, XDG_STATE_HOME", "Where the files below are"},
    {"HF_HOME, HF_HUB_CACHE, HF_TOKEN, HF_TOKEN_PATH, HF_ENDPOINT, HF_HUB_OFFLINE",
     "As for Hugging Face's own tools: the cache of fetched models, a token for gated models, "
     "another hub, and whether nothing is fetched"},
    {"CUDA_VISIBLE_DEVICES",
     "Which GPUs the driver shows; quipu uses the first of them, or as many as there are ranks"},
    {"NCCL_...", "NCCL's own, for ranks that exchange by it; NCCL_NVLS_ENABLE is 0 in any case"},
    {0}};

const option_entry cli_examples[] = {
    {"quipu run -m model.gguf -p 'Why is the sky blue?'",
     "Answers one prompt, with the model's chat template where it has one"},
    {"quipu run -m model.gguf -p 'Summarize this:' < report.txt",
     "The text on standard input goes before the prompt"},
    {"quipu chat -m ./Llama-3.2-1B-Instruct --system 'Be brief.'",
     "A conversation with a model from a Hugging Face directory"},
    {"quipu convert -m ./Llama-3.2-1B-Instruct -o model.gguf --type Q8_0",
     "Writes the model as one file, in a smaller type"},
    {"quipu serve -m model.gguf", "A server at http://localhost:8080, with a page for browsers"},
    {"quipu load --url http://127.0.0.1:8080 -C 16 --input-tokens 1024 --output-tokens 128",
     "What 16 clients of a server see at the same time"},
    {"quipu bench -m model.gguf -p 512 -n 128", "Tokens per second of a prompt and of generation"},
    {"quipu schedule -m model.gguf --workers 8 --list",
     "Every instruction of a forward pass, before it runs"},
    {0}};
