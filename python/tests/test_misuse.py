"""Every argument of every call gets values of other types, out of range and of other models: a QuipuError or an answer,
never another exception, and nothing that stays open."""

from pathlib import Path

import numpy as np
import pytest

import quipu
from quipu import options

TEXT = str(Path(__file__).resolve().parents[2] / "tests/golden/models/llama-text.gguf")
SMALL = {"threads": 1, "context": 64, "max_sessions": 4}
WRONG = (None, -1, 1.5, float("nan"), 10 ** 30, "", "x\0y", "\ud800", b"x", [None], ["a"], {"a": 1}, object(), True,
         np.zeros(3), np.zeros((2, 2), int), [[1]], [2 ** 40], set())


@pytest.fixture(scope="module")
def model():
    with quipu.Model(TEXT, **SMALL) as opened:
        yield opened


def calls_of(model):
    """{what: a function of one argument}."""
    vocabulary, session = model.vocabulary, model.session()
    message = [{"role": "user", "content": "x"}]
    calls = {
        "tokenize": model.tokenize, "detokenize": model.detokenize, "piece": vocabulary.piece,
        "is_control": vocabulary.is_control, "Vocabulary": quipu.Vocabulary, "render_chat": vocabulary.render_chat,
        "tokenize bos": lambda x: model.tokenize("a", bos=x), "tokenize special": lambda x: model.tokenize("a", special=x),
        "role": lambda x: vocabulary.render_chat([{"role": x, "content": "x"}]),
        "content": lambda x: vocabulary.tokenize_chat([{"role": "user", "content": x}]),
        "generate": lambda x: model.generate(x, max_tokens=1).text(),
        "chat": lambda x: model.chat(x, max_tokens=1).text(),
        "chat tools": lambda x: model.chat(message, tools=x, max_tokens=1).text(),
        "chat variables": lambda x: model.chat(message, variables=x, max_tokens=1).text(),
        "embed": model.embed, "pooling": lambda x: model.embed("a", pooling=x),
        "normalize": lambda x: model.embed("a", normalize=x), "session lora": lambda x: model.session(lora=x).close(),
        "eval": session.eval, "eval on_logits": lambda x: session.eval([1], on_logits=x), "truncate": session.truncate,
        "save": session.save, "load": session.load, "Model.eval": model.eval,
        "decode sessions": lambda x: model.decode(x, [1], 1), "decode first": lambda x: model.decode([session], x, 1),
        "decode count": lambda x: model.decode([session], [1], x), "step": model.step,
        "Sequence": lambda x: quipu.Sequence(x, [1]), "Sequence tokens": lambda x: quipu.Sequence(session, x),
        "sampler": model.sampler, "allow": lambda x: model.sampler().allow(x), "trace": lambda x: model.trace(x).close(),
        "reschedule": model.reschedule, "Grammar": quipu.Grammar, "Schedule": quipu.Schedule,
        "json_schema": lambda x: quipu.Grammar(vocabulary, json_schema=x),
        "gbnf": lambda x: quipu.Grammar(vocabulary, gbnf=x), "Matcher": lambda x: quipu.Matcher(model, x),
        "plan": quipu.plan, "convert": lambda x: quipu.convert(x, "made.gguf"),
        "convert out": lambda x: quipu.convert(TEXT, x), "Model": lambda x: quipu.Model(x).close(), "pull": lambda x: isinstance(x, str) or quipu.pull(x),
        "Adapter": lambda x: quipu.Model(TEXT, adapters=[x], **SMALL).close()}
    for name in (*options.GenerateOptions.__annotations__, *options.SamplingOptions.__annotations__):
        calls[f"generate {name}"] = lambda x, name=name: model.generate("a", **{"max_tokens": 1, name: x}).text()
    for name in ("sampler", "max_tokens", "interval", "like", "on_logits", "on_token"):
        calls[f"Sequence {name}"] = lambda x, name=name: model.step([quipu.Sequence(session, [1], **{name: x})])
    for name in options.ScheduleOptions.__annotations__:
        calls[f"reschedule {name}"] = lambda x, name=name: model.reschedule(**{name: x})
    for name in options.ConvertOptions.__annotations__:
        calls[f"convert {name}"] = lambda x, name=name: quipu.convert(TEXT, "made.gguf", **{"threads": 1, name: x})
    for name in options.PlanOptions.__annotations__:
        calls[f"plan {name}"] = lambda x, name=name: quipu.plan("synthetic:tiny", **{name: x})
    for name in options.ModelOptions.__annotations__:
        calls[f"Model {name}"] = lambda x, name=name: quipu.Model(TEXT, **{**SMALL, name: x}).close()
    for name in ("host", "port", "name", "api_key", "origin", "insecure", "drain_seconds"):
        calls[f"serve {name}"] = lambda x, name=name: quipu.serve(TEXT, **{"port": 0, **SMALL, name: x}).close()
    return calls


def test_wrong_values_are_refused_by_name(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # some values are names of files
    escaped = []
    for what, call in calls_of(model).items():
        for value in WRONG:
            try:
                call(value)
            except quipu.QuipuError:
                pass
            except Exception as failure:
                escaped.append(f"{what}({value!r:.40}): {type(failure).__name__}: {failure}")
    assert not escaped, "\n".join(escaped)
    assert model.generate("the cat", max_tokens=2).text() is not None


def test_nothing_is_ignored():
    for wrong in ({"log": 3}, {"on_tensor": "print"}, {"schedule": 3}, {"schedule": "dag"}):
        with pytest.raises(quipu.QuipuError, match=next(iter(wrong))):
            quipu.Model(TEXT, **SMALL, **wrong)


def test_objects_of_another_model_are_refused(model):
    with quipu.Model(TEXT, **SMALL) as other:
        theirs = other.session()
        for use in (lambda: model.eval([(theirs, [1])]), lambda: model.decode([theirs], [1], 1),
                    lambda: model.step([quipu.Sequence(theirs, [1])]),
                    lambda: model.step([quipu.Sequence(model.session(), [1], sampler=other.sampler())])):
            with pytest.raises(quipu.QuipuError, match="another model's"):
                use()
