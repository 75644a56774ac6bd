/* Flags and commands of llama.cpp, Ollama and vLLM: what they are here, or why there is none. The
 * one source of these names; tests/foreign has the lists of each program, and test_foreign checks
 * that each name has an answer. */
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
#define DRAFT    "a draft model is --draft MODEL; --speculate lookup needs none"
#define PROPOSED "how many tokens are proposed follows from measured times; no option sets it"
#define ADAPTER  "a LoRA adapter is --lora [NAME=]FILE[:SCALE], once for each"
#define PROCESSORS                                                                                 \
    "-t N sets the threads; `taskset` chooses their processors, and `nice` their priority"
#define NODES "`numactl --interleave=all quipu ...` spreads memory over nodes"
#define SHIFT                                                                                      \
    "the context is not shifted: an answer ends where it is full; in chat /drop forgets the "      \
    "oldest question"
#define SAMPLERS                                                                                   \
    "tokens are sampled by --temp, --top-k, --top-p, --min-p, --repetition-penalty, "              \
    "--presence-penalty and --frequency-penalty; --min-p comes nearest"
#define ROPE                                                                                       \
    "the model's file says how positions are rotated: rope_scaling in its config.json, or the "    \
    "metadata of its GGUF file"
#define MEDIA "models read text only"
#define MOE   "a model is cut over GPUs by --ranks only; it has no experts on other devices"
#define SEVERAL                                                                                    \
    "several models are `quipu serve --models DIR`; --models-memory and --keep-alive limit them"
#define KERNELS                                                                                    \
    "which kernels run follows from types, shapes and the device: `quipu plan -v` says why"
#define NO_MODEL "no model that quipu runs has such a part"
#define VECTORS  "`quipu serve` makes vectors of texts at /v1/embeddings; --pooling says how"
#define EFFORTS  "a request's reasoning_effort goes to the chat template as it is"
#define STATISTICS                                                                                 \
    "a line of statistics on standard error follows each answer; 2>/dev/null hides it"
#define LOGS  "messages go to standard error, where 2> FILE keeps them; -v says more"
#define HTTPS "TLS is --tls-cert FILE and --tls-key FILE; SIGHUP reads them again"
#define CORS  "--cors-origin ORIGIN lets pages of an origin in, once for each origin"
#define KEYS  "a server's keys are in a file, one a line: --api-key-file FILE"
#define PROXY "a proxy before the server adds, changes or hides paths and headers"
#define PAGE  "the server's page is built in, at /"
#define TOOLS                                                                                      \
    "tools run in the client; calls are found by the model's template, without a parser to choose"
#define THOUGHTS "thoughts are always apart from answers, found by the marks of the chat template"
#define MEMORY                                                                                     \
    "memory is counted before the first token: `quipu plan -m MODEL` shows it, and --pages sets "  \
    "that of the KV cache"
#define RANKS                                                                                      \
    "tensor parallelism is --ranks N or --gpus; several hosts are `mpirun -n N quipu`; other "     \
    "forms of parallelism are several servers with a balancer before them"
#define NO_CODE  "models run by quipu's own operators; no code of a model is loaded"
#define DTYPE    "a model runs in the types of its file; `quipu convert --type TYPE` makes others"
#define TEMPLATE "the model's own template is used; `quipu template` shows what it makes"
#define FILES    "the model's folder has all files: -m DIR, or -hf OWNER/REPOSITORY"
#define GRAPHS   "passes are recorded as CUDA graphs, or run in one kernel, without a switch"
#define METRICS  "GET /metrics, /slots and /engine show the server's state"
#define TRACES                                                                                     \
    "`quipu trace -m MODEL` shows where time goes; GET /metrics has the server's counters"
#define BUILTIN "it has no presets; name the model, as in -hf OWNER/REPOSITORY:Q4_K_M"
#define STATE                                                                                      \
    "`quipu serve --prompt-cache DIR` keeps what was read; programs call qp_session_save()"
#define THINKING     "{\"enable_thinking\":true}"
#define NO_THINK     "{\"enable_thinking\":false}"
#define EFFORT(word) word "={\"reasoning_effort\":\"" word "\"} "

#define TAKEN(names_, option_)                                                                     \
    {                                                                                              \
        .names = (names_), .option = (option_)                                                     \
    }
#define MAPPED_TO(names_, option_, ...)                                                            \
    {                                                                                              \
        .names = (names_), .option = (option_), .values = __VA_ARGS__                              \
    }
