/* Flags and commands of llama.cpp, Ollama and vLLM that have another name here, or no counterpart,
 * with the message for a person who types them. A command's own flags are found before these. */
#include "cli/cli.h"

#define CHAT "a conversation is `quipu chat`, and `quipu run` answers one prompt"
#define FETCH                                                                                      \
    "models come from Hugging Face by -hf OWNER/REPOSITORY[:FILE or TYPE], or by `quipu pull`; a " \
    "token is taken from HF_TOKEN"
#define LAYERS                                                                                     \
    "a model runs whole on one device, or cut over several by --ranks; --device cuda takes the "   \
    "GPU, --device cpu none"
#define GPUS   "--gpus 0 names the GPU; --gpus 0,1 or --ranks 2 cut the model over two"
#define MAPPED "model files are always mapped; quipu does not lock them in memory"
#define KV_TYPE                                                                                    \
    "the type of the KV cache is --kv-type F16, BF16, F32 or F8, for keys and values alike"
#define SERVER   "the server is `quipu serve`"
#define NO_FLASH "attention is always computed in blocks, without a switch"
#define CHUNK    "the tokens of a prompt in one forward pass are --chunk N"
#define GRAMMAR  "--grammar takes a file, or the grammar itself"
#define SCHEMA   "--json-schema takes a file, or the schema itself"
#define DRAFT    "a draft model is --draft MODEL; --speculate lookup needs none"
#define PROPOSED                                                                                   \
    "how many tokens are proposed follows from measured times; there is no option for it"
#define ADAPTER "it has no adapters; merge them into the model first"

