#!/usr/bin/env python3
"""Makes tests/golden/tokenizer: the mixed strings, and three tiny tokenizers trained on them and on
this repository's headers.

    bytes.json    byte-level BPE, built up as Llama 3's tokenizer.json is
    pieces.model  sentencepiece BPE with byte fallback, user-defined and control pieces
    chars.json    pieces.model's vocabulary as merges over characters, as Llama 2's tokenizer.json is
    strings.bin   texts, each as its length in decimal, a newline and the bytes
    loose.json    byte-level BPE whose merges cross what pre-tokenizers would cut
    pre_tokenizers.json   the parts around loose.json's model in the tokenizer.json files of families,
                          by GGUF's names for them

Needs tokenizers and sentencepiece. What it makes is committed; run it again only to change it, and
then tokenizer_compare.py --write.
"""
import io
import json
import pathlib
import random

import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as spm
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden" / "tokenizer"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")

TEKKEN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
          r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}"
          r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
GPT4O = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+" + CONTRACTION
         + r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*" + CONTRACTION
         + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
# Those that normalization would change are written by their numbers.
CASED = ("A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-"
         "ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u1f7dᾀ-ᾴᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ"
         "\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-"
         "𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃")
EAST_ASIAN = "[一-龥ࠀ-一가-퟿]+"
DEEPSEEK_LLM = ["[\r\n]", rf"\s?[{CASED}]+", r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", EAST_ASIAN]
DEEPSEEK_CODER = ["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", EAST_ASIAN]

WORDS = """the a of knot cord quipu Token tokens Don't we'll I'VE it's Straße naïve façade Führer coöperate
Привет мир данные Ελλάδα שלום مرحبا नमस्ते สวัสดี こんにちは 世界 漢字仮名 안녕 你好世界 中文分词 ＡＢＣ ﬁne Ⅷ ½ ² ①
cafe\u0301 e\u0301\u0302\u0303 n\u0303 \u1e9b\u0323 😀 👩‍👩‍👧 🏳️‍🌈 🇩🇪 👍🏽 ❤️ \u200b \ufeff \u180e \u00ad \u2028 \u0085 ſ 'ſ
<|begin_of_text|> <|eot_id|> <|im_start|>user <|endoftext|> <s> </s> <unk> <0x0A> [INST] ▁ ▁▁x <| |>""".split(" ")
WORDS = [w for part in WORDS for w in part.split("\n") if w]
CODE = """if (x != NULL && *p++ == '\\0') return a[i] ? -1 : +1;|\tfor (int i = 0; i < n; i++) {|#include <stdio.h>|
def f(self, *args, **kwargs) -> None:|    return {'a': [1, 2.5e-3, 0xFF]}|x = "\\u00e9\\n"|// TODO(x): ... !!!??|
SELECT * FROM t WHERE id=42;|<a href="https://e.org/?q=1&r=2#s">|$ git commit -m 'x' && echo $?|a_b-c.d/e~f@g%h^i&j|
\\frac{1}{2}\\alpha_{ij}|}}]]))>>;;,,..|0123456789 3.14159 1,000,000 1e10 ٣٤٥ 一二三|it's we'LL they'D 'tis o'clock""".split("|")
SPACES = [" ", "  ", "   ", "    ", "\t", "\n", "\n\n", "\r\n", " \n ", "\u00a0", "\u3000", "\u2003", "\t\t ", "\x0b", "\x0c", " " * 13]


def code_point(rng):
    """Any scalar value, half of them from the blocks that are assigned most densely."""
    while True:
        c = rng.choice([rng.randrange(0x20, 0x250), rng.randrange(0x370, 0x600), rng.randrange(0x900, 0xe00),
                        rng.randrange(0x2000, 0x2c00), rng.randrange(0x3040, 0x9fff), rng.randrange(0xac00, 0xd7a4),
                        rng.randrange(0x1f300, 0x1fa00), rng.randrange(1, 0x300)])
        if not 0xd800 <= c < 0xe000:
            return chr(c)


def make_string(rng, i):
    kind = i % 8
    parts = []
    for _ in range(rng.randrange(1, 6)):
        if kind == 0:
            parts += [rng.choice(WORDS), rng.choice([" ", " ", "", ". ", ", "])]
        elif kind == 1:
            parts += [rng.choice(CODE).strip("\n"), rng.choice(SPACES)]
            if len(parts) >= 4:
                break
        elif kind == 2:
            parts += [rng.choice(SPACES), rng.choice(["", "x", "1", "é", "."])]
        elif kind == 3:
            parts += [str(rng.randrange(10 ** rng.randrange(1, 9))), rng.choice(["", " ", ".", "½", "²", "٣", "Ⅷ"])]
        elif kind == 4:
            parts += [code_point(rng) for _ in range(rng.randrange(1, 6))]
        elif kind == 5:
            parts += [chr(rng.randrange(0x61, 0x7b)), chr(rng.randrange(0x300, 0x370)), rng.choice(["", " "])]
        elif kind == 6:
            parts += [rng.choice(WORDS), rng.choice(SPACES), code_point(rng)]
        else:
            parts += [rng.choice(WORDS), rng.choice(["", " ", "\udcff", "\udc80\udcbf", "\udcf0\udc9f\udc98", "\udcc3"])]
    return "".join(parts).encode("utf-8", "surrogateescape")


def make_strings():
    rng = random.Random(20)
    texts = [b"", b" ", b"  ", b"\n", b"a", b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\x00", b"a\x00b"]
    while len(texts) < 2400:
        texts.append(make_string(rng, len(texts)))
    return texts


def train_bytes(corpus):
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(LLAMA3), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    specials = ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"]
    tokenizer.train_from_iterator(corpus, trainers.BpeTrainer(
        vocab_size=700, special_tokens=specials, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", 0)])])
    return json.loads(tokenizer.to_str())


def train_loose(corpus):
    """Whole lines are words here, so that merges join letters of both cases, digits, punctuation."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r"[\r\n]+"), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(corpus, trainers.BpeTrainer(
        vocab_size=900, special_tokens=["<|endoftext|>", "<|im_end|>"], show_progress=False,
        max_token_length=6, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return json.loads(tokenizer.to_str())


def around(patterns, nfc=False, digits=False, ignore_merges=False):
    """What a family has around its model, in the form of tokenizer.json."""
    steps = [{"type": "Split", "pattern": {"Regex": p}, "behavior": "Isolated", "invert": False}
             for p in patterns]
    if digits:
        steps.append({"type": "Digits", "individual_digits": True})
    steps.append({"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False})
    return {"normalizer": {"type": "NFC"} if nfc else None, "ignore_merges": ignore_merges,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps}}


def families():
    one_digit = LLAMA3.replace("{1,3}", "")
    return {"llama-bpe": around([LLAMA3], ignore_merges=True), "qwen2": around([one_digit], nfc=True),
            "deepseek-r1-qwen": around([one_digit]), "tekken": around([TEKKEN], ignore_merges=True),
            "gpt-4o": around([GPT4O]),
            "deepseek-llm": around(DEEPSEEK_LLM, digits=True),
            "deepseek-coder": around(DEEPSEEK_CODER, digits=True)}


def train_pieces(corpus):
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus), model_writer=out, vocab_size=800, model_type="bpe", byte_fallback=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False, split_digits=True,
        allow_whitespace_only_pieces=True, character_coverage=0.99, user_defined_symbols=["世界", "[INST]"],
        control_symbols=["<|im_end|>"], num_threads=1, minloglevel=2)
    model = spm.ModelProto()
    model.ParseFromString(out.getvalue())
    model.trainer_spec.ClearField("input")
    model.trainer_spec.ClearField("model_prefix")
    return model


def as_chars(model):
    """The merges: every way to make a piece of two pieces, in the order of the pieces."""
    ids = {p.piece: i for i, p in enumerate(model.pieces)}
    merges = []
    for piece in model.pieces:
        if piece.type != 1:
            continue
        local = [(piece.piece[:i], piece.piece[i:]) for i in range(1, len(piece.piece))]
        merges += sorted((m for m in local if m[0] in ids and m[1] in ids), key=lambda m: (ids[m[0]], ids[m[1]]))
    added = [{"id": i, "content": p.piece, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": True} for i, p in enumerate(model.pieces) if p.type in (2, 3)]
    bos = {"id": "<s>", "ids": [1], "tokens": ["<s>"]}
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "pre_tokenizer": None,
        "post_processor": {"type": "TemplateProcessing", "single": [
            {"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": bos}},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
            {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
                  "vocab": ids, "merges": [" ".join(m) for m in merges]}}


def main():
    GOLDEN.mkdir(parents=True, exist_ok=True)
    texts = make_strings()
    (GOLDEN / "strings.bin").write_bytes(b"".join(b"%d\n%s" % (len(t), t) for t in texts))
    corpus = [t.decode("utf-8", "ignore").replace("\x00", "") for t in texts]
    for path in sorted((ROOT / "src").glob("*/*.h")):
        corpus += path.read_text().splitlines()
    dump = dict(ensure_ascii=False, separators=(",", ":"))
    (GOLDEN / "bytes.json").write_text(json.dumps(train_bytes(corpus), **dump))
    (GOLDEN / "loose.json").write_text(json.dumps(train_loose(corpus), **dump))
    (GOLDEN / "pre_tokenizers.json").write_text(json.dumps(families(), indent=1) + "\n")
    rare = (4, 5, 6)  # kinds of strings with random code points, which would fill the small vocabulary
    model = train_pieces([t for i, t in enumerate(corpus) if i >= 2400 or i % 8 not in rare])
    (GOLDEN / "pieces.model").write_bytes(model.SerializeToString())
    (GOLDEN / "chars.json").write_text(json.dumps(as_chars(model), **dump))


if __name__ == "__main__":
    main()
