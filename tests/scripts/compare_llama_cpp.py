#!/usr/bin/env python3
"""Compares quipu with llama.cpp and transformers on the same GGUF file: greedy text and perplexity.

Four engines run each prompt, each with its own rounding:
  llama.cpp       the file as it is; llama.cpp rounds activations to 8 bits before every product
                  with a quantised weight, and keeps keys and values in half precision
  llama.cpp-f32   the file decoded to float32 first, keys and values in float32
  transformers    its own GGUF loading, float32
  quipu           teacher-forced: one `quipu logits` over prompt + the reference's greedy tokens;
                  the first row whose argmax is not the reference's token is where quipu's own
                  greedy text would have left it
Where two engines choose different tokens, the script prints each engine's margin between the two tokens
and the noise: the standard deviation between the two engines' logits, over the likeliest tokens of all
steps so far. The sum of the margins is the disagreement. It counts as a tie within rounding if it is at
most 6 times the noise, which is 4.2 deviations of a difference of two logits.

On tokens: `quipu tokenize` must give llama.cpp's ids for every prompt and for the text, and
`quipu run` must print the text of transformers' greedy tokens, unless the two choose different tokens.

Perplexity, as llama.cpp's tool defines it: the text is tokenised once (BOS only if the vocabulary
asks for it) and cut into chunks of n tokens, the rest dropped; a chunk's first token becomes BOS if
the vocabulary asks for it; each chunk is one forward from an empty cache; rows n/2 .. n-2 are
scored against the token after them, n - n/2 - 1 a chunk; with m the mean and v the mean square less
m^2 of -ln p over all scored tokens, perplexity is exp(m), its error exp(m) sqrt(v / (count - 1)).

    python tests/scripts/compare_llama_cpp.py MODEL.gguf --text FILE --cache DIR \\
        --quipu build/quipu
    python tests/scripts/compare_llama_cpp.py MODEL.gguf --text FILE --cache DIR \\
        --golden tests/golden/default_model.json

The second writes the short golden file of the default model from the references. They are computed
once and kept in DIR as JSON; later runs start only quipu. Status 1 when a perplexity is off by more
than 0.5 %, a difference in greedy text is not a tie, or ids or texts differ. --directory names a
Hugging Face directory of the same weights, for files that transformers cannot open itself.
Needs numpy, torch, transformers, gguf, llama-cpp-python.
"""

import argparse
import hashlib
import json
import pathlib
import re
import subprocess
import sys
import tempfile

import numpy as np

STEPS = 64      # greedy tokens a prompt
KEPT = 20       # likeliest tokens kept of each step
CONTEXT = 512   # room for a prompt and its greedy tokens
TIE_NOISES = 6.0
GOLDEN_STEPS = 24
PERPLEXITY_TOLERANCE = 0.005

RAW = [
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):\n    ",
    "In 1969, the first humans",
    "Water boils at 100 degrees Celsius because",
    "The three primary colors are",
    "SELECT name, age FROM users WHERE",
    "1, 1, 2, 3, 5, 8, 13,",
    "La capitale de l'Italie est",
    "Dear Sir or Madam,\n\nI am writing to",
    "#include <stdio.h>\n\nint main(void)\n{\n",
    "The mitochondria is the powerhouse of the cell. It",
]
CHAT = [
    [("user", "What is gravity?")],
    [("user", "Write a haiku about autumn leaves.")],
    [("user", "List five fruits.")],
    [("user", "Explain photosynthesis to a child in two sentences.")],
    [("user", "What is 17 + 25?")],
    [("user", "Translate to French: Good morning, my friend.")],
    [("user", "Write a Python function that reverses a string.")],
    [("system", "You answer in one short sentence."), ("user", "Why is the sky blue?")],
    [("user", "Hi!"), ("assistant", "Hello! How can I help you today?"),
     ("user", "Recommend me a book about the sea.")],
    [("user", "Who wrote Romeo and Juliet, and when?")],
    [("user", "Give me a recipe for pancakes.")],
    [("user", "Summarise: The quipu was a device of knotted cords used by the Inca to record "
              "numbers, dates and perhaps stories. Each cord was read knot by knot.")],
]

# ------------------------------------------------------------------------------ engines