const option_entry cli_foreign_flags[] = {
    {"-hfr", FETCH},
    {"-hff", FETCH},
    {"-hft", FETCH},
    {"-mu", FETCH},
    {"-dr", FETCH},
    {"--hf-repo", FETCH},
    {"--hf-file", FETCH},
    {"--hf-token", FETCH},
    {"--model-url", FETCH},
    {"--docker-repo", FETCH},
    {"-ngl", LAYERS},
    {"--n-gpu-layers", LAYERS},
    {"--gpu-layers", LAYERS},
    {"--cpu-offload-gb", LAYERS},
    {"-ot", LAYERS},
    {"--override-tensor", LAYERS},
    {"-cmoe", LAYERS},
    {"-dev", "the device is --device cpu, cuda or auto"},
    {"-mg", GPUS},
    {"--main-gpu", GPUS},
    {"-sm", GPUS},
    {"--split-mode", GPUS},
    {"-ts", GPUS},
    {"--tensor-split", GPUS},
    {"-tp", GPUS},
    {"--tensor-parallel-size", GPUS},
    {"-ctx", "the positions of a conversation are -c N or --context N"},
    {"--ctx", "the positions of a conversation are -c N or --context N"},
    {"--ctx-size", "the positions of a conversation are -c N or --context N"},
    {"--num-ctx", "the positions of a conversation are -c N or --context N"},
    {"--max-model-len", "the positions of a conversation are -c N or --context N"},
    {"--predict", "the most tokens to generate are -n N or --n-predict N"},
    {"--max-tokens", "the most tokens to generate are -n N or --n-predict N"},
    {"--num-predict", "the most tokens to generate are -n N or --n-predict N"},
    {"-b", CHUNK},
    {"-ub", CHUNK},
    {"--batch-size", CHUNK},
    {"--ubatch-size", CHUNK},
    {"-tb", "-t N sets the threads of prompts and generation alike"},
    {"--threads-batch", "-t N sets the threads of prompts and generation alike"},
    {"--temperature", "the temperature is --temp T"},
    {"--repeat-penalty", "the penalty is --repetition-penalty R, for all tokens of the context"},
    {"--repeat-last-n", "--repetition-penalty counts all tokens of the context"},
    {"-sys", "the system message is --system TEXT"},
    {"-sysf", "the system message is --system TEXT, such as --system \"$(cat FILE)\""},
    {"--system-prompt", "the system message is --system TEXT"},
    {"-cnv", CHAT},
    {"-no-cnv", "a prompt without the chat template is `quipu run --raw`"},
    {"--conversation", CHAT},
    {"--no-conversation", "a prompt without the chat template is `quipu run --raw`"},
    {"-st", "one answer is `quipu run`"},
    {"--single-turn", "one answer is `quipu run`"},
    {"-i", CHAT},
    {"--interactive", CHAT},
    {"-mli", "a message of several lines is pasted, or its lines end in a backslash"},
    {"--multiline-input", "a message of several lines is pasted, or its lines end in a backslash"},
    {"-no-display-prompt", "the prompt is shown with --echo only"},
    {"--no-display-prompt", "the prompt is shown with --echo only"},
    {"--jinja", "chat templates are always read as Jinja"},
    {"--default-chat-template-kwargs", "it is --chat-template-kwargs of `quipu serve`"},
    {"--chat-template", "only `quipu serve` takes a template; `quipu template` shows the model's"},
    {"--chat-template-file", "it is --chat-template FILE of `quipu serve`"},
    {"-fa", NO_FLASH},
    {"--flash-attn", NO_FLASH},
    {"-ctk", KV_TYPE},
    {"-ctv", KV_TYPE},
    {"--cache-type-k", KV_TYPE},
    {"--cache-type-v", KV_TYPE},
    {"--kv-cache-dtype", KV_TYPE},
    {"--mlock", MAPPED},
    {"--no-mmap", MAPPED},
    {"--dtype", "a model runs in the types of its file; `quipu convert --type TYPE` makes others"},
    {"--quantization",
     "a model runs in the types of its file; `quipu convert --type TYPE` makes others"},
    {"--keepalive", "the model is loaded for one command and freed after it"},
    {"--format", "output for programs is --json; of `quipu bench` it is --output csv or json"},
    {"--nowordwrap", "words wrap only at a terminal, in `quipu chat`"},
    {"--grammar-file", GRAMMAR},
    {"-j", SCHEMA},
    {"-jf", SCHEMA},
    {"--json-schema-file", SCHEMA},
    {"-md", DRAFT},
    {"--model-draft", DRAFT},
    {"--draft-max", PROPOSED},
    {"--draft-min", PROPOSED},
    {"--num-speculative-tokens", PROPOSED},
    {"--speculative-config", DRAFT},
    {"--lora", ADAPTER},
    {"-np", "several answers side by side are `quipu run --answers N`"},
    {"--np", "several answers side by side are `quipu run --answers N`"},
    {"--api-key", "a server's keys are in a file, one a line: --api-key-file FILE"},
    {"--host", SERVER},
    {"--port", SERVER},
    {"-lv", "-v prints what is used and why"},
    {"--log-disable", "standard output holds only the answer; 2>/dev/null hides the rest"},
    {"--no-warmup", "there is no warm-up run"},
    {"--color", "answers are not coloured"},
    {"-co", "answers are not coloured"},
    {0}};

const option_entry cli_foreign_commands[] = {
    {"server", SERVER},
    {"push", "it uploads no models"},
    {"ls", "`quipu list` shows the models that are here"},
    {"ps", "a model is loaded for one command and freed after it"},
    {"stop", "a model is loaded for one command and freed after it; Ctrl-C ends it"},
    {"show", "`quipu info -m MODEL` shows what a model is"},
    {"create", "`quipu convert` makes a GGUF file"},
    {"quantize", "`quipu convert -m MODEL -o FILE.gguf --type TYPE` quantises"},
    {"complete", "`quipu run --raw` continues a text; `quipu completion` is for shells"},
    {"generate", "`quipu run` answers a prompt"},
    {"cli", "`quipu run` answers a prompt, `quipu chat` is a conversation"},
    {0}};
