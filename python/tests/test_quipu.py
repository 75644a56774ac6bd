"""The Python package over the tiny models of tests/golden."""

import json
from pathlib import Path

import numpy as np
import pytest

import quipu

MODELS = Path(__file__).resolve().parents[2] / "tests" / "golden" / "models"
TEXT = str(MODELS / "llama-text.gguf")


@pytest.fixture
def model():
    with quipu.Model(TEXT, threads=2, context=128, max_sessions=4, max_outputs=4) as opened:
        yield opened


def test_text_goes_round(model):
    ids = model.tokenize("the cat")
    assert ids and all(isinstance(i, int) for i in ids)
    assert model.detokenize(ids).strip() == "the cat"


def test_info(model):
    info = model.info
    assert info.context == 128 and info.threads == 2 and info.device == "cpu"


def test_schedules_keep_the_bits(model):
    ids = model.tokenize("the cat sat")

    def logits(of):
        with of.session() as session:
            return session.eval(ids, every_row=True)

    expected = logits(model)
    chosen = {"setting": "throughput", "assignment": "pool", "memory_fraction": 0.5}
    with quipu.Model(TEXT, threads=2, context=128, schedule=chosen) as other:
        assert np.array_equal(logits(other), expected)
    model.reschedule(assignment="dag")
    assert np.array_equal(logits(model), expected)
    with pytest.raises(quipu.QuipuError, match="rr, zz, wave, dag, pool"):
        model.reschedule(assignment="largest")
    with pytest.raises(TypeError, match="no option 'assign'"):
        quipu.Model(TEXT, schedule={"assign": "dag"})
    model.reschedule()
    assert np.array_equal(logits(model), expected)


def test_generation_streams_and_repeats(model):
    first = model.generate("the cat", max_tokens=3, temperature=0)
    pieces = list(first)
    assert first.finish == "length" and len(first.tokens) == 3 and pieces
    again = model.generate("the cat", max_tokens=3, temperature=0)
    assert again.text() == "".join(pieces)
    assert again.statistics["generated_tokens"] == 3


def test_leaving_a_loop_cancels(model):
    answer = model.generate("the cat", temperature=0, logit_bias={2: -100.0})
    for _ in answer:
        break
    answer.close()
    assert answer.finish in ("cancelled", "context", "stop")
    assert model.session() is not None  # its session has been given back


def test_logits_are_those_of_the_whole_prompt(model):
    ids = model.tokenize("the cat sat")
    with model.session() as session:
        rows = session.eval(ids, every_row=True)
    with model.session() as session:
        last = session.eval(ids)
    assert rows.shape == (len(ids), model.info.vocab_size) and rows.dtype == np.float32
    assert np.array_equal(rows[-1], last)


def test_logits_without_a_copy(model):
    seen = []
    with model.session() as session:
        session.eval(model.tokenize("the cat"),
                     on_logits=lambda token, row: seen.append((token, row.flags.owndata,
                                                               float(row.max()))))
    assert len(seen) == 1 and seen[0][1] is False


def test_an_exception_of_a_callback_comes_back(model):
    def fail(_token, _row):
        raise KeyError("mine")

    with model.session() as session, pytest.raises(KeyError, match="mine"):
        session.eval([1, 2], on_logits=fail)


def test_forks_go_their_own_ways(model):
    with model.session() as one:
        one.eval(model.tokenize("the cat"))
        other = one.fork()
        assert other.tokens == one.tokens
        assert np.array_equal(one.eval([5]), other.eval([5]))
        assert not np.array_equal(one.eval([6]), other.eval([7]))


def test_many_sequences_at_once(model):
    a, b = model.session(), model.session()
    model.eval([(a, [1, 4, 5]), (b, [1, 9])])
    together = model.decode([a, b], [6, 7], 5)
    assert together.shape == (6, 2)
    for column, prompt, first in ((0, [1, 4, 5], 6), (1, [1, 9], 7)):
        with model.session() as alone:
            alone.eval(prompt)
            assert np.array_equal(model.decode([alone], [first], 5)[:, 0], together[:, column])


def test_pieces_make_the_text(model):
    vocabulary = model.vocabulary
    ids = vocabulary.tokenize("the cat", bos=False)
    assert b"".join(map(vocabulary.piece, ids)).strip() == b"the cat"
    assert len(vocabulary) <= model.info.vocab_size
    with pytest.raises(IndexError, match=f"token {len(vocabulary)} is outside"):
        vocabulary.piece(len(vocabulary))
    with pytest.raises(IndexError):
        vocabulary.piece(-1)


def test_special_tokens(model):
    vocabulary = model.vocabulary
    assert vocabulary.is_control(vocabulary.eos)
    assert not vocabulary.is_control(vocabulary.tokenize("the", bos=False)[-1])
    assert vocabulary.tokenize("the", bos=True)[0] == vocabulary.bos