class Vocabulary:
    """llama.cpp's tokenizer and what the file says about its vocabulary."""

    def __init__(self, path):
        import llama_cpp
        self.model = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
        vocab = self.model._model.vocab
        self.size = self.model.n_vocab()
        self.bos = self.model.token_bos() if llama_cpp.llama_vocab_get_add_bos(vocab) else None
        self.ends = [self.model.token_eos()]
        self.template = self.model.metadata.get("tokenizer.chat_template")

    def tokenize(self, text, special):
        return self.model.tokenize(text.encode(), add_bos=self.bos is not None and not special,
                                   special=special)

    def text(self, tokens, special=False):
        return self.model.detokenize(tokens, special=special).decode(errors="replace")

    def piece(self, token):
        return self.text([token], special=True)


class LlamaCpp:
    """llama.cpp through llama-cpp-python; `exact` keeps keys and values in float32.

    Weights stay as the file stores them (use_extra_bufts off): repacked ones reach AMX kernels
    where the processor lists AMX, and ldtilecfg faults where the system does not grant its tiles.
    """

    def __init__(self, path, threads, exact=False):
        import llama_cpp
        from llama_cpp import llama_cpp as binding
        defaults = binding.llama_model_default_params()
        defaults.use_extra_bufts = False
        binding.llama_model_default_params = lambda: defaults
        kv = {"type_k": llama_cpp.GGML_TYPE_F32, "type_v": llama_cpp.GGML_TYPE_F32} if exact else {}
        self.model = llama_cpp.Llama(str(path), n_ctx=CONTEXT, n_batch=CONTEXT,
                                     n_threads=threads, n_threads_batch=threads, logits_all=True,
                                     verbose=False, **kv)

    def start(self, ids):
        """Logits [len(ids)][vocab] of a new sequence."""
        self.model.reset()
        self.model.eval(ids)
        return self.model.scores[:len(ids)]

    def step(self, token):
        self.model.eval([token])
        return self.model.scores[self.model.n_tokens - 1]


class Transformers:
    """transformers in float32, with its own reading of a GGUF file, or of a directory."""

    def __init__(self, path, threads):
        import torch
        import transformers
        transformers.logging.disable_progress_bar()
        torch.set_num_threads(threads)
        self.torch = torch
        source = {"pretrained_model_name_or_path": path}
        if not path.is_dir():
            source = {"pretrained_model_name_or_path": path.parent, "gguf_file": path.name}
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            **source, dtype=torch.float32).eval()
        self.cache = None

    def forward(self, ids):
        with self.torch.no_grad():
            out = self.model(self.torch.tensor([ids]), past_key_values=self.cache, use_cache=True)
        self.cache = out.past_key_values
        return out.logits[0].float().numpy()

    def start(self, ids):
        self.cache = None
        return self.forward(ids)

    def step(self, token):
        return self.forward([token])[-1]

# ------------------------------------------------------------------------------ references


def likeliest(row):
    """[[id, logit]] of the KEPT largest logits, largest first."""
    order = np.argpartition(-row, KEPT)[:KEPT]
    order = order[np.lexsort((order, -row[order]))]
    return [[int(i), round(float(row[i]), 6)] for i in order]


def greedy(engine, ids, ends):
    """Up to STEPS greedy tokens after `ids`, each with the likeliest tokens it was taken from."""
    row, tokens, steps = engine.start(ids)[-1], [], []
    while True:
        steps.append(likeliest(row))
        tokens.append(steps[-1][0][0])
        if len(tokens) == STEPS or tokens[-1] in ends:
            return tokens, steps
        row = engine.step(tokens[-1])


def negative_log(logits, targets):
    """-ln p of each target under its row of logits, in float64."""
    logits = logits.astype(np.float64)
    largest = logits.max(axis=1)
    total = np.log(np.exp(logits - largest[:, None]).sum(axis=1)) + largest
    return total - logits[np.arange(len(targets)), targets]


def perplexity(engine, tokens, size, bos):
    """Perplexity over chunks of `size`, as the head of this file defines it."""
    losses, means = [], []
    for start in range(0, len(tokens) - size + 1, size):
        chunk = tokens[start:start + size]
        logits = engine.start(([bos] if bos is not None else chunk[:1]) + chunk[1:])
        first = size // 2
        losses.append(negative_log(logits[first:size - 1], chunk[first + 1:]))
        means.append(float(np.exp(losses[-1].mean())))
    return {**summary(np.concatenate(losses)), "chunk_perplexity": means}


def summary(losses):
    mean = losses.mean()
    variance = max(float((losses ** 2).mean() - mean ** 2), 0.0)
    return {"perplexity": float(np.exp(mean)), "scored": len(losses),
            "error": float(np.exp(mean) * np.sqrt(variance / (len(losses) - 1)))}


