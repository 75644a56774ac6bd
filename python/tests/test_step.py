"""Sequences that are stepped side by side, over the tiny models of tests/golden."""

from pathlib import Path

import numpy as np
import pytest

import quipu

TEXT = str(Path(__file__).resolve().parents[2] / "tests/golden/models/llama-text.gguf")
PROMPTS = ([1, 4, 5, 6], [1, 9], [1, 30, 20, 10, 40, 50, 60])
NO_END = {"logit_bias": {2: -1000.0}}


@pytest.fixture
def model():
    with quipu.Model(TEXT, threads=2, context=64, max_sessions=4, max_outputs=4, chunk=8) as opened:
        yield opened


def run(model, batch):
    while batch:
        model.step(batch)
        batch = [sequence for sequence in batch if not sequence.done]


def alone(model, prompt, seed, count):
    with model.session() as session:
        answer = session.generate(prompt, max_tokens=count, temperature=1.2, seed=seed, **NO_END)
        answer.text()
        return answer.tokens


def test_answers_are_those_of_each_alone(model):
    batch = [quipu.Sequence(model.session(), prompt, max_tokens=8,
                            sampler=model.sampler(temperature=1.2, seed=i, **NO_END))
             for i, prompt in enumerate(PROMPTS)]
    run(model, batch)
    for i, (sequence, prompt) in enumerate(zip(batch, PROMPTS)):
        assert len(sequence.made) == 8 and sequence.done
        assert sequence.made == alone(model, prompt, i, 8)
        assert sequence.session.tokens == list(prompt) + sequence.made[:-1]
        sequence.session.close()


def test_sequences_join_and_leave(model):
    first, second = (quipu.Sequence(model.session(), prompt, max_tokens=6, interval=1,
                                    sampler=model.sampler(temperature=1.2, seed=i, **NO_END))
                     for i, prompt in enumerate(PROMPTS[:2]))
    tokens = [model.step([first])[0], model.step([first])[0]]
    assert tokens == [first.made[:1], first.made[1:]]
    model.step([second, first])
    assert len(second.made) == 1 and first.chosen == first.made[2:]
    run(model, [first])
    run(model, [second])
    for i, sequence in enumerate((first, second)):
        sequence.session.close()
        assert sequence.made == alone(model, PROMPTS[i], i, 6)


def test_a_prompt_is_read_once_for_all_that_are_like(model):
    reader = quipu.Sequence(model.session(), PROMPTS[2] * 3, max_tokens=5,
                            sampler=model.sampler(temperature=1.2, seed=0, **NO_END))
    other = quipu.Sequence(model.session(), like=reader, max_tokens=5,
                           sampler=model.sampler(temperature=1.2, seed=1, **NO_END))
    steps = 0
    while other.like is not None:
        assert other.session.tokens == []
        model.step([reader, other])
        steps += 1
    assert steps == 3  # chunks of 8 tokens
    assert other.session.tokens == reader.session.tokens == PROMPTS[2] * 3
    run(model, [reader, other])
    for i, sequence in enumerate((reader, other)):
        sequence.session.close()
        assert sequence.made == alone(model, PROMPTS[2] * 3, i, 5)


def test_tokens_that_are_only_read(model):
    rows = []
    with model.session() as session:
        sequence = quipu.Sequence(session, PROMPTS[2], every_row=True,
                                  on_logits=lambda i, row: rows.append((i, row.copy())))
        run(model, [sequence])
        assert sequence.made == [] and len(sequence.pending) == 0
    with model.session() as session:
        expected = session.eval(PROMPTS[2], every_row=True)
    assert np.array_equal(np.stack([row for _, row in rows]), expected)
    with pytest.raises(ValueError, match="sequence 0 is done"):
        model.step([sequence])


def test_logits_are_read_only_views(model):
    def look(_index, row):
        assert row.dtype == np.float32 and row.shape == (model.info.vocab_size,)
        assert not row.flags.owndata and not row.flags.writeable

    with model.session() as session:
        model.step([quipu.Sequence(session, [1, 2], on_logits=look)])
        session.eval([3], on_logits=look)


def test_masks(model):
    sampler = model.sampler(temperature=1.0)
    with model.session() as session:
        sequence = quipu.Sequence(session, [1, 4], sampler=sampler, max_tokens=4)
        sampler.allow([7])
        assert model.step([sequence]) == [[7]]
        mask = np.zeros(model.info.vocab_size, dtype=bool)
        mask[[11, 12]] = True
        sampler.allow(mask)
        assert model.step([sequence])[0][0] in (11, 12)
        sampler.allow(None)
        run(model, [sequence])
        with pytest.raises(IndexError, match="found 1000000"):
            sampler.allow([1000000])
        with pytest.raises(ValueError, match="shape"):
            sampler.allow(np.zeros(3, dtype=bool))


def test_a_stop_token_ends_a_sequence(model):
    sampler = model.sampler(temperature=0)
    with model.session() as session:
        sampler.allow(sorted(sampler.stop_tokens)[:1])
        sequence = quipu.Sequence(session, [1, 4], sampler=sampler)
        model.step([sequence])
        assert sequence.done and sequence.made[-1] in sampler.stop_tokens


def test_receivers_end_a_sequence_and_their_exceptions_come_back(model):
    with model.session() as session:
        sequence = quipu.Sequence(session, [1, 4], sampler=model.sampler(temperature=0, **NO_END),
                                  on_token=lambda token: len(sequence.made) < 3)
        run(model, [sequence])
        assert len(sequence.made) == 3

    def fail(*_):
        raise KeyError("mine")

    for receiver in ({"on_logits": fail}, {"on_token": fail}):
        with model.session() as session, pytest.raises(KeyError, match="mine"):
            model.step([quipu.Sequence(session, [1, 4], sampler=model.sampler(), **receiver)])


def test_a_cancelled_sequence_makes_no_progress(model):
    with model.session() as one, model.session() as two:
        a, b = (quipu.Sequence(session, [1, 4], max_tokens=2,
                               sampler=model.sampler(temperature=0, **NO_END))
                for session in (one, two))
        a.cancel()
        model.step([a, b])
        assert a.done and a.made == [] and len(b.made) >= 1


def test_the_context_ends_a_sequence(model):
    with model.session() as session:
        sequence = quipu.Sequence(session, [1, 4], sampler=model.sampler(temperature=0, **NO_END))
        run(model, [sequence])
        assert len(session.tokens) == 64 and len(sequence.made) == 63


def test_what_is_wrong_is_said(model):
    with model.session() as session:
        with pytest.raises(quipu.QuipuError, match="given twice"):
            model.step([quipu.Sequence(session, [1]), quipu.Sequence(session, [2])])
        with pytest.raises(ValueError, match="no tokens"):
            model.step([quipu.Sequence(session)])
        with pytest.raises(ValueError, match="not part of the step"):
            model.step([quipu.Sequence(session, like=quipu.Sequence(session, [1]))])
        with pytest.raises(quipu.QuipuError, match="temperature"):
            model.sampler(temperature=-1)
        assert session.tokens == []
    assert model.step([]) == []
