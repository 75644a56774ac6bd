#!/usr/bin/env python3
"""Random cases through quipu and through the software whose answer counts: differential.py [PART...]

    schemas      documents that a form accepts, against jsonschema
    templates    what a template renders, against jinja2 as transformers sets it up
    tokenizers   ids of random texts by random vocabularies, against tokenizers and sentencepiece
    blocks       numbers of every type of GGUF blocks, against gguf-py
    models       logits of random small models of every family, against transformers in float64

Every case has a number: --seed N begins there, and `--seed N --count 1 PART` is that case again. --seconds is
how long each part goes on. A part whose package is missing says so and is skipped. Ends with
"N passed, N failed"; QUIPU_BUILD is the folder of a build with its tests.
"""
import argparse
import importlib.util
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
BUILD = pathlib.Path(os.environ.get("QUIPU_BUILD", HERE.parent.parent / "build-test"))
sys.path[:0] = [str(HERE), str(HERE.parent)]
NEEDS = {"schemas": ["jsonschema"], "templates": ["jinja2"], "tokenizers": ["tokenizers", "sentencepiece", "google.protobuf"],
         "blocks": ["gguf"], "models": ["torch", "transformers", "safetensors"]}


class Lines:
    """A tool of the tests that answers lines of JSON."""

    def __init__(self, *command):
        self.process = subprocess.Popen(command, text=True, encoding="utf-8", stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)

    def ask(self, **request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


# ---- Schemas ------------------------------------------------------------------------------------


def random_number(source):
    return round(source.randint(-300, 300) / source.choice([1, 2, 4, 10, 100]), 3)


def random_bounds(source, kind):
    low = random_number(source)
    schema = {"type": kind}
    if source.random() < 0.8:
        schema[source.choice(["minimum", "exclusiveMinimum"])] = low
    if source.random() < 0.8:
        schema[source.choice(["maximum", "exclusiveMaximum"])] = round(low + abs(random_number(source)), 3)
    return schema


def random_array(source, depth):
    schema = {"type": "array"}
    prefix = [random_schema(source, depth - 1) for _ in range(source.randint(0, 3))]
    if prefix:
        schema["prefixItems"] = prefix
    if source.random() < 0.8:
        schema["items"] = random_schema(source, depth - 1) if source.random() < 0.8 or not prefix else False
    if source.random() < 0.6:
        schema["minItems"] = source.randint(0, 4)
    if source.random() < 0.6:
        schema["maxItems"] = schema.get("minItems", 0) + source.randint(0, 3)
    return schema


def random_object(source, depth):
    names = [f"n{i}" for i in range(source.randint(0, 3))]
    schema = {"type": "object", "properties": {name: random_schema(source, depth - 1) for name in names},
              "required": [name for name in names if source.random() < 0.5],
              "additionalProperties": source.choice([False, {"type": "integer"}])}
    return schema


def random_schema(source, depth):
    kind = source.choice(["integer", "number", "string", "enum", "boolean", "null"] + ["array", "object", "anyOf"] * (depth > 0))
    if kind in ("integer", "number"):
        return random_bounds(source, kind)
    if kind == "string":
        low = source.randint(0, 3)
        return {"type": kind, "minLength": low, "maxLength": low + source.randint(0, 3)}
    if kind == "enum":
        return {"enum": source.sample(["a", "ab", "\u00e9", "\"\\", 1, -3.5, 12, True, None], source.randint(1, 4))}
    if kind == "array":
        return random_array(source, depth)
    if kind == "object":
        return random_object(source, depth)
    if kind == "anyOf":
        return {kind: [random_schema(source, depth - 1) for _ in range(2)]}
    return {"type": kind}


def near_numbers(source, schema):
    """The bounds, and numbers beside them."""
    bounds = [schema[key] for key in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum") if key in schema]
    at = source.choice(bounds or [0])
    value = source.choice([at, at + 1, at - 1, at + 0.001, at - 0.001, at + 0.5, random_number(source), int(at)])
    return int(value) if value == int(value) else round(value, 6)


def random_document(source, schema):
    """A document that may be of the schema, and often is."""
    if source.random() < 0.06:
        return source.choice([None, True, 0, 1.5, "", "ab", [], {}, [1], {"n0": 1}])
    if "anyOf" in schema:
        return random_document(source, source.choice(schema["anyOf"]))
    if "enum" in schema:
        return source.choice(schema["enum"])
    kind = schema["type"]
    if kind in ("integer", "number"):
        return near_numbers(source, schema)
    if kind == "string":
        return "".join(source.choice("ab\u00e9\U0001f600\"") for _ in range(source.randint(0, 7)))
    if kind == "array":
        items = schema.get("prefixItems", [])
        rest = schema.get("items", {"type": "null"}) or {"type": "null"}
        count = source.randint(0, 6)
        return [random_document(source, items[i] if i < len(items) else rest) for i in range(count)]
    if kind == "object":
        names = [n for n in schema["properties"] if n in schema["required"] or source.random() < 0.6]
        found = {name: random_document(source, schema["properties"][name]) for name in names if source.random() < 0.95}
        return found | ({"more": source.randint(0, 3)} if source.random() < 0.2 else {})
    return source.choice([True, False]) if kind == "boolean" else None


def is_written_so(document):
    """Whether a form lets the document be written: numbers have no exponent, zero no sign."""
    text = json.dumps(document)
    return "e" not in text.replace("true", "").replace("false", "").replace("n0", "").replace("more", "") and "-0" not in text


class Schemas:
    def __init__(self):
        import jsonschema
        self.validator = jsonschema.Draft202012Validator
        self.tool = Lines(BUILD / "tests/tool_grammar", HERE.parent / "golden/models/llama-text.gguf")

    def run(self, seed):
        source = random.Random(seed)
        schema = random_schema(source, 3)
        documents = [random_document(source, schema) for _ in range(20)]
        texts = [json.dumps(document, ensure_ascii=False, separators=(",", ":")) for document in documents]
        reply = self.tool.ask(schema=schema, accept=texts, make=2, seed=seed)
        valid = [self.validator(schema).is_valid(document) for document in documents]
        if "error" in reply:  # a part without a document is refused by name
            return None if re.search("no (number|array|object|text)", reply["error"]) else f"{json.dumps(schema)}: {reply['error']}"
        for text, document, expected, found in zip(texts, documents, valid, reply["accepted"]):
            if expected != found and (found or is_written_so(document)):
                return f"{json.dumps(schema)}: {text} is {'valid' if expected else 'not valid'}, and {'accepted' if found else 'refused'}"
        for text in reply["made"]:
            if not text.endswith(" (cut)") and not self.validator(schema).is_valid(json.loads(text)):
                return f"{json.dumps(schema)}: makes {text}"
        return None


# ---- Templates ----------------------------------------------------------------------------------

CONTEXT = {"t": "Hello World", "e": "", "u": "Gr\u00fc\u00dfe, \u4e16\u754c \U0001f642", "w": "  a  b\tc \n", "csv": "a,b,,c", "i": 7, "n": -3,
           "z": 0, "f": 2.5, "yes": True, "no": False, "nil": None, "xs": [3, 1, 2], "ss": ["b", "A", "c", "a"],
           "mixed": [1, "a", None, True, 2.5, [1, 2], {"k": "v"}], "none": [], "d": {"b": 1, "a": 2, "C": 3},
           "nested": {"a": {"b": [10, {"c": "deep"}]}},
           "messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "U"},
                        {"role": "assistant", "content": "A", "tool_calls": [{"name": "f", "arguments": {"x": 1}}]}]}
FILTERS = ["length", "upper", "lower", "trim", "first", "last", "list", "string", "int", "float", "abs", "sort", "reverse|list",
           "join(',')", "join", "replace('a','b')", "title", "capitalize", "tojson", "tojson(indent=2)", "unique|list", "sum",
           "default('d')", "default('d', true)", "items|list", "dictsort", "round", "round(1)", "min", "max", "indent(2)", "wordcount",
           "select|list", "reject|list", "map('upper')|list", "map(attribute='role')|list", "selectattr('role','equalto','user')|list",
           "batch(2)|list", "slice(2)|list", "center(9)", "truncate(4)", "urlencode", "e", "format(1)", "count"]
TESTS = ["defined", "undefined", "none", "string", "number", "integer", "float", "mapping", "iterable", "sequence", "boolean", "true",
         "false", "odd", "even", "divisibleby(3)", "in(xs)", "eq(7)", "lt(3)", "upper", "lower"]
METHODS = [".strip()", ".split(',')", ".split()", ".upper()", ".startswith('a')", ".endswith('d')", ".replace('l','L')", ".items()|list",
           ".keys()|list", ".values()|list", ".get('a')", ".get('q', 1)", "[0]", "[-1]", "[1:]", "[::-1]", "['a']", ".a", ".role", ".lower()",
           ".title()", ".lstrip()", ".rstrip('d')", ".count('l')", ".find('o')", ".join(ss)", ".index('l')", ".isdigit()"]


def random_expression(source, depth):
    if depth == 0:
        return source.choice([*CONTEXT, "1", "2", "0", "-1", "2.5", "'a'", "'b c'", "''", "[]", "[1, 2]", "{'a': 1}", "(1, 2)", "none", "true",
                              "missing", "'%s'", "loop.index", "namespace(a=1)"])
    a, b = random_expression(source, depth - 1), random_expression(source, source.randrange(depth))
    kind = source.randrange(9)
    if kind == 0:
        return f"({a} {source.choice(['+', '-', '*', '/', '//', '%', '~', '==', '!=', '<', '<=', '>', '>=', 'and', 'or', 'in', 'not in'])} {b})"
    if kind in (1, 2, 3):
        return f"({a})|{source.choice(FILTERS)}"
    if kind == 4:
        return f"(({a}) is {source.choice(['', 'not '])}{source.choice(TESTS)})"
    if kind in (5, 6):
        method = source.choice(METHODS)
        if ":" in method:  # jinja2 slices constants while it compiles, by another rule
            a = source.choice([*CONTEXT])
        return f"({a}){method}"
    if kind == 7:
        return f"({a} if {b} else {random_expression(source, 0)})"
    return f"[{a}, {b}]" if source.random() < 0.5 else f"{{'k': {a}}}"


def random_template(source, depth=2):
    expression = random_expression(source, source.randrange(1, 4))
    kind = source.randrange(8) if depth else 0
    inner = random_template(source, depth - 1) if depth else ""
    dash = source.choice(["", "", "-"])
    if kind < 3:
        return source.choice(["", " ", "x\n"]) + f"{{{{{dash} {expression} {dash}}}}}" + (inner if kind == 1 else "")
    if kind == 3:
        return f"{{%{dash} if {expression} %}}{inner}{{% else %}}no{{% endif {dash}%}}\n"
    if kind == 4:
        return f"{{% for x in {expression} %}}{{{{ loop.index }}}}{{{{ x }}}}{inner}{{% else %}}none{{% endfor %}}\n"
    if kind == 5:
        return f"{{% set v = {expression} %}}[{{{{ v }}}}]{inner}"
    if kind == 6:
        return f"{{% macro m(a, b=2) %}}<{{{{ a }}}}{{{{ b }}}}>{{% endmacro %}}{{{{ m({expression}) }}}}{inner}"
    return f"{{% set ns = namespace(a={expression}) %}}{{% for q in xs %}}{{% set ns.a = q %}}{{% endfor %}}{{{{ ns.a }}}}  \n  {inner}"


class Templates:
    def __init__(self):
        from jinja2.ext import loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment
        self.environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        self.environment.filters["tojson"] = lambda x, ensure_ascii=False, indent=None, separators=None, sort_keys=False: json.dumps(
            x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
        self.tool = Lines(BUILD / "tests/tool_template")

    def run(self, seed):
        template = random_template(random.Random(seed))
        try:
            expected = self.environment.from_string(template).render(**json.loads(json.dumps(CONTEXT)))
        except Exception:  # whatever jinja2 or Python refuses
            expected = None
        reply = self.tool.ask(template=template, context=CONTEXT)
        if expected is not None and any(sign in expected for sign in (" object at 0x", "<function", "<built-in", "<Macro", "<Undefined", "dict_items",
                                                                      "<class", "dict_keys", "dict_values", "generator", "<bound")):
            return None  # how Python prints what has no text
        if reply.get("text") == expected:
            return None
        if expected is not None and re.search("is not supported|no (filter|test) named", reply.get("error", "")):
            return None  # refused by name
        return f"{template!r}: jinja2 has {expected!r}, quipu {reply}"


# ---- Tokenizers ---------------------------------------------------------------------------------


PATTERNS = ["\\s+", "[a-z]+", "\\d", ",", "[A-Z][a-z]*", " ?\\p{L}+", "\\p{N}{1,3}", "[^\\s\\p{L}]+"]
BEHAVIORS = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]


def random_steps(source):
    """A pre-tokenizer that cuts in other ways than the families' own."""
    steps = [{"type": "Split", "pattern": {"Regex": source.choice(PATTERNS)}, "behavior": source.choice(BEHAVIORS),
              "invert": source.random() < 0.4} for _ in range(source.randint(1, 3))]
    if source.random() < 0.3:
        steps.append({"type": "Digits", "individual_digits": source.random() < 0.5})
    last = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": source.random() < 0.3}
    return {"type": "Sequence", "pretokenizers": [*steps, last]}


class Tokenizers:
    def run(self, seed):
        import tokenizer_compare as compare
        import tokenizer_train as train
        source = random.Random(seed)
        texts = [train.make_string(source, i) for i in range(300)]
        corpus = [text.decode("utf-8", "ignore").replace("\0", "") for text in texts]
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "tokenizer.json"
            if seed % 3 == 2:
                path = path.with_name("tokenizer.model")
                plain = [text for i, text in enumerate(corpus) if i % 8 not in (4, 5, 6)]
                path.write_bytes(train.train_pieces(plain * 3).SerializeToString())
                other = compare.SentencePiece(path)
            else:
                made = train.train_bytes(corpus) if seed % 3 else train.train_loose(corpus)
                if seed % 2:
                    made["pre_tokenizer"] = random_steps(source)
                text = json.dumps(made)
                path.write_text(text)
                other = compare.HuggingFace(text)
            asked = [train.make_string(source, i) for i in range(400)]
            for special in (False, True):
                found = compare.ours(BUILD / "tests/tool_tokenize", path, special, asked)
                for text, ids in zip(asked, found):
                    expected = other.encode(text, special)
                    if expected is not None and expected != ids:
                        return f"{path.name}, special {special}: {text!r}: {expected}, found {ids}"
            kept = seed % 3 == 2 or not seed % 2  # no step removes text
            decoded = compare.run_tool(BUILD / "tests/tool_tokenize", path, "decode", asked) if kept else b""
            if kept and decoded != compare.frames([other.decoded(text) for text in asked]):
                return f"{path.name}: what is decoded is not what was encoded"
        return None


# ---- Blocks -------------------------------------------------------------------------------------


class Blocks:
    def run(self, seed):
        import codec_goldens
        import numpy
        codec_goldens.rng = numpy.random.default_rng(seed)
        with tempfile.TemporaryDirectory() as folder:
            golden = pathlib.Path(folder) / "golden"
            golden.mkdir()
            with open(golden / "codec.bin", "wb") as out:
                codec_goldens.write_decoded(out)
                codec_goldens.write_encoded(out)
                out.write((HERE.parent / "golden/codec.bin").read_bytes()[out.tell():])  # ggml's own, of the same size before
            done = subprocess.run([BUILD / "tests/test_codec"], cwd=folder, capture_output=True, text=True, check=False)
            return None if done.returncode == 0 else done.stdout[-2000:] + done.stderr[-2000:]


# ---- Models -------------------------------------------------------------------------------------


def random_config(source):
    """A variant of the goldens with other sizes."""
    from model_variants import VARIANTS
    name = source.choice(sorted(VARIANTS))
    _, config, storage, _, _ = VARIANTS[name]
    config = json.loads(json.dumps(config))
    if "head_dim" not in config:
        size = config["hidden_size"] // config["num_attention_heads"]
        kv_heads = source.choice([1, 2, 3])
        group = source.choice([1, 2, 4])
        config["num_attention_heads"] = kv_heads * group
        if "num_key_value_heads" in config or group > 1:
            config["num_key_value_heads"] = kv_heads
        config["hidden_size"] = size * kv_heads * group
    config["intermediate_size"] = source.choice([8, 24, 40, 100])
    config["vocab_size"] = source.randint(40, 300)
    return name, config, storage.split()[0]


class Models:
    def run(self, seed):
        import numpy
        from model_reference import TOLERANCE, difference, prompt, reference_logits
        from model_weights import STORED, equivalent_llama, internlm2_weights, llama_weights, write_directory
        source = random.Random(seed)
        name, config, stored = random_config(source)
        weights = llama_weights(config, seed, STORED[stored])
        ids = prompt(config["vocab_size"], source.randint(5, 40), seed)
        with tempfile.TemporaryDirectory() as folder:
            path, theirs = pathlib.Path(folder) / "model", pathlib.Path(folder) / "reference"
            if config["model_type"] == "internlm2":
                write_directory(path, config, internlm2_weights(config, weights))
                write_directory(theirs, equivalent_llama(config), weights)
            else:
                write_directory(path, config, weights)
                theirs = path
            exact, _ = reference_logits(theirs, ids)
            out = pathlib.Path(folder) / "logits"
            done = subprocess.run([BUILD / "quipu", "logits", "-m", path, "--ids", ",".join(map(str, ids)), "-o", out, "--device", "cpu", "-t",
                                   str(source.randint(1, 3)), "--kv-type", "f32"], capture_output=True, text=True, check=False)
            if done.returncode:
                return f"{name} {json.dumps(config)}: {done.stderr}"
            found = numpy.fromfile(out, "<f4").reshape(len(ids), -1)
            error = difference(found, exact)
            return None if error < TOLERANCE else f"{name} {json.dumps(config)}: logits are off by {error:.2e} of the largest"


PARTS = {"schemas": Schemas, "templates": Templates, "tokenizers": Tokenizers, "blocks": Blocks, "models": Models}


def missing(part):
    def is_there(name):
        try:
            return importlib.util.find_spec(name) is not None
        except ModuleNotFoundError:
            return False
    return [name for name in NEEDS[part] if not is_there(name)]


def main():
    parser = argparse.ArgumentParser(description="Random cases through quipu and other software.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=" ".join(PARTS))
    parser.add_argument("--seed", type=int, default=None, help="the first case; by the clock otherwise, and printed")
    parser.add_argument("--count", type=int, default=0, help="most cases of each part; 0: as many as --seconds allow")
    parser.add_argument("--seconds", type=float, default=None, help="for each part (60; with --count: any)")
    options = parser.parse_args()
    unknown = [part for part in options.parts if part not in PARTS]
    if unknown:
        parser.error(f"no part {unknown[0]}; expected {', '.join(PARTS)}")
    first = options.seed if options.seed is not None else int(time.time())
    passed = failed = 0
    for part in options.parts or PARTS:
        lacks = missing(part)
        if lacks:
            print(f"skipped: {part}: Python has no {', '.join(lacks)}; ./dev differential installs it")
            continue
        seconds = options.seconds if options.seconds is not None else float("inf") if options.count else 60
        judge, seed, end = PARTS[part](), first, time.monotonic() + seconds
        while (not options.count or seed < first + options.count) and (seed == first or time.monotonic() < end):
            difference = judge.run(seed)
            passed += difference is None
            if difference is not None:
                failed += 1
                print(f"failed: differential.py {part} --seed {seed} --count 1: {difference}")
            seed += 1
        print(f"{part}: cases {first} to {seed - 1}", flush=True)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