def render(template, messages):
    """A chat template rendered as transformers sets jinja2 up, the assistant's turn opened."""
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    messages = [{"role": role, "content": content} for role, content in messages]
    return environment.from_string(template).render(
        messages=messages, add_generation_prompt=True, bos_token="", eos_token="")


def write_plan(vocabulary, text, chunk):
    """What every engine is asked: prompts as text and ids, the perplexity text as ids.

    A chat of one user message keeps that message, which `quipu run --chat` can be asked."""
    prompts = [{"kind": "raw", "text": text} for text in RAW]
    for chat in CHAT if vocabulary.template else []:
        prompts.append({"kind": "chat", "text": render(vocabulary.template, chat)})
        if len(chat) == 1:
            prompts[-1]["user"] = chat[0][1]
    for prompt in prompts:
        prompt["ids"] = vocabulary.tokenize(prompt["text"], prompt["kind"] == "chat")
        assert len(prompt["ids"]) + STEPS <= CONTEXT
    assert chunk <= CONTEXT
    return {"prompts": prompts, "ends": vocabulary.ends, "vocab_size": vocabulary.size,
            "bos": vocabulary.bos, "chunk": chunk, "text_ids": vocabulary.tokenize(text, False)}


def write_reference(engine, plan):
    results = []
    for prompt in plan["prompts"]:
        tokens, steps = greedy(engine, prompt["ids"], plan["ends"])
        results.append({"greedy": tokens, "likeliest": steps})
    return {"prompts": results, **perplexity(engine, plan["text_ids"], plan["chunk"], plan["bos"])}


def decode_to_f32(model, out):
    """The GGUF file with every tensor decoded to float32."""
    import gguf
    reader = gguf.GGUFReader(model)
    writer = gguf.GGUFWriter(out, reader.fields["general.architecture"].contents())
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        inner = field.types[1] if len(field.types) > 1 else None
        writer.add_key_value(key, field.contents(), field.types[0], sub_type=inner)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, gguf.quants.dequantize(tensor.data, tensor.tensor_type))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def cached(path, make):
    if not path.exists():
        print(f"computing {path}", file=sys.stderr)
        made = make()
        path.write_text(json.dumps(made))
    return json.loads(path.read_text())


def references(options, vocabulary, text):
    """(plan, {engine: results}), from the cache where they are there already."""
    model, cache, threads = options.model, options.cache, options.threads
    cache.mkdir(parents=True, exist_ok=True)
    stem = model.stem
    plan = cached(cache / f"{stem}.plan.json", lambda: write_plan(vocabulary, text, options.chunk))
    if plan["chunk"] != options.chunk or plan["text_ids"] != vocabulary.tokenize(text, False):
        sys.exit(f"{cache} holds references for another text or chunk: remove {stem}.*.json there")

    def exact():
        decoded = cache / f"{stem}.f32.gguf"
        if not decoded.exists():
            decode_to_f32(model, decoded)
        return write_reference(LlamaCpp(decoded, threads, exact=True), plan)

    made = {}
    for name, make in [
            ("llama.cpp", lambda: write_reference(LlamaCpp(model, threads), plan)),
            ("llama.cpp-f32", exact),
            ("transformers", lambda: write_reference(
                Transformers(options.directory or model, threads), plan))]:
        made[name] = cached(cache / f"{stem}.{name}.json", make)
    return plan, made

# ------------------------------------------------------------------------------ quipu


class Quipu:
    """The program under test, one process a question."""

    def __init__(self, program, model):
        self.program, self.model = program, model

    def run(self, command, *arguments, text=None):
        done = subprocess.run([self.program, command, "-m", self.model, *arguments], check=False,
                              input=text.encode() if text is not None else None,
                              capture_output=True)
        if done.returncode:
            sys.exit(f"quipu {command} ended with {done.returncode}: {done.stderr.decode()}")
        return done.stdout.decode()

    def tokenize(self, text, special):
        options = ["--special", "--no-bos"] if special else []
        return [int(word) for word in self.run("tokenize", *options, text=text).split()]

    def logits(self, ids, vocab):
        with tempfile.NamedTemporaryFile(suffix=".f32") as file:
            self.run("logits", "--ids", ",".join(map(str, ids)), "--out", file.name)
            return np.fromfile(file.name, "<f4").reshape(len(ids), vocab)

    def generate(self, prompt):
        """The text that the program writes at temperature 0."""
        words = ["--raw", "-p", prompt["text"]]
        if prompt["kind"] == "chat":
            words = ["--chat", "-p", prompt["user"]]
        return self.run("run", *words, "--temp", "0", "-n", str(STEPS))

    def perplexity(self, path, chunk):
        """(perplexity, error) as the program prints them: PPL = X +/- Y."""
        out = self.run("perplexity", "-f", str(path), "-c", str(chunk))
        found = re.search(r"([0-9.]+)\s*(?:\+/-|\+-|±)\s*([0-9.]+)", out)
        if not found:
            sys.exit(f"quipu perplexity printed no 'X +/- Y': {out!r}")
        return float(found[1]), float(found[2])

    def follow(self, prompt, reference, vocab):
        """Logits [steps][vocab] at each of the reference's greedy steps, given its tokens."""
        ids = prompt["ids"] + reference["greedy"][:-1]
        return self.logits(ids, vocab)[len(prompt["ids"]) - 1:]

