#!/usr/bin/env python3
"""Compares quipu's ids with Hugging Face tokenizers and sentencepiece on the mixed strings.

    tokenizer_compare.py --tool BUILD/tests/tool_tokenize [--data DIR] [--write]

Each tokenizer is asked for every string of tests/golden/tokenizer/strings.bin, once with control
tokens as text and once with them parsed, and again to decode what it encoded. --data adds the real
tokenizers (the folder that QUIPU_TEST_DATA names) to the repository's own. --write stores hashes of
the other side's ids, one a block of 16 strings, in tests/golden/tokenizer/hashes.json, and the words
that each pre-tokenizer cuts a few texts into, in words.json; the suite compares quipu's with them
without Python.

The others take text, quipu takes bytes, so invalid UTF-8 is put to them piece by piece: byte-level
vocabularies get the stretches of invalid bytes as words of their own, and sentencepiece gets in the
place of each invalid byte a character of a plane that no vocabulary has, whose four byte tokens are
then that byte's token.
"""
import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unicodedata

import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as spm
from tokenizers import Tokenizer

import tokenizer_train

GOLDEN = tokenizer_train.GOLDEN
BLOCK = 16
STAND_IN = 0xF0000


def read_strings():
    data, texts = (GOLDEN / "strings.bin").read_bytes(), []
    while data:
        length, _, data = data.partition(b"\n")
        texts.append(data[:int(length)])
        data = data[int(length):]
    return texts


def stretches(text):
    """The text cut into valid stretches (str) and invalid ones (bytes)."""
    whole = text.decode("utf-8", "surrogateescape")
    for part in re.findall("[\udc80-\udcff]+|[^\udc80-\udcff]+", whole):
        raw = part.encode("utf-8", "surrogateescape")
        yield raw if "\udc80" <= part[0] <= "\udcff" else part


def byte_letters():
    plain = [*range(0x21, 0x7f), *range(0xa1, 0xad), *range(0xae, 0x100)]
    rest = [b for b in range(256) if b not in plain]
    return {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(rest)}


LETTERS = byte_letters()


class HuggingFace:
    def __init__(self, text):
        self.tokenizer = Tokenizer.from_str(text)
        self.model = json.loads(text)["model"]
        self.nfc = (json.loads(text)["normalizer"] or {}).get("type") == "NFC"
        self.byte_level = not self.model.get("byte_fallback")

    def encode(self, text, special):
        self.tokenizer.encode_special_tokens = not special
        if not self.byte_level:
            return stand_in(lambda t: self.tokenizer.encode(t, add_special_tokens=False).ids, text,
                            self.tokenizer.token_to_id("<0x00>"))
        ids = []
        for part in stretches(text):
            if isinstance(part, str):
                ids += self.tokenizer.encode(part, add_special_tokens=False).ids
            else:
                ids += [t.id for t in self.tokenizer.model.tokenize("".join(LETTERS[b] for b in part))]
        return ids

    def decoded(self, text):
        """What decoding gives back: bytes without a token are lost, as the format has it."""
        if not self.byte_level:
            return text.replace("▁".encode(), b" ")
        if self.nfc:
            text = b"".join(unicodedata.normalize("NFC", part).encode() if isinstance(part, str) else part
                            for part in stretches(text))
        return bytes(b for b in text if LETTERS[b] in self.model["vocab"])


class SentencePiece:
    """Control tokens are not sentencepiece's business: it has no answer for them parsed."""

    def __init__(self, path):
        self.model = sentencepiece.SentencePieceProcessor(model_file=str(path))
        proto = spm.ModelProto()
        proto.ParseFromString(pathlib.Path(path).read_bytes())
        self.removes_spaces = proto.normalizer_spec.remove_extra_whitespaces

    def encode(self, text, special):
        if special:
            return None
        return stand_in(self.model.encode, text, self.model.piece_to_id("<0x00>"))

    def decoded(self, text):
        """The mark of a space reads as a space, and extra spaces go where the model removes them."""
        if self.removes_spaces:
            text = re.sub(b" +", b" ", text).strip(b" ")
        text = text.replace("▁".encode(), b" ")
        return text.strip(b" ") if self.removes_spaces else text


