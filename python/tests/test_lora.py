"""LoRA adapters of answers and sessions."""

import sys
from pathlib import Path

import numpy as np
import pytest

import quipu

TESTS = Path(__file__).resolve().parents[2] / "tests"
TEXT = str(TESTS / "golden" / "models" / "llama-text.gguf")
PROMPT = "the quick brown fox jumps over the lazy dog, and then it goes on"
sys.path.insert(0, str(TESTS))

import lora_files as files  # noqa: E402


@pytest.fixture(scope="module")
def adapters(tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapters")
    return [files.text_adapter(folder / name, rank, rank) for name, rank in (("first", 3), ("second", 6))]


def answer(model, **options):
    made = model.generate(PROMPT, temperature=0, max_tokens=8, logprobs=0, **options)
    made.text()
    return [(token.token, token.logprob) for token in made.logprobs]


def alone(*adapters, **options):
    with quipu.Model(TEXT, threads=1, context=256, adapters=adapters) as model:
        return answer(model, **options)


def test_answers_choose_adapters(adapters):
    first, second = adapters
    base, one, two = alone(), alone(first), alone(quipu.Adapter(second, scale=0.5))
    assert base != one != two != base
    with quipu.Model(TEXT, threads=2, context=256, adapters=[
            quipu.Adapter(first, name="one", waits=True), quipu.Adapter(second, 0.5, waits=True)]) as model:
        for lora, expected in ((None, base), ("one", one), ("second", two), (0, one), ({"one": 1}, one), ((), base),
                               ({1: 0.5}, two), (["second"], two)):
            for _ in range(2):  # the second time it goes on in a session, which has the same adapters
                assert answer(model, lora=lora) == expected, lora
        assert answer(model, lora=["one", "second"]) == answer(model, lora={1: 0.5, 0: 1.0}) != one
        together = [model.generate(PROMPT, temperature=0, max_tokens=8, logprobs=0, lora=lora) for lora in ("one", "second", ())]
        found = [[(t.token, t.logprob) for t in (made.text(), made.logprobs)[1]] for made in together]
        assert found == [one, two, base]
    assert alone(first, second) == alone(first, second, lora=[0, 1])


def test_sessions_keep_theirs(adapters):
    first, second = adapters
    with quipu.Model(TEXT, threads=1, context=256, adapters=[first]) as model:
        expected = model.session().eval([1, 2, 3])
    with quipu.Model(TEXT, threads=1, context=256, adapters=[quipu.Adapter(first, waits=True), second]) as model:
        session = model.session(lora="first")
        session.eval([1, 2])
        forked = session.fork()
        assert np.array_equal(forked.eval([3]), expected)
        assert not np.array_equal(model.session(lora=()).eval([1, 2, 3]), expected)
        with pytest.raises(quipu.QuipuError, match="keeps the adapters"):
            session.generate([3], lora="second")
        session.generate([3], lora="first", max_tokens=1).text()


def test_what_is_wrong_is_named(adapters):
    with quipu.Model(TEXT, threads=1, context=256, adapters=adapters) as model:
        for lora, words in (("third", "no adapter 'third'"), (2, "no adapter 2"), ({0: 0.0}, "other than 0"),
                            ({0: float("nan")}, "finite"), ([0, 0], "named twice")):
            with pytest.raises(quipu.QuipuError, match=words):
                model.generate(PROMPT, lora=lora, max_tokens=1).text()
        assert answer(model)
    with pytest.raises(quipu.QuipuError, match="a list of paths"):
        quipu.Model(TEXT, adapters=str(adapters[0]))
    with pytest.raises(quipu.QuipuError, match="must not be 0"):
        quipu.Model(TEXT, adapters=[quipu.Adapter(adapters[0], scale=0)])
    with pytest.raises(quipu.QuipuError, match="no adapter"):
        with quipu.Model(TEXT, threads=1, context=256) as model:
            model.generate(PROMPT, lora="first").text()


def test_names_of_adapters_are_clear(adapters):
    for wrong in (quipu.Adapter(adapters[0], scale="2"), quipu.Adapter(adapters[0], name=3)):
        with pytest.raises(quipu.QuipuError, match="of an adapter is a"):
            quipu.Model(TEXT, adapters=[wrong])
    same = [quipu.Adapter(path, name="x") for path in adapters]
    with quipu.Model(TEXT, threads=1, context=256, adapters=same) as model:
        assert answer(model, lora=np.int64(1)) == answer(model, lora=1) != answer(model, lora=0)
        for lora, words in (("x", "2 adapters are called 'x'"), (True, "no adapter True"), (-1, "no adapter -1")):
            with pytest.raises(quipu.QuipuError, match=words):
                model.generate(PROMPT, lora=lora)


def test_options_are_checked(adapters):
    first, second = adapters
    for options, words in (({"adapters": [first, second], "adapters_at_once": 1}, "at once must be 2"),
                           ({"adapters": [quipu.Adapter(first, waits=True)], "merge_adapters": True}, "cannot wait"),
                           ({"adapters": [quipu.Adapter(first, scale=float("inf"))]}, "scale of an adapter must be"),
                           ({"adapters": [""]}, "has no path"),
                           ({"adapters": [first] * 65}, "at most 64 adapters"),
                           ({"adapters": [first], "ranks": 2}, "by several ranks")):
        with pytest.raises(quipu.QuipuError, match=words):
            quipu.Model(TEXT, threads=1, context=256, **options)
    with quipu.Model(TEXT, threads=1, context=256, adapters=[first, quipu.Adapter(second, waits=True)],
                     adapters_at_once=1) as model:
        with pytest.raises(quipu.QuipuError, match="2 adapters for a session, and the engine"):
            model.generate(PROMPT, lora=[0, 1], max_tokens=1).text()
        with pytest.raises(quipu.QuipuError, match="is no float32 other than 0"):
            model.generate(PROMPT, lora={1: 1e-300}, max_tokens=1).text()


def test_adapters_are_merged(adapters):
    with quipu.Model(TEXT, threads=1, context=256, adapters=adapters[:1], merge_adapters=True) as model:
        made = [token for token, _ in answer(model)]
        with pytest.raises(quipu.QuipuError, match="no adapter"):
            model.generate(PROMPT, lora="first")
    assert made != [token for token, _ in alone()]
