"""Models that write given texts, for tests of what a server makes of them: each token of a text is followed by the next.
The vocabulary has the bytes, control tokens, and pieces of the texts, each of which stands at one place only."""
import json
import struct
from pathlib import Path


def byte_characters():
    """How byte-level vocabularies write bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    return {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(others)}


BYTES = byte_characters()


def byte_level(text):
    return "".join(BYTES[b] for b in text.encode())


def pieces_of(text, marks, used):
    """Cuts the text into pieces that are not in `used`, the shortest first. A mark is a piece of its own in the first text
    that has it; in later ones it is written in pieces."""
    at, out = 0, []
    while at < len(text):
        piece = next((m for m in marks if text.startswith(m, at) and m not in used), None)
        length = 2
        while not piece and byte_level(text[at:at + length]) in used and at + length < len(text):
            length += 1
        piece = piece or text[at:at + length]
        at += len(piece)
        while byte_level(piece) in used:  # the end of the text: it belongs to the piece before
            before = out.pop()
            used.discard(byte_level(before))
            piece = before + piece
        used |= {byte_level(piece), piece}
        out.append(piece)
    return out


def write_tensors(path, tensors):
    """{name: (shape, [(index, value)])}: floats, zero but for these."""
    head, at, blobs = {}, 0, []
    for name, (shape, values) in tensors.items():
        count = 1
        for n in shape:
            count *= n
        blob = bytearray(4 * count)
        for index, value in values:
            struct.pack_into("<f", blob, 4 * index, value)
        head[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [at, at + len(blob)]}
        at += len(blob)
        blobs.append(bytes(blob))
    text = json.dumps(head).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def scripted_model(folder, template, scripts, marks=(), controls=(), after=None):
    """`scripts`: {name: text}; the text follows the control token <|name|>, or the byte `after`. `marks` and `controls`
    are tokens of their own, and these control tokens, too."""
    folder = Path(folder)
    folder.mkdir(exist_ok=True)
    control = ["<|end|>", *(f"<|{name}|>" for name in scripts), *controls]
    vocabulary = {BYTES[b]: b for b in range(256)}
    used, chain = set(vocabulary), {}
    added = [*control, *(m for m in marks if m not in control)]
    ids = {text: 256 + i for i, text in enumerate(added)}
    for name, text in scripts.items():
        last = vocabulary[BYTES[after]] if after else ids[f"<|{name}|>"]
        for piece in pieces_of(text, marks, used):
            if piece not in ids:
                ids[piece] = vocabulary[byte_level(piece)] = 256 + len(ids)
            assert last not in chain, (name, piece)
            chain[last] = last = ids[piece]
        chain[last] = ids["<|end|>"]
    size = 256 + len(ids)
    size += -size % 64
    tokens = [{"id": ids[text], "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
               "special": text in control} for text in added]
    codec = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "added_tokens": tokens, "normalizer": None, "pre_tokenizer": codec, "post_processor": None,
        "decoder": codec, "model": {"type": "BPE", "vocab": vocabulary | {t: ids[t] for t in added}, "merges": []}}))
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "add_bos_token": False, "eos_token": "<|end|>", "chat_template": template, "tokenizer_class": "GPT2Tokenizer"}))
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": size, "intermediate_size": 32,
        "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 64, "vocab_size": size,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "max_position_embeddings": 4096, "tie_word_embeddings": False,
        "hidden_act": "silu", "torch_dtype": "float32", "eos_token_id": ids["<|end|>"]}))
    layer = "model.layers.0."
    ones = ((size,), [(i, 1) for i in range(size)])
    write_tensors(folder / "model.safetensors", {
        "model.embed_tokens.weight": ((size, size), [(i * size + i, 1) for i in range(size)]),
        "model.norm.weight": ones, layer + "input_layernorm.weight": ones, layer + "post_attention_layernorm.weight": ones,
        "lm_head.weight": ((size, size), [(to * size + at, 4) for at, to in chain.items()]),
        **{layer + f"self_attn.{n}_proj.weight": ((64, size), []) for n in "qkv"},
        layer + "self_attn.o_proj.weight": ((size, 64), []), layer + "mlp.down_proj.weight": ((size, 32), []),
        **{layer + f"mlp.{n}_proj.weight": ((32, size), []) for n in ("gate", "up")}})
    return folder