#define HOLDS(names_)                                                                              \
    {                                                                                              \
        .names = (names_), .holds = true                                                           \
    }
#define SAID(names_, text_)                                                                        \
    {                                                                                              \
        .names = (names_), .text = (text_)                                                         \
    }
/* One of these values asks for what is so; others are answered. */
#define IS(names_, values_, text_)                                                                 \
    {                                                                                              \
        .names = (names_), .values = (values_), .text = (text_)                                    \
    }

const option_foreign cli_foreign_flags[] = {
    /* models and files */
    TAKEN("-hfr --hf-repo", "hf"),
    SAID("-hff --hf-file -hft --hf-token -mu --model-url -dr --docker-repo --insecure", FETCH),
    SAID("-cl --cache-list", "`quipu list` shows the models that are here"),
    SAID("--offline", "HF_HUB_OFFLINE=1 forbids fetching"),
    SAID("--revision --code-revision --tokenizer-revision --download-dir",
         "the newest revision is fetched, to the folder that HF_HOME names"),
    SAID("--tokenizer --tokenizer-mode --skip-tokenizer-init --hf-config-path --config-format "
         "--load-format --ignore-patterns --vocab-only",
         FILES),
    SAID("--override-kv --hf-overrides", ROPE),
    IS("--dtype", "auto=", DTYPE),
    SAID("--quantization -q --quantize --draft-quantize --quantization-config "
         "--allow-deprecated-quantization",
         DTYPE),
    HOLDS("--mmap"),
    SAID("--mlock --no-mmap -dio --direct-io -lm --load-mode -lzm --lazy-mode "
         "--safetensors-load-strategy --use-tqdm-on-load --pt-load-map-location "
         "--model-loader-extra-config --max-parallel-loading-workers "
         "--safetensors-prefetch-num-threads --safetensors-prefetch-block-size",
         MAPPED),
    SAID("--check-tensors", "sizes and offsets of a file are always checked; `quipu diff` compares "
                            "what a pass computes"),
    HOLDS("--enable-lora"),
    SAID("--no-enable-lora", ADAPTER),
    SAID("--lora-scaled --enable-lora-bias "
         "--max-loras --max-lora-rank --lora-extra-vocab-size --lora-dtype "
         "--max-cpu-loras --fully-sharded-loras --long-lora-scaling-factors --default-mm-loras "
         "--enable-tower-connector-lora --lora-target-modules --specialize-active-lora "
         "--enable-mixed-moe-lora-format --enable-moe-shared-loras --max-lora-cls-labels",
         ADAPTER),
    SAID("--enable-prompt-adapter --max-prompt-adapters --max-prompt-adapter-token",
         "it has no prompt adapters; a LoRA adapter is --lora FILE"),
    SAID("--control-vector --control-vector-scaled --control-vector-layer-range",
         "it has no control vectors"),
    SAID("--embd-gemma-default --fim-qwen-1.5b-default --fim-qwen-3b-default "
         "--fim-qwen-7b-default --fim-qwen-7b-spec --fim-qwen-14b-spec --fim-qwen-30b-default "
         "--gpt-oss-20b-default --gpt-oss-120b-default --vision-gemma-4b-default "
         "--vision-gemma-12b-default --spec-default",
         BUILTIN),
    SAID("--trust-remote-code --model-impl --worker-cls --worker-extension-cls --scheduler-cls "
         "--logits-processors --logits-processor-pattern --io-processor-plugin --plugins "
         "--middleware --additional-config --external_parameters --model-class-overrides",
         NO_CODE),
    SAID("-mm --mmproj -mmdev --mmproj-device -mmu --mmproj-url --mmproj-auto "
         "--mmproj-offload --image --audio --video --image-min-tokens --image-max-tokens "
         "--mtmd-batch-max-tokens --video-fps --video-timestamp-interval "
         "--video-ffmpeg-dir --media-path --limit-mm-per-prompt --enable-mm-embeds "
         "--media-io-kwargs --mm-processor-kwargs --mm-processor-cache-gb "
         "--disable-mm-preprocessor-cache --mm-processor-cache-type "
         "--mm-shm-cache-max-object-size-mb --mm-encoder-tp-mode --mm-encoder-attn-backend "
         "--interleave-mm-strings --skip-mm-profiling --video-pruning-rate "
         "--allowed-local-media-path --allowed-media-domains --disable-chunked-mm-input "
         "--enable-multimodal-encoder-data-parallel --enable-prompt-embeds "
         "--mm-hasher-algorithm --mm-encoder-only --mm-encoder-attn-dtype "
         "--mm-encoder-fp8-scale-path --mm-encoder-fp8-scale-save-path "
         "--mm-encoder-fp8-scale-save-margin --video-pruning-method --mm-tensor-ipc "
         "--mm-processor-device --mm-ipc-gpu-memory-gb --mm-device-do-normalize "
         "--trust-request-mm-kwargs --enable-shm-tensor-arena --ec-transfer-config "
         "--ec-manager-config",
         MEDIA),
    HOLDS("--language-model-only"),
    SAID("--no-language-model-only", MEDIA),
    SAID("--diffusion-config -dc --engram-config --aux-output-config --mamba-backend "
         "--mamba-ssu-algorithm --enable-mamba-cache-stochastic-rounding "
         "--mamba-cache-philox-rounds --enable-mamba-shared-prefix-checkpoint "
         "--replayssm-buffer-len --use-replayssm --gdn-prefill-backend --kda-prefill-backend "
         "--kda-decode-backend",
         NO_MODEL),
    SAID("--weight-transfer-config", "weights are read when a model opens, and stay as they are"),
    /* devices, threads and memory */
    MAPPED_TO("-ngl --gpu-layers --n-gpu-layers", "device",
              "0=cpu -1=cuda 99=cuda 100=cuda 999=cuda all=cuda auto=auto", .text = LAYERS),
    MAPPED_TO("-dev", "device", "none=cpu cpu=cpu cuda=cuda CUDA0=cuda auto=auto",
              .text = "the device is --device cpu, cuda or auto"),
    SAID("--cpu-offload-gb -ot --override-tensor --op-offload --no-host -nkvo "
         "--no-kv-offload --swap-space --offload-backend --cpu-offload-params "
         "--offload-group-size --offload-num-in-group --offload-prefetch-step "
         "--offload-params",
         LAYERS),
    HOLDS("-kvo --kv-offload --repack"),
    SAID("-nr --no-repack", "weights are kept in the form that kernels read"),
    SAID("-cmoe --cpu-moe -ncmoe --n-cpu-moe -ncffn --n-cpu-ffn --enable-expert-parallel "
         "-ep --all2all-backend --enable-eplb --eplb-config --expert-placement-strategy "
         "--num-redundant-experts --eplb-window-size --eplb-step-interval "
         "--eplb-log-balancedness --moe-backend --enable-ep-weight-filter",
         MOE),
    SAID("--list-devices --gpu-discover", "`quipu doctor` shows the devices and what quipu uses"),
    IS("-mg --main-gpu", "0=", GPUS),
    IS("-sm --split-mode", "none=", GPUS),
    SAID("-ts --tensor-split --device-ids", GPUS),
    TAKEN("-tp --tensor-parallel-size", "ranks"),
    IS("-pp --pipeline-parallel-size -dp --data-parallel-size -dcp "
       "--decode-context-parallel-size -pcp --prefill-context-parallel-size",
       "1=", RANKS),
    SAID("--rpc --distributed-executor-backend --data-parallel-rank -dpn "
         "--data-parallel-start-rank -dpr --data-parallel-size-local -dpl "
         "--data-parallel-address -dpa --data-parallel-rpc-port -dpp --data-parallel-backend -dpb "
         "--data-parallel-hybrid-lb --data-parallel-external-lb --data-parallel-supervisor-port "
         "--dp-supervisor-probe-interval-s --dp-supervisor-probe-timeout-s "
         "--dp-supervisor-probe-failure-threshold --enable-dbo --dbo-decode-token-threshold "
         "--dbo-prefill-token-threshold --disable-nccl-for-dp-synchronization "
         "--ray-workers-use-nsight --headless --api-server-count -asc --nnodes --node-rank "
         "--master-addr --master-port --distributed-timeout-seconds "
         "--cpu-distributed-timeout-seconds "
         "--dcp-comm-backend --dcp-q-replicate --dcp-kv-cache-interleave-size "
         "--cp-kv-cache-interleave-size -dph -dpe -dpm --data-parallel-multi-port-external-lb "
         "--enable-hc-sp --enable-batch-sharded-sampling --enable-elastic-ep "
         "--elastic-ep-max-dp-size --dp-sync-interval --enable-fault-tolerance "
         "--fault-tolerance-config --enable-scale-out --enable-nccl-comm-suspend",
         RANKS),
    SAID("--disable-custom-all-reduce",
         "how GPUs exchange is --exchange auto, peers, nccl or host"),
    SAID("-tb --threads-batch", "-t N sets the threads of prompts and generation alike"),
    SAID("-C -Cr --cpu-range --cpu-strict --prio --poll -Cb --cpu-mask-batch -Crb "
         "--cpu-range-batch --cpu-strict-batch --prio-batch --poll-batch",
         PROCESSORS),
    IS("--numa", "numactl=", NODES),
    SAID("--numa-bind --numa-bind-nodes --numa-bind-cpus", NODES),
    SAID("-fit --fit -fitt --fit-target -fitc --fit-ctx --gpu-memory-utilization "
         "--kv-cache-memory-bytes --device-memory-utilization --enable-cumem-allocator --watermark",
         MEMORY),
    /* context and cache */
    TAKEN("-ctx --ctx --ctx-size --num-ctx --max-model-len", "context"),
    TAKEN("-ub --ubatch-size --max-num-batched-tokens", "chunk"),
    SAID("-b --batch-size", "the tokens of a prompt in one forward pass are --chunk N"),
    TAKEN("--block-size", "page-size"),
    TAKEN("--num-gpu-blocks-override", "pages"),
    IS("-ctk --cache-type-k -ctv --cache-type-v", "f16= F16=", KV_TYPE),
    MAPPED_TO("--kv-cache-dtype", "kv-type",
              "auto=F16 float16=F16 bfloat16=BF16 fp8=F8 fp8_e4m3=F8", .text = KV_TYPE),
    SAID("--calculate-kv-scales --kv-cache-dtype-skip-layers", KV_TYPE),
    IS("-fa --flash-attn", "= on= auto= 1= true= enabled=", NO_FLASH),
    SAID("--disable-cascade-attn --attention-backend -ac --attention-config", NO_FLASH),
    IS("--keep", "0=", SHIFT),
    SAID("--context-shift", SHIFT),
    HOLDS("--no-context-shift --swa-full"),
    IS("-dt --defrag-thold", "*=*", NULL),
    SAID("-ctxcp --ctx-checkpoints --swa-checkpoints -cms --checkpoint-min-step "
         "--disable-sliding-window --disable-hybrid-kv-cache-manager --swa-bounded-replay",
         "the KV cache keeps the positions of windows, too, so it needs no checkpoints"),
    SAID("-cram --cache-ram", "cached prompts lie in the pages of the KV cache: --pages N"),
    HOLDS("--cache-idle-slots -kvu --kv-unified --cache-prompt --enable-prefix-caching"),
    SAID("--no-cache-idle-slots -no-kvu --no-kv-unified --kv-unified-per-slot",
         "all answers share the pages of one KV cache: --pages N"),
    SAID("--no-cache-prompt --no-enable-prefix-caching --prefix-caching-hash-algo "
         "--prefix-cache-retention-interval --prefix-match-unit",
         "prompts that begin alike always share what was read; with --batch-invariant and on a CPU "
         "the answer is the same, to the bit"),
    IS("--cache-reuse", "0=", "prompts share what they have in common from their beginning on"),
    IS("-sps --slot-prompt-similarity", "*=*", NULL),
    SAID("--slot-save-path --prompt-cache-all --prompt-cache-ro", STATE),
    SAID("-gan --grp-attn-n -gaw --grp-attn-w --rope-scaling --rope-scale --rope-theta "
         "--rope-freq-base --rope-freq-scale --yarn-orig-ctx --yarn-ext-factor "
         "--yarn-attn-factor --yarn-beta-slow --yarn-beta-fast",
         ROPE),
    SAID("--kv-transfer-config --kv-events-config --kv-sharing-fast-prefill "
         "--kv-offloading-size --kv-offloading-backend --mamba-cache-dtype "
         "--mamba-ssm-cache-dtype --mamba-block-size --mamba-cache-mode",
         "the KV cache is one server's own; --prompt-cache DIR keeps it on disk"),
    /* the answer's length and sampling */
    MAPPED_TO("--predict --max-tokens --num-predict", "n-predict", "-1=0 -2=0 *=*"),
    TAKEN("--temperature", "temp"),
    IS("--repeat-penalty", "1=1 1.0=1",
       "the penalty is --repetition-penalty R, for all tokens of the context"),
    IS("--repeat-last-n", "-1=", "--repetition-penalty counts all tokens of the context"),
    TAKEN("--typical-p", "typical"),
    TAKEN("--top-nsigma", "top-n-sigma"),
    IS("--dynatemp-range", "0= 0.0=", SAMPLERS),
    SAID("--dry-sequence-breaker", "a request of `quipu serve` has dry_sequence_breakers"),
    SAID("--adaptive-target --adaptive-decay --dynatemp-exp --tfs --use-fp64-gumbel "
         "--watermark-config",
         SAMPLERS),
    SAID("--samplers --sampler-seq --sampling-seq",
         "the order is fixed: penalties, temperature, then --top-k, --top-p and --min-p"),
    HOLDS("-bs --backend-sampling"),
    SAID("-l", "a bias is --logit-bias ID:BIAS"),
    TAKEN("-r --reverse-prompt", "stop"),
    TAKEN("-j", "json-schema"),
    TAKEN("-jf --json-schema-file", "json-schema"),
    TAKEN("--grammar-file", "grammar"),
    MAPPED_TO("--format", "json-schema", "json={\"type\":\"object\"}",
              .text = "output for programs is --json; of `quipu bench` it is --output csv or json"),
    SAID("--max-logprobs --logprobs-mode --return-tokens-as-token-ids --return-sampling-mask",
         "a request says how many log-probabilities it wants, up to 20"),
    SAID("--generation-config --override-generation-config",
         "--temp, --top-k, --top-p, --min-p and --repetition-penalty go before the model's file"),
    SAID("--guided-decoding-backend --guided-decoding-disable-fallback "
         "--guided-decoding-disable-any-whitespace "
         "--guided-decoding-disable-additional-properties --structured-outputs-config",
         "forms of answers are compiled by quipu itself: --json-schema, --grammar, or the fields "
         "of a request"),
    /* prompts and conversations */
    TAKEN("-sys --system-prompt", "system"),
    SAID("-sysf --system-prompt-file",
         "the system message is --system TEXT, such as --system \"$(cat FILE)\""),
    TAKEN("-cnv --conversation", "chat"),
    {.names = "-cnv --conversation -i --interactive -if --interactive-first -ins --instruct",
     .commands = "chat",
     .holds = true},
    SAID("-cnv --conversation -i --interactive -if --interactive-first -ins --instruct", CHAT),
    TAKEN("-no-cnv --no-conversation", "raw"),
    {.names = "-st --single-turn", .commands = "run", .holds = true},
    SAID("-st --single-turn", "one answer is `quipu run`"),
    SAID("-mli --multiline-input", "in a chat, \"\"\" begins and ends a message of several lines"),
    TAKEN("--display-prompt", "echo"),
    HOLDS("-no-display-prompt --no-display-prompt --no-escape --no-warmup --jinja"),
    SAID("--verbose-prompt", "`quipu tokenize` shows the tokens of a text, and `quipu run --json` "
                             "those of a prompt"),
    SAID("-e --escape", "the shell makes line breaks: -p $'one\\ntwo'"),
    SAID("-bf --binary-file", "-f FILE reads the bytes of a file as they are"),
    TAKEN("-sp", "special"),
    SAID("--in-prefix-bos --in-prefix --in-suffix",
         "the chat template writes what surrounds a message; --raw takes the prompt as it is"),
    SAID("--spm-infill",
         "POST /infill of `quipu serve` fills text in, in the order of the model's marks"),
    TAKEN("--chat-template-file", "chat-template"),
    SAID("--chat-template",
         "only `quipu serve` takes a template; `quipu template` shows the model's"),
    SAID("--no-jinja --chat-template-content-format --trust-request-chat-template "
         "--response-role --skip-chat-parsing --cohere-format --cohere-is-reasoning-model",
         TEMPLATE),
    TAKEN("--default-chat-template-kwargs", "chat-template-kwargs"),
    MAPPED_TO("--think", "chat-template-kwargs",
              "=" THINKING " true=" THINKING " false=" NO_THINK " " EFFORT("low") EFFORT("medium")
                  EFFORT("high")),
    MAPPED_TO("-rea --reasoning", "chat-template-kwargs", "auto= on=" THINKING " off=" NO_THINK),
    MAPPED_TO("--reasoning-effort", "chat-template-kwargs",
              EFFORT("minimal") EFFORT("low") EFFORT("medium") EFFORT("high")),
    SAID("--reasoning-effort-map --anthropic-disabled-thinking-effort", EFFORTS),
    {.names = "--hidethinking", .option = "thoughts", .values = "=fold"},
    IS("--reasoning-format", "auto= deepseek=", THOUGHTS),
    IS("--reasoning-budget", "-1=", "-n N limits an answer with its thoughts"),
    SAID("--reasoning-budget-message --reasoning-parser --reasoning-preserve "
         "--enable-reasoning --reasoning-config --reasoning-parser-plugin",
         THOUGHTS),
    SAID("--prefill-assistant",
         "`quipu run --raw` continues a text; the server answers each message with a new one"),
    /* speculation */
    TAKEN("-md --model-draft --spec-draft-model --spec-model", "draft"),
    SAID("--spec-draft-hf -hfd -hfrd --hf-repo-draft --speculative-config -sc "
         "--speculative-model",
         DRAFT),
    MAPPED_TO("--spec-type", "speculate", "none=off", .text = DRAFT),
    MAPPED_TO("--spec-method", "speculate", "ngram=lookup", .text = DRAFT),
    SAID("--draft-n --draft-max --draft-min --draft-n-min --spec-draft-n-max --spec-draft-n-min "
         "--spec-synth-len --spec-synth-rates --spec-draft-p-split --draft-p-split "
         "--spec-draft-p-min --draft-p-min --num-speculative-tokens --num-lookahead-slots "
         "--spec-tokens",
         PROPOSED),
    SAID("--spec-draft-threads -td --threads-draft --spec-draft-threads-batch -tbd "
         "--threads-batch-draft --spec-draft-cpu-mask -Cd --cpu-mask-draft "
         "--spec-draft-cpu-range -Crd --cpu-range-draft --spec-draft-cpu-strict "
         "--cpu-strict-draft --spec-draft-prio --prio-draft --spec-draft-poll --poll-draft "
         "--spec-draft-cpu-mask-batch -Cbd --cpu-mask-batch-draft "
         "--spec-draft-cpu-strict-batch --cpu-strict-batch-draft --spec-draft-prio-batch "
         "--prio-batch-draft --spec-draft-poll-batch --poll-batch-draft "
         "--spec-draft-type-k -ctkd --cache-type-k-draft --spec-draft-type-v -ctvd "
         "--cache-type-v-draft --spec-draft-override-tensor -otd --override-tensor-draft "
         "--spec-draft-cpu-moe -cmoed --cpu-moe-draft --spec-draft-n-cpu-moe "
         "--spec-draft-ncmoe -ncmoed --n-cpu-moe-draft --spec-draft-backend-sampling "
         "--spec-draft-device -devd --device-draft --spec-draft-ngl -ngld "
         "--gpu-layers-draft --n-gpu-layers-draft --spec-draft-cpu-range-batch -Crbd "
         "--cpu-range-batch-draft",
         "a draft model runs on the device, the threads and the cache's type of its model"),
    SAID("-lcs --lookup-cache-static -lcd --lookup-cache-dynamic --spec-ngram-mod-n-min "
         "--spec-ngram-mod-n-max --spec-ngram-mod-n-match --spec-ngram-simple-size-n "
         "--spec-ngram-simple-size-m --spec-ngram-simple-min-hits --spec-ngram-map-k-size-n "
         "--spec-ngram-map-k-size-m --spec-ngram-map-k-min-hits --spec-ngram-map-k4v-size-n "
         "--spec-ngram-map-k4v-size-m --spec-ngram-map-k4v-min-hits --spec-ngram-size-n "
         "--spec-ngram-size-m --spec-ngram-min-hits",
         "--speculate lookup takes the tokens that followed last time, without sizes or files"),
    /* the server */
    TAKEN("-np --np --parallel --max-num-seqs", "parallel"),
    SAID("-np --np --parallel --max-num-seqs",
         "several answers side by side are `quipu run --answers N`"),
    HOLDS("-cb --cont-batching --enable-chunked-prefill --metrics --props --slots --ui --webui "
          "--enable-auto-tool-choice"),
    {.names = "--embedding --embeddings", .commands = "serve", .holds = true},
    SAID("--embedding --embeddings", VECTORS),
    SAID("--no-enable-auto-tool-choice", "a request with tool_choice \"none\" gets no calls"),
    SAID("-nocb --no-cont-batching --no-enable-chunked-prefill --max-num-partial-prefills "
         "--max-long-partial-prefills --long-prefill-token-threshold --scheduling-policy "
         "--async-scheduling --stream-interval --max-num-scheduled-tokens "
         "--long-prefill-token-threshold-adaptive --scheduler-reserve-full-isl "
         "--prefill-schedule-interval",
         "answers that are made share each pass, and prompts are read in chunks: --chunk N"),
    SAID("--max-num-active-seqs", "the answers that are made at a time are --parallel N"),
    SAID("--max-num-queued-reqs --max-num-queued-tokens",
         "the requests that may wait are --max-queued N"),
    TAKEN("-a --served-model-name", "alias"),
    TAKEN("--shutdown-timeout", "drain"),
    SAID("--grpc --grpc-port", "it speaks HTTP: doc/SERVER.md has the endpoints"),
    SAID("--tags --tools --tools-runtime --mcp-servers-config --mcp-servers-json -ag "
         "--agent -no-ag --tool-call-parser --tool-parser-plugin --tool-server "
         "--tool-strict-level --exclude-tools-when-tool-choice-none --ui-mcp-proxy "
         "--webui-mcp-proxy",
         TOOLS),
    SAID("--host --port --reuse-port", SERVER),
    SAID("--uds", "a unix socket is --host unix:PATH of `quipu serve`"),
    SAID("--path --ui-config --webui-config --ui-config-file --webui-config-file --no-ui "
         "--no-webui --enable-offline-docs --disable-fastapi-docs",
         PAGE),
    SAID("--api-prefix", "it is --api-prefix PATH of `quipu serve`"),
    SAID("--root-path --enable-request-id-headers --h11-max-incomplete-event-size "
         "--h11-max-header-count",
         PROXY),
    SAID("--cors-origins --cors-methods --cors-headers --cors-credentials "
         "--allow-credentials --allowed-origins --allowed-methods --allowed-headers",
         CORS),
    SAID("--api-key", KEYS),
    TAKEN("--ssl-cert-file --ssl-certfile", "tls-cert"),
    TAKEN("--ssl-key-file --ssl-keyfile", "tls-key"),
    SAID("--ssl-ca-certs "
         "--enable-ssl-refresh --ssl-cert-reqs --ssl-ciphers",
         HTTPS),
    SAID("-to", "an answer ends --timeout SECONDS after its request"),
    TAKEN("--sse-ping-interval --sse-keep-alive-interval", "sse-ping"),
    TAKEN("--threads-http --renderer-num-workers", "http-workers"),
    IS("--embd-normalize", "2=", "vectors of texts have length 1"),
    SAID("--rerank --reranking", "`quipu serve` has /v1/rerank and /v1/score for every model"),
    SAID("--runner --convert --task --pooler-config "
         "--override-pooler-config --truncate --dimensions --enable-flash-late-interaction",
         VECTORS),
    TAKEN("--models-dir", "models"),
    HOLDS("--models-autoload"),
    SAID("--models-preset --models-max --no-models-autoload --sleep-idle-seconds "
         "--enable-sleep-mode --sleep-mode-backend --sleep-mode-offload-cudagraph "
         "--sleep-preserve-parameter-names --keepalive",
         SEVERAL),
    SAID("--server-base", "`quipu load --url URL` measures a server"),
    SAID("--enable-server-load-tracking --enable-force-include-usage "
         "--enable-per-request-metrics --enable-prompt-tokens-details "
         "--enable-tokenizer-info-endpoint --show-hidden-metrics-for-version "
         "--otlp-traces-endpoint --disable-log-stats --aggregate-engine-logging --tokens-only "
         "--fingerprint-mode --fingerprint-value --kv-cache-metrics --kv-cache-metrics-sample "
         "--per-request-spec-decode-metrics --custom-histogram-buckets --cudagraph-metrics "
         "--enable-logging-iteration-details --watchdog-config --no-slots",
         METRICS),
    SAID("--collect-detailed-traces --profiler-config --enable-layerwise-nvtx-tracing "
         "--enable-mfu-metrics --enable-trace-replay --enable-return-routed-experts",
         TRACES),
    /* how passes run */
    SAID("--enforce-eager --max-seq-len-to-capture --cudagraph-capture-sizes --cuda-graph-sizes "
         "--max-cudagraph-capture-size --compilation-config -cc -O --optimization-level "
         "--override-attention-dtype --warmup --performance-mode --jit-monitor-mode "
         "--jit-monitor-verbose",
         GRAPHS),
    SAID("--kernel-config --ir-op-priority --enable-flashinfer-autotune --monokernel "
         "--linear-backend --sparse-indexer-topk-backend",
         KERNELS),
    /* output */
    MAPPED_TO("-co --color --log-colors", "plain", "= on= auto= always= off=1 never=1"),
    TAKEN("--nowordwrap --simple-io", "plain"),
    HOLDS("--perf --show-timings"),
    SAID("--no-perf --no-show-timings -ptc --print-token-count", STATISTICS),
    SAID("-o --output --output-file", "an answer goes to standard output: > FILE"),
    TAKEN("--log-jsonl", "log-json"),
    TAKEN("--enable-log-requests", "access-log"),
    SAID("--log-disable --log-file --no-log-jsonl --log-prompts-dir -lv --verbosity "
         "--log-verbosity --log-verbose --log-prefix --log-timestamps --log-colors --color "
         "-co --log-config-file --max-log-len --no-enable-log-requests "
         "--disable-log-requests --enable-log-outputs --enable-log-deltas "
         "--log-error-stack --logging-config --log-level --uvicorn-log-level "
         "--disable-uvicorn-access-log --disable-access-log-for-endpoints",
         LOGS),
    {.names = "-p --prompt -f --file -bf --binary-file",
     .commands = "chat",
     .text = "questions are typed, or lines of standard input; `quipu run` answers one prompt"},
    {.names = "-n --n-predict --ignore-eos -l --logit-bias --grammar --json-schema --stop",
     .commands = "serve",
     .text = "each request has its own: max_tokens, stop, logit_bias and response_format"},
    {.names = "--special",
     .commands = "chat serve",
     .text = "`quipu run --special` shows control tokens"},
    {.names = "--prompt-cache", .commands = "run chat", .text = STATE},
    {.names = "--template --system",
     .commands = "info",
     .text = "`quipu template -m MODEL` shows what the model's template makes of messages"},
    SAID("--version", "`quipu version` prints it"),
    SAID("--usage", "--help explains a command"),
    SAID("--completion-bash", "`quipu completion bash` prints the script"),
    SAID("--config --fail-on-environ-validation",
         "options are on the command line, or in variables such as QUIPU_CONTEXT"),
    SAID("--license --modelfile --parameters", "`quipu info -m MODEL` shows what a model's file "
                                               "says, and `quipu template` uses its template"),
    SAID("--experimental --experimental-yolo --experimental-websearch --yes --lib-dir",
         "it has no such mode"),
    {0}};