def stand_in(encode, text, zero):
    whole = text.decode("utf-8", "surrogateescape")
    ids = encode("".join(chr(STAND_IN + ord(c) - 0xdc00) if "\udc80" <= c <= "\udcff" else c for c in whole))
    out = []
    for id in ids:
        out.append(id)
        tail = bytes(i - zero if zero <= i < zero + 256 else 0x20 for i in out[-4:])
        if tail[:2] == b"\xf3\xb0" and len(tail) == 4:
            out[-4:] = [zero + ord(tail.decode()) - STAND_IN]
    return out


def frames(texts):
    return b"".join(b"%d\n%s" % (len(t), t) for t in texts)


def run_tool(tool, model, mode, texts):
    done = subprocess.run([tool, str(model), mode], input=frames(texts), stdout=subprocess.PIPE, check=True)
    return done.stdout


def ours(tool, model, special, texts):
    lines = run_tool(tool, model, "special" if special else "", texts).decode().split("\n")[:-1]
    return [[int(i) for i in line.split()] for line in lines]


def block_hashes(all_ids):
    """FNV-1a, 64 bits, over the ids as little-endian int32 with -1 after each string."""
    out = []
    for start in range(0, len(all_ids), BLOCK):
        h = 0xcbf29ce484222325
        for ids in all_ids[start:start + BLOCK]:
            for byte in b"".join(i.to_bytes(4, "little", signed=True) for i in [*ids, -1]):
                h = (h ^ byte) * 0x100000001b3 & 0xffffffffffffffff
        out.append("%016x" % h)
    return out


def gpt2_as_json(vocab, merges):
    """GPT-2's two files as one tokenizer.json, for Hugging Face."""
    lines = [m for m in merges.read_text().split("\n") if m and not m.startswith("#version")]
    ids = json.loads(vocab.read_text())
    return json.dumps({
        "version": "1.0", "added_tokens": [{
            "id": ids["<|endoftext|>"], "content": "<|endoftext|>", "single_word": False, "lstrip": False,
            "rstrip": False, "normalized": False, "special": True}],
        "normalizer": None, "post_processor": None, "decoder": {
            "type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": ids, "merges": lines}})


def cases(data, scratch):
    """(name in hashes.json, our models that must agree, the other side)"""
    def json_case(name, path, *more):
        return name, [path, *more], HuggingFace(pathlib.Path(path).read_text())

    yield json_case("golden/bytes.json", GOLDEN / "bytes.json")
    yield json_case("golden/chars.json", GOLDEN / "chars.json")
    loose = json.loads((GOLDEN / "loose.json").read_text())
    for name, parts in json.loads((GOLDEN / "pre_tokenizers.json").read_text()).items():
        model = loose["model"] | {"ignore_merges": parts.pop("ignore_merges")}
        path = scratch / f"{name}.json"
        path.write_text(json.dumps(loose | parts | {"model": model}))
        yield json_case(f"golden/loose.json, {name}", path)
    yield "golden/pieces.model", [GOLDEN / "pieces.model"], SentencePiece(GOLDEN / "pieces.model")
    if not data:
        return
    t = pathlib.Path(data) / "tokenizers"
    yield json_case("llama3/tokenizer.json", t / "llama3/tokenizer.json", t / "llama3")
    yield json_case("smollm2/tokenizer.json", t / "smollm2/tokenizer.json", t / "vocab-smollm2.gguf", t / "smollm2")
    for name in ("llama2", "internlm2"):
        yield f"{name}/tokenizer.model", [t / name / "tokenizer.model"], SentencePiece(t / name / "tokenizer.model")
    stories = pathlib.Path(data) / "stories260K/hf/tokenizer.model"
    yield "stories260K/tokenizer.model", [stories], SentencePiece(stories)
    gpt2 = gpt2_as_json(t / "gpt2/gpt2_vocab.json", t / "gpt2/gpt2_merges.txt")
    (scratch / "gpt2").mkdir()
    for name in ("vocab.json", "merges.txt"):
        (scratch / "gpt2" / name).symlink_to((t / "gpt2" / ("gpt2_" + name)).resolve())
    (scratch / "gpt2.json").write_text(gpt2)
    yield "gpt2", [scratch / "gpt2", scratch / "gpt2.json"], HuggingFace(gpt2)
    model = spm.ModelProto()
    model.ParseFromString((t / "llama2/tokenizer.model").read_bytes())
    (scratch / "llama2.json").write_text(json.dumps(tokenizer_train.as_chars(model)))
    yield json_case("llama2 as tokenizer.json", scratch / "llama2.json")


