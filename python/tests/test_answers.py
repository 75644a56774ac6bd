"""What answers hold besides text: log-probabilities, objects; and embeddings."""

import json
import math
import urllib.request
from pathlib import Path

import numpy as np
import pytest

import quipu

MODELS = Path(__file__).resolve().parents[2] / "tests" / "golden" / "models"
TEXT = str(MODELS / "llama-text.gguf")
SCHEMA = {"type": "object", "required": ["word", "n"], "additionalProperties": False,
          "properties": {"word": {"enum": ["cat", "dog"]}, "n": {"type": "integer", "minimum": 1, "maximum": 20}}}


@pytest.fixture
def model():
    with quipu.Model(TEXT, threads=2, context=128) as opened:
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
    for wrong in ({"texts": [[]]}, {"texts": "a", "pooling": "max"}, {"texts": [[1] * 129]}):
        with pytest.raises(quipu.QuipuError):
            model.embed(**wrong)


def test_embeddings_are_those_of_the_server(model):
    with quipu.serve(TEXT, port=0, context=128) as server:
        request = urllib.request.Request(server.url + "/v1/embeddings", json.dumps({"input": ["the cat", "a"]}).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as reply:
            rows = [entry["embedding"] for entry in json.load(reply)["data"]]
    assert np.allclose(model.embed(["the cat", "a"]), rows, atol=1e-6)


def test_versions():
    assert quipu.__version__.count(".") == 2
    assert set(quipu.__all__) <= set(dir(quipu))
    for name in quipu.__all__:
        assert name.startswith("_") or getattr(quipu, name).__doc__, name