# ------------------------------------------------------------------------------ comparison


def as_map(kept):
    return {int(token): value for token, value in kept}


class Parting:
    """The first step where an engine's greedy token differs from the reference's."""

    def __init__(self, step, reference, tokens, margins, noise):
        self.step, self.reference, self.tokens = step, reference, tokens
        self.margins, self.noise = margins, noise

    def tie(self):
        return sum(self.margins) <= TIE_NOISES * self.noise

    def line(self, piece):
        a, b = (repr(piece(token)) for token in self.tokens)
        return (f"step {self.step}: {a} ahead by {self.margins[0]:.2g}, against {b} ahead by "
                f"{self.margins[1]:.2g}; noise {self.noise:.2g}: "
                f"{'tie' if self.tie() else 'NOT A TIE'}")


def compare_steps(reference, value_of, best_of):
    """The Parting of an engine from `reference` (None if none) and the noise between them.

    value_of(step, token) is the engine's logit, None if unknown; best_of(step) its greedy token.
    """
    squares, count = 0.0, 0
    for step, kept in enumerate(reference["likeliest"]):
        theirs = as_map(kept)
        ours = {token: value_of(step, token) for token in theirs}
        gaps = np.array([ours[t] - theirs[t] for t in theirs if ours[t] is not None])
        squares, count = squares + float(((gaps - gaps.mean()) ** 2).sum()), count + len(gaps)
        noise = np.sqrt(squares / max(count, 1))
        expected, got = reference["greedy"][step], best_of(step)
        if got != expected:
            other = theirs.get(got, min(theirs.values()))
            mine = ours[expected] if ours[expected] is not None else -np.inf
            margins = (theirs[expected] - other, value_of(step, got) - mine)
            return Parting(step, reference, (expected, got), margins, noise), noise
    return None, np.sqrt(squares / max(count, 1))


def compare_cached(reference, other):
    """compare_steps between two cached references."""
    maps = [as_map(kept) for kept in other["likeliest"]]
    steps = min(len(maps), len(reference["likeliest"]))
    cut = {"greedy": reference["greedy"][:steps], "likeliest": reference["likeliest"][:steps]}
    return compare_steps(cut, lambda step, token: maps[step].get(token),
                         lambda step: other["greedy"][step])


def report_pair(title, partings, piece):
    """Prints the greedy comparison of two engines; returns how many partings are no ties."""
    parted = [(number, parting) for number, (parting, _) in enumerate(partings) if parting]
    noises = [noise for _, noise in partings]
    print(f"{title}: {len(partings) - len(parted)} of {len(partings)} texts the same; "
          f"logits deviate by {np.median(noises):.2g} (median), {max(noises):.2g} (largest)")
    for number, parting in parted:
        print(f"    prompt {number + 1:2} {parting.line(piece)}")
    return sum(not parting.tie() for _, parting in parted)


def compare_references(plan, made, piece):
    """Prints how the references themselves agree."""
    for first, second in [("transformers", "llama.cpp-f32"), ("transformers", "llama.cpp")]:
        partings = [compare_cached(a, b) for a, b in
                    zip(made[first]["prompts"], made[second]["prompts"])]
        report_pair(f"{second} against {first}", partings, piece)
    for name, reference in made.items():
        print(f"perplexity of {name:14} {reference['perplexity']:.4f} +/- {reference['error']:.4f} "
              f"({len(reference['chunk_perplexity'])} chunks of {plan['chunk']})")


def compare_tokens(quipu, plan, text):
    """Prints where quipu's ids differ from llama.cpp's; returns the number of texts that do."""
    texts = [(p["text"], p["kind"] == "chat", p["ids"]) for p in plan["prompts"]]
    texts.append((text, False, plan["text_ids"]))
    failures = 0
    for each, special, ids in texts:
        if quipu.tokenize(each, special) != ids:
            print(f"quipu tokenises {each[:60]!r} differently")
            failures += 1
    print(f"tokens: {len(texts) - failures} of {len(texts)} texts the same")
    return failures