WORD_TEXTS = [
    "HelloWorld parseHTTPResponse ÉCOLEs naïveCAFÉ ǅungla ʰX", "it's I'LL DON'T we'Ve 'tis o'clock",
    "a1b22c333 1234567 3.14 ½² ٣٤ Ⅷ 一二", "x\n/\r\n//  \n\n\ty  z   ", "foo/bar.baz(qux);\n};\n/* c */\r",
    "e\u0301\u0302E\u0301 n\u0303o\u0323\u0302 \u1100\u1161\u11a8 \u212b \u2126 \u1e9b\u0323",
    "漢字かなカナ，「引用」。ABCｄｅｆ！ 안녕하세요 ᠊ࠀ", "Привет,Мир! Ελλάδα Ὠδή ՀԱՅԵՐԵՆ հայ ქართული ᲐᲑ",
    " lead  two\u00a0nb\u3000wide\u2003em\u0085nel ", "!?…—“q”‘s’ @#$%^&*()_+-=[]{}|<>~`", "👩‍👩‍👧🇩🇪❤️x"]


def words_of(name, parts):
    """Each text, normalized, and the words that it is cut into."""
    around = Tokenizer.from_str(json.dumps(json.loads((GOLDEN / "loose.json").read_text()) | parts))
    for text in WORD_TEXTS:
        whole = around.normalizer.normalize_str(text) if around.normalizer else text
        words = [whole[begin:end] for _, (begin, end) in around.pre_tokenizer.pre_tokenize_str(whole)]
        assert "".join(words) == whole
        yield {"pre": name, "text": text, "words": words}


def compare(tool, model, special, texts, theirs):
    wrong = 0
    for text, a, b in zip(texts, ours(tool, model, special, texts), theirs, strict=True):
        if a != b:
            wrong += 1
            if wrong <= 5:
                print(f"  {text!r}\n    quipu  {a}\n    theirs {b}")
    print(f"{model}{', control tokens parsed' if special else ''}: {len(texts) - wrong} of {len(texts)} agree")
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tool", required=True)
    parser.add_argument("--data", default=os.environ.get("QUIPU_TEST_DATA"))
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    texts, hashes, wrong = read_strings(), {}, 0
    with tempfile.TemporaryDirectory() as scratch:
        for name, models, other in cases(args.data, pathlib.Path(scratch)):
            for special in (False, True):
                theirs = [other.encode(t, special) for t in texts]
                if theirs[0] is None:
                    continue
                hashes[name + (" special" if special else "")] = block_hashes(theirs)
                wrong += sum(compare(args.tool, m, special, texts, theirs) for m in models)
            expected = frames([other.decoded(t) for t in texts])
            if run_tool(args.tool, models[0], "decode", texts) != expected:
                print(f"{models[0]}: decoding does not give the texts back")
                wrong += 1
    if args.write:
        rows = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in hashes.items())
        (GOLDEN / "hashes.json").write_text("{\n" + rows + "\n}\n")
        around = json.loads((GOLDEN / "pre_tokenizers.json").read_text())
        rows = ",\n".join(json.dumps(row, ensure_ascii=False) for name, parts in around.items()
                          if parts.pop("ignore_merges") is not None for row in words_of(name, parts))
        (GOLDEN / "words.json").write_text("[\n" + rows + "\n]\n")
    sys.exit(wrong != 0)


if __name__ == "__main__":
    main()