#define NO_ACCOUNT  "it has no account; HF_TOKEN names a token of Hugging Face"
#define ONE_COMMAND "a model is loaded for one command and freed after it"

const option_foreign cli_foreign_commands[] = {
    TAKEN("ls", "list"),
    TAKEN("show", "info"),
    TAKEN("server", "serve"),
    TAKEN("start", "serve"),
    SAID("push", "it uploads no models"),
    SAID("cp", "a model's file is copied as any other; `quipu list` shows where it is"),
    SAID("ps", ONE_COMMAND),
    SAID("stop", ONE_COMMAND "; Ctrl-C ends it"),
    SAID("create", "`quipu convert` makes a GGUF file"),
    SAID("quantize", "`quipu convert -m MODEL -o FILE.gguf --type TYPE` quantises"),
    SAID("complete", "`quipu run --raw` continues a text; `quipu completion` is for shells"),
    SAID("generate", "`quipu run` answers a prompt"),
    SAID("cli", "`quipu run` answers a prompt, `quipu chat` is a conversation"),
    SAID("signin", NO_ACCOUNT),
    SAID("signout", NO_ACCOUNT),
    SAID("login", NO_ACCOUNT),
    SAID("logout", NO_ACCOUNT),
    SAID("runner", SERVER),
    SAID("launch", "agents take the address of `quipu serve`: see doc/SERVER.md"),
    SAID("gpu-discover", "`quipu doctor` shows the devices"),
    SAID("collect-env", "`quipu doctor` shows the machine and what quipu uses of it"),
    SAID("run-batch", "`quipu load` asks a server many questions; programs call qp_step()"),
    {0}};