def compare_texts(quipu, plan, reference, partings, vocabulary):
    """Prints where `quipu run` writes another text although the greedy tokens agree."""
    asked, failures = 0, 0
    for prompt, result, (parting, _) in zip(plan["prompts"], reference["prompts"], partings):
        if parting or (prompt["kind"] == "chat" and "user" not in prompt):
            continue
        want = vocabulary.text([t for t in result["greedy"] if t not in plan["ends"]])
        got = quipu.generate(prompt)
        asked += 1
        if got.removesuffix("\n") != want.removesuffix("\n"):
            print(f"quipu run writes {got!r} where {want!r} was expected")
            failures += 1
    print(f"quipu run: {asked - failures} of {asked} texts the same as transformers'")
    return failures


def compare_quipu(quipu, plan, made, text_path, text, vocabulary):
    """Prints quipu's comparison with every reference; returns the number of failures."""
    failures = compare_tokens(quipu, plan, text)
    rows_of = {}  # references share most of their texts: ask quipu once for each
    for name, reference in made.items():
        partings = []
        for number, (prompt, result) in enumerate(zip(plan["prompts"], reference["prompts"])):
            key = (number, tuple(result["greedy"]))
            if key not in rows_of:
                rows_of[key] = quipu.follow(prompt, result, plan["vocab_size"])
            rows = rows_of[key]
            partings.append(compare_steps(result, lambda step, token: float(rows[step, token]),
                                          lambda step: int(rows[step].argmax())))
        failures += report_pair(f"quipu against {name}", partings, vocabulary.piece)
        if name == "transformers":
            failures += compare_texts(quipu, plan, reference, partings, vocabulary)
    ours, error = quipu.perplexity(text_path, plan["chunk"])
    print(f"perplexity of quipu          {ours:.4f} +/- {error:.4f}")
    for name, reference in made.items():
        off = ours / reference["perplexity"] - 1
        print(f"    against {name:14} {100 * off:+.3f} %")
        failures += abs(off) > PERPLEXITY_TOLERANCE
    return failures


def write_golden(path, model, plan, reference, vocabulary):
    """The golden file: of each kind the 4 prompts whose greedy steps are furthest from a tie."""
    cases = []
    for prompt, result in zip(plan["prompts"], reference["prompts"]):
        steps = result["likeliest"][:GOLDEN_STEPS]
        greedy_ids = result["greedy"][:GOLDEN_STEPS]
        cases.append({
            "kind": prompt["kind"], "prompt": prompt["text"], "ids": prompt["ids"],
            "greedy": greedy_ids,
            "text": vocabulary.text([t for t in greedy_ids if t not in plan["ends"]]),
            "margin": round(min(kept[0][1] - kept[1][1] for kept in steps), 4),
            "top": steps[0][:5]})
    chosen = [case for kind in ("raw", "chat") for case in
              sorted((c for c in cases if c["kind"] == kind), key=lambda c: -c["margin"])[:4]]
    head = {"model": model.name, "sha256": hashlib.sha256(model.read_bytes()).hexdigest(),
            "by": "transformers, float32, greedy; margin: the smallest gap between the first and "
                  "the second logit of the steps; top: [id, logit] after the prompt"}
    lines = ",\n    ".join(json.dumps(case, ensure_ascii=False) for case in chosen)
    path.write_text(json.dumps(head, indent=2)[:-2] + f',\n  "cases": [\n    {lines}\n  ]\n}}\n')


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--text", type=pathlib.Path, required=True, help="for the perplexity")
    parser.add_argument("--cache", type=pathlib.Path, required=True, help="where references stay")
    parser.add_argument("--chunk", type=int, default=512, help="tokens of a perplexity chunk")
    parser.add_argument("--directory", type=pathlib.Path, help="what transformers opens instead")
    parser.add_argument("--quipu", help="the program; without it the references alone are compared")
    parser.add_argument("--golden", type=pathlib.Path, help="write the golden file there")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    text = options.text.read_text()
    vocabulary = Vocabulary(options.model)
    plan, made = references(options, vocabulary, text)
    compare_references(plan, made, vocabulary.piece)
    if options.golden:
        write_golden(options.golden, options.model, plan, made["transformers"], vocabulary)
    failures = 0
    if options.quipu:
        quipu = Quipu(options.quipu, str(options.model))
        failures = compare_quipu(quipu, plan, made, options.text, text, vocabulary)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
