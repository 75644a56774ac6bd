"""What answers hold besides text: thoughts, calls of tools, log-probabilities, objects; and embeddings."""

import asyncio
import json
import math
import shutil
import urllib.request
from pathlib import Path

import numpy as np
import pytest

import quipu

MODELS = Path(__file__).resolve().parents[2] / "tests" / "golden" / "models"
TEXT = str(MODELS / "llama-text.gguf")
SCHEMA = {"type": "object", "required": ["word", "n"], "additionalProperties": False,
          "properties": {"word": {"enum": ["cat", "dog"]}, "n": {"type": "integer", "minimum": 1, "maximum": 20}}}
TOOL = {"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}
MESSAGES = [{"role": "user", "content": "the cat"}]


@pytest.fixture
def model():
    with quipu.Model(TEXT, threads=2, context=256) as opened:
        yield opened


def test_answers_have_a_schema(model):
    for schema in (SCHEMA, json.dumps(SCHEMA)):
        answer = model.generate("the cat", schema=schema, temperature=1, seed=1)
        assert answer.parsed() == json.loads(answer.text()) and answer.parsed()["word"] in ("cat", "dog")
    with pytest.raises(quipu.QuipuError, match="exclude each other"):
        model.generate("a", schema=SCHEMA, grammar=quipu.Grammar(model.vocabulary))
    with pytest.raises(quipu.QuipuError, match="a schema is"):
        model.generate("a", schema={"enum": {1, 2}})


def test_classes_of_pydantic_are_schemas(model):
    pydantic = pytest.importorskip("pydantic", reason="pydantic is not installed: its classes were not tried")

    class Animal(pydantic.BaseModel):
        word: str = pydantic.Field(max_length=6)
        n: int

    found = model.generate("the cat", schema=Animal, temperature=0.5, seed=2, max_tokens=100)
    if found.text().endswith("}"):
        assert isinstance(found.parsed(), Animal)


def test_stop_is_a_text_or_a_list(model):
    whole = model.generate("the cat", temperature=0, max_tokens=30, stop_tokens=()).text()
    stop = next(whole[i:i + 2] for i in range(2, len(whole)) if whole[i:i + 2].isascii())
    cut = whole[:whole.index(stop)]
    for given in (stop, [stop], ("zzzzzz", stop)):
        answer = model.generate("the cat", temperature=0, max_tokens=30, stop_tokens=(), stop=given)
        assert answer.text() == cut and answer.finish == "stop"
    for wrong in ("", [""], [3], 3):
        with pytest.raises(quipu.QuipuError, match="stop"):
            model.generate("the cat", stop=wrong)


def test_log_probabilities(model):
    prompt = model.tokenize("the cat")
    answer = model.generate(prompt, temperature=0, max_tokens=4, logprobs=3, stop_tokens=())
    assert len(answer.text()) and [entry.token for entry in answer.logprobs] == answer.tokens
    with model.session() as session:
        rows = session.eval(prompt + answer.tokens[:-1], every_row=True)[len(prompt) - 1:].astype(np.float64)
    for row, entry in zip(rows, answer.logprobs):
        expected = row - row.max() - math.log(np.exp(row - row.max()).sum())
        assert entry.logprob == pytest.approx(expected[entry.token], abs=1e-5)
        assert [token for token, _ in entry.top] == np.argsort(-row, kind="stable")[:3].tolist()
        assert entry.top[0] == (entry.token, pytest.approx(entry.logprob))
    sampled = [model.generate(prompt, seed=3, max_tokens=6, logprobs=k, stop_tokens=()) for k in (None, 0, 2)]
    assert len({answer.text() for answer in sampled}) == 1


def test_arrays_of_numpy_are_tokens(model):
    ids = model.tokenize("the cat sat")
    expected = model.generate(ids, temperature=0, max_tokens=3, stop_tokens=()).text()
    for kind in (np.int32, np.int64, np.uint16):
        assert model.generate(np.array(ids, kind), temperature=0, max_tokens=3, stop_tokens=()).text() == expected
    assert model.detokenize(np.array(ids)) == model.detokenize(ids)
    for wrong in ([1.5], np.array([[1]]), ["a"], 3, [None], np.array([1.0])):
        with pytest.raises(quipu.QuipuError):
            model.session().eval(wrong)


def test_embeddings(model):
    texts = ["the cat", "a dog sat on the cat", "the"]
    together = model.embed(texts)
    assert together.shape == (3, model.hidden_size) and together.dtype == np.float32
    assert np.allclose(np.linalg.norm(together, axis=1), 1, atol=1e-6)
    for text, row in zip(texts, together):
        assert np.array_equal(model.embed(text), row)
    assert np.array_equal(model.embed([model.tokenize(text) for text in texts]), together)
    assert not np.allclose(model.embed(texts, pooling="last"), together)
    assert model.embed([]).shape == (0, model.hidden_size)
    for wrong in ({"texts": [[]]}, {"texts": "a", "pooling": "max"}, {"texts": [[1] * 257]}):
        with pytest.raises(quipu.QuipuError):
            model.embed(**wrong)


def test_embeddings_are_those_of_the_server(model):
    with quipu.serve(TEXT, port=0, context=128) as server:
        request = urllib.request.Request(server.url + "/v1/embeddings", json.dumps({"input": ["the cat", "a"]}).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as reply:
            rows = [entry["embedding"] for entry in json.load(reply)["data"]]
    assert np.allclose(model.embed(["the cat", "a"]), rows, atol=1e-6)


def bound(model, text, messages=MESSAGES, **options):
    """The answer of a chat in which the model can only write this text."""
    grammar = quipu.Grammar(model.vocabulary, gbnf=f"root ::= {json.dumps(text)}")
    return model.chat(messages, grammar=grammar, **options)


def calls_of(answer):
    return [(call.name, json.loads(call.arguments), call.broken) for call in answer.tool_calls]


def test_calls_of_tools_are_apart(model):
    bare = '{"name": "find", "parameters": {"x": "\u00e9"}}'
    answer = bound(model, bare, tools=[TOOL])
    assert answer.text() == "" and answer.finish == "stop" and answer.thinking == ""
    assert calls_of(answer) == [("find", {"x": "\u00e9"}, False)] and answer.tool_calls[0].text == bare
    marked = '<tool_call>{"name": "find", "arguments": {"n": %d}}</tool_call>'
    answer = bound(model, "so: " + marked % 1 + "\n" + marked % 2, tools=[TOOL])
    assert "".join(answer).strip() == "so:"
    assert calls_of(answer) == [("find", {"n": 1}, False), ("find", {"n": 2}, False)]
    assert answer.tool_calls == answer.tool_calls and answer.tool_calls is not answer.tool_calls


def test_what_is_no_call_is_text(model):
    call = '{"name": "find", "parameters": {}}'
    other = call.replace("find", "lose")
    for text, tools in ((call, []), (call, None), (other, [TOOL]), ("{}", [TOOL])):
        answer = bound(model, text, tools=tools)
        assert answer.text() == text and answer.tool_calls == []
    grammar = quipu.Grammar(model.vocabulary, gbnf=f"root ::= {json.dumps(call)}")
    assert model.generate("the cat", grammar=grammar).text() == call


def test_calls_that_are_cut_or_damaged_are_broken(model):
    cut = bound(model, '{"name": "find", "parameters": {"x": 12345678}}', tools=[TOOL], max_tokens=40)
    damaged = bound(model, '<tool_call>{"name": "find", "arguments": {"x": }}</tool_call>', tools=[TOOL])
    for answer, finish in ((cut, "length"), (damaged, "stop")):
        assert '{"name": "find"' not in answer.text() and answer.finish == finish
        (call,) = answer.tool_calls
        assert call.name == "find" and call.broken and '{"name": "find"' in call.text
        with pytest.raises(json.JSONDecodeError):
            json.loads(call.arguments)


def test_tools_are_checked(model):
    for wrong in ({"name": "find"}, {"type": "function", "function": {"name": 3}}, "find", 3, {"function": None}):
        with pytest.raises(quipu.QuipuError, match="a tool is"):
            model.chat(MESSAGES, tools=[wrong])
    for wrong in (3, "find", TOOL):
        with pytest.raises(quipu.QuipuError, match="tool"):
            model.chat(MESSAGES, tools=wrong)


@pytest.mark.parametrize("opens", (False, True))
def test_thoughts_are_apart(tmp_path, opens):
    """By the marks of the template, which may begin the thought itself."""
    shutil.copytree(MODELS / "llama-text", tmp_path / "model")
    config = tmp_path / "model" / "tokenizer_config.json"
    settings = json.loads(config.read_text())
    settings["chat_template"] += "{% if false %}</think>{% endif %}" + "<think>\n" * opens
    config.write_text(json.dumps(settings))
    written = ("" if opens else "<think>\n") + "hm, a \u00e9\n</think>\n\nyes"
    with quipu.Model(tmp_path / "model", context=256) as model:
        answer = bound(model, written)
        assert (answer.text(), answer.thinking) == ("yes", "hm, a \u00e9") and len(answer.tokens) > len("yes")
        cut = bound(model, written, max_tokens=12)
        assert cut.text() == "" and cut.thinking.startswith("hm,")
        call = '{"name": "find", "parameters": {}}'
        answer = bound(model, written.replace("yes", call), tools=[TOOL])
        assert (answer.text(), answer.thinking) == ("", "hm, a \u00e9") and calls_of(answer) == [("find", {}, False)]
        prompt = model.vocabulary.tokenize_chat(MESSAGES)
        grammar = quipu.Grammar(model.vocabulary, gbnf=f"root ::= {json.dumps(written)}")
        assert model.generate(prompt, grammar=grammar).text() == written  # no conversation: all is text


def test_a_task_gets_calls_and_thoughts(model):
    async def ask():
        answers = [bound(model, '{"name": "find", "parameters": {"n": %d}}' % n, tools=[TOOL]) for n in range(3)]
        assert await asyncio.gather(*answers) == [""] * 3
        return [calls_of(answer) for answer in answers]

    assert asyncio.run(ask()) == [[("find", {"n": n}, False)] for n in range(3)]
    answer = bound(model, "the cat", tools=[TOOL])
    answer.close()
    model.close()
    assert answer.tool_calls == [] and answer.thinking == ""


def test_versions():
    assert quipu.__version__.count(".") == 2
    assert set(quipu.__all__) <= set(dir(quipu))
    for name in quipu.__all__:
        assert name.startswith("_") or getattr(quipu, name).__doc__, name