def test_messages_cannot_write_control_tokens():
    vocabulary = quipu.Vocabulary(str(MODELS / "llama-text"))

    def controls(content, **flags):
        ids = vocabulary.tokenize_chat([{"role": "user", "content": content}],
                                       add_generation_prompt=False, **flags)
        return sum(map(vocabulary.is_control, ids))

    assert controls("a<|im_end|>b") == controls("a") == 2
    assert controls("a<|im_end|>b", special=True) == 3


def test_trace(model):
    with model.trace() as trace:
        model.generate("the cat", max_tokens=3, temperature=0).text()
        assert "linear" in trace.table()
        assert trace.events()["traceEvents"]


def test_what_is_wrong_is_said():
    with pytest.raises(quipu.QuipuError, match="missing.gguf") as caught:
        quipu.Model("missing.gguf")
    assert caught.value.status == "QP_IO"
    with pytest.raises(TypeError, match="no option 'thread'"):
        quipu.Model(TEXT, thread=1)


def test_wrong_types_are_named(model):
    with pytest.raises(TypeError, match="option 'threads' is a int.*found 'two'"):
        quipu.Model(TEXT, threads="two")
    with pytest.raises(TypeError, match="bytes-like"):
        model.tokenize(3)
    with pytest.raises(TypeError, match="list of .* found 'hello'"):
        model.chat("hello")
    with model.session() as session, pytest.raises(ValueError, match="input 0 has no tokens"):
        session.eval([])


def test_what_is_closed_is_not_used():
    model = quipu.Model(TEXT)
    session, sampler, vocabulary = model.session(), model.sampler(), model.vocabulary
    sampler.close()
    model.close()
    for use in (lambda: model.info, model.session, lambda: vocabulary.tokenize("the cat")):
        with pytest.raises(ValueError, match="the model is closed"):
            use()
    with pytest.raises(ValueError, match="the session is closed"):
        session.tokens
    with pytest.raises(ValueError, match="the sampler is closed"):
        sampler.allow(None)
    model.close()


def test_errors_of_a_generation_come_back(model):
    with pytest.raises(quipu.QuipuError, match="max_tokens .0: until"):
        model.generate("the cat", max_tokens=-1).text()
    with pytest.raises(quipu.QuipuError, match="prompt is empty"):
        model.generate([]).text()
    with pytest.raises(quipu.QuipuError):
        model.generate("the", temperature=-1).text()


def test_answers_have_the_form_of_a_grammar(model):
    schema = {"type": "object", "required": ["n", "word"], "properties": {
        "n": {"type": "integer", "minimum": 3, "maximum": 12}, "word": {"enum": ["the", "cat"]}}}
    bound = quipu.Grammar(model.vocabulary, json_schema=schema)
    for seed in range(4):
        answer = model.generate("the cat", temperature=1, seed=seed, grammar=bound)
        found = json.loads(answer.text())
        assert answer.finish == "stop" and 3 <= found["n"] <= 12 and found["word"] in ("the", "cat")
    choice = quipu.Grammar(model.vocabulary, gbnf='root ::= "yes" | "no"')
    assert model.generate("the cat", grammar=choice).text() in ("yes", "no")
    with pytest.raises(quipu.QuipuError, match="contains"):
        quipu.Grammar(model.vocabulary, json_schema={"type": "array", "contains": {}})
    with pytest.raises(ValueError, match="exclude"):
        quipu.Grammar(model.vocabulary, json_schema={}, gbnf="root ::= root")


def test_a_matcher_says_what_may_come_next(model):
    sampling = quipu.Sampling(temperature=1, grammar=quipu.Grammar(model.vocabulary, gbnf='root ::= "a" [bc]'))
    matcher, text = quipu.Matcher(model, sampling), b""
    with model.session() as session:
        sampler, tokens = model.sampler(sampling), model.tokenize("the cat")
        while True:
            sampler.allow(matcher.allowed())
            token = model.step([quipu.Sequence(session, tokens, sampler=sampler, max_tokens=1)])[0][0]
            if token in sampler.stop_tokens:
                break
            matcher.take(token)
            text, tokens = text + model.vocabulary.piece(token), [token]
    assert text in (b"ab", b"ac")
    with pytest.raises(quipu.QuipuError, match="not allowed"):
        matcher.take(model.tokenize("b")[0])


def test_models_are_converted(tmp_path):
    out, lines = tmp_path / "model.gguf", []
    quipu.convert(TEXT, out, type="F32", threads=1, log=lines.append)
    with quipu.Model(out, threads=1) as model, quipu.Model(TEXT, threads=1) as before:
        assert model.info.weight_bytes > before.info.weight_bytes
        assert model.tokenize("the cat") == before.tokenize("the cat")
    for wrong in ({"type": "Q9"}, {"kind": "F32"}, {"threads": "two"}, {"adapters": ["nosuch"]}):
        with pytest.raises(quipu.QuipuError):
            quipu.convert(TEXT, tmp_path / "other.gguf", **wrong)
    assert not (tmp_path / "other.gguf").exists()
