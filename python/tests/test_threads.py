"""Models that several threads and asyncio use at once, that are closed at any time, and processes that fork."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import quipu
from quipu.errors import CancelledError

TEXT = str(Path(__file__).resolve().parents[2] / "tests/golden/models/llama-text.gguf")
PROMPTS = ["the cat", "the dog sat", "a", "the cat sat on", "dog", "on the", "cat", "sat"]
NO_END = {"temperature": 1.2, "stop_tokens": ()}


@pytest.fixture
def model():
    with quipu.Model(TEXT, threads=2, context=128) as opened:
        yield opened


def answer(model, i, **more):
    return model.generate(PROMPTS[i % len(PROMPTS)], max_tokens=24, seed=i, **NO_END, **more)


def in_process(program):
    """Runs a program of its own: its last line of output."""
    found = subprocess.run([sys.executable, "-X", "faulthandler", "-c", program, TEXT], text=True, timeout=120,
                           capture_output=True)
    assert found.returncode == 0, found.stderr
    return found.stdout.strip()


def test_threads_get_what_each_would_alone(model):
    expected = [answer(model, i).text() for i in range(16)]
    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(lambda i: answer(model, i).text(), range(16))) == expected
    with ThreadPoolExecutor(7) as pool:
        rows = list(pool.map(lambda i: model.eval([(model.session(), [1, 5 + i])])[0], range(7)))
    for i, row in enumerate(rows):
        with model.session() as session:
            assert np.array_equal(session.eval([1, 5 + i]), row)


def test_answers_share_passes(model):
    with model.trace(max_passes=1000) as trace:
        generations = [answer(model, i) for i in range(8)]
        together = [generation.text() for generation in generations]
        passes = {event["args"]["pass"] for event in trace.events()["traceEvents"] if "pass" in event.get("args", {})}
    assert together == [answer(model, i).text() for i in range(8)]
    assert not passes or len(passes) < 8 * 24 / 2


def test_answers_wait_for_a_session():
    with quipu.Model(TEXT, context=128, max_sessions=1) as model:
        expected = [answer(model, i).text() for i in (0, 1)]
        pieces = list(zip(answer(model, 0), answer(model, 1)))
        assert expected[0].startswith("".join(a for a, _ in pieces))
        a, b = answer(model, 0), answer(model, 1)
        assert (b.text(), a.text()) == (expected[1], expected[0])
        with model.session(), pytest.raises(quipu.QuipuError, match="all 1 sessions .* max_sessions"):
            answer(model, 0).text()


def test_a_session_does_one_thing_after_the_other(model):
    with model.session() as session:
        first = session.generate("the cat", max_tokens=6, **NO_END)
        second = session.generate("a dog", max_tokens=6, **NO_END)
        rows = session.eval([1, 2], every_row=True)
        assert rows.shape[0] == 2 and first.finish == second.finish == "length"
        expected = (model.tokenize("the cat") + first.tokens[:-1] + model.tokenize("a dog") + second.tokens[:-1]
                    + [1, 2])
        assert session.tokens == expected


def test_asyncio(model):
    expected = [answer(model, i).text() for i in range(6)]

    async def read(i):
        return "".join([piece async for piece in answer(model, i)])

    async def main():
        assert await asyncio.gather(*map(read, range(6))) == expected
        assert await answer(model, 3) == expected[3]
        row = await asyncio.to_thread(model.session().eval, [1, 2])
        assert row.shape == (model.info.vocab_size,)
        long = model.generate("the cat", **NO_END)
        task = asyncio.ensure_future(long.__aiter__().__anext__())
        await task
        waiting = asyncio.ensure_future(_whole(long))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await asyncio.to_thread(long.close)
        assert long.finish in ("cancelled", "context")

    async def _whole(generation):
        return await generation

    asyncio.run(main())


def test_an_answer_can_be_read_again(model):
    generation = answer(model, 1)
    text = generation.text()
    assert generation.text() == text and "".join(generation) == text and list(generation)[0]


def test_close_cancels_and_waits():
    for _ in range(4):
        model = quipu.Model(TEXT, threads=2)
        generations = [model.generate("the cat", **NO_END) for _ in range(3)]
        next(iter(generations[0]))
        session = model.session()
        model.close()
        assert all(g.finish in ("cancelled", "context") for g in generations) and generations[0].text()
        with pytest.raises(quipu.QuipuError, match="closed"):
            session.eval([1])
        with pytest.raises(quipu.QuipuError, match="closed"):
            model.generate("the cat")


def test_a_block_can_be_left_in_any_state():
    with quipu.Model(TEXT) as model:
        generation = model.generate("the cat", **NO_END)
        pieces = iter(generation)
        next(pieces)
    assert generation.finish in ("cancelled", "context")
    with pytest.raises(KeyError):
        with quipu.Model(TEXT) as model:
            for _ in model.generate("the cat", **NO_END):
                raise KeyError


def test_a_call_that_waits_ends_when_the_model_is_closed():
    model = quipu.Model(TEXT, max_sessions=1, context=2048)
    model.generate("the cat", **NO_END)
    failures = []

    def wait():
        try:
            model.session().eval([1, 2])
        except quipu.QuipuError as failure:
            failures.append(failure)

    running = model.session().generate("the cat", **NO_END)
    threads = [threading.Thread(target=wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    next(iter(running))
    model.close()
    for thread in threads:
        thread.join()
    assert len(failures) == 3 and all(isinstance(f, (CancelledError, ValueError)) for f in failures)


def test_what_nobody_reads_is_cancelled_and_leaks_nothing(model):
    for _ in range(40):
        model.generate("the cat", **NO_END)
        with pytest.raises(quipu.QuipuError, match="did you mean 'temperature'"):
            model.generate("the cat", temprature=1)
        with pytest.raises(quipu.QuipuError):
            model.session().generate("the cat", max_tokens=-1)
    assert len([model.session() for _ in range(8)]) == 8


def test_objects_are_collected_in_any_order():
    def build():
        model = quipu.Model(TEXT)
        session = model.session()
        parts = [model, session, model.sampler(), model.trace(), quipu.Grammar(model.vocabulary),
                 session.generate("the", max_tokens=3), model.generate("the cat", **NO_END),
                 quipu.Sequence(session, [1])]
        model.cycle = parts  # nothing of it is freed before the collector comes
        return weakref.ref(model), model._engine

    reference, engine = build()
    gc.collect()
    assert reference() is None
    engine._thread.join(60)
    assert not engine._thread.is_alive() and engine.is_closed
    vocabulary = quipu.Vocabulary(TEXT)
    cycle = [vocabulary, quipu.Grammar(vocabulary)]
    cycle.append(cycle)
    del vocabulary, cycle
    gc.collect()
    session = quipu.Model(TEXT).session()  # which keeps its model
    assert session.eval([1]).size
    assert quipu.Model(TEXT).generate("the cat", max_tokens=2).text() is not None


def test_a_program_may_end_at_any_time():
    program = """
import sys, quipu
model = quipu.Model(sys.argv[1])
session = model.session()
held = [model.generate("the cat", temperature=1.2, stop_tokens=()) for _ in range(4)]
next(iter(held[0]))
print("end")
"""
    assert in_process(program) == "end"


def test_interrupts_end_every_wait():
    program = """
import os, signal, sys, threading, time, quipu
model = quipu.Model(sys.argv[1], threads=1, max_sessions=2, context=4096)
def interrupt():
    time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGINT)
def slow(*_):
    time.sleep(1)
endless = dict(temperature=1.2, stop_tokens=())
held = model.session()
waits = [lambda: model.session().eval([1] * 4000, every_row=True, on_logits=slow),
         lambda: held.generate("the cat", **endless).text(),
         lambda: list(held.generate("the cat", **endless)),
         lambda: model.step([quipu.Sequence(held, [1] * 3000, every_row=True, on_logits=slow)])]
for wait in waits:
    try:
        threading.Thread(target=interrupt).start()
        wait()
    except KeyboardInterrupt:
        print("interrupted", end=" ")
    held.truncate(0)
model.close()
"""
    assert in_process(program) == "interrupted " * 3 + "interrupted"


def test_interrupts_leave_nothing_behind():
    """At any place in the package: no session stays open, no lock locked."""
    program = """
import asyncio, faulthandler, random, signal, sys, threading, time, quipu
faulthandler.dump_traceback_later(100, exit=True)
model = quipu.Model(sys.argv[1], threads=1, context=64, max_sessions=4)
short = dict(max_tokens=3, stop_tokens=())
async def wait():
    return await model.generate("the cat", **short)
uses = [lambda: model.tokenize("the cat"), lambda: model.session().close(), lambda: model.info.context,
        lambda: model.generate("the cat", **short).text(), lambda: list(model.generate("a dog", **short)),
        lambda: model.embed("a cat"), lambda: model.session().fork(), lambda: asyncio.run(wait())]
main, draw, ended, inside = threading.main_thread().ident, random.Random(1), [], []
def interrupt(*_):  # one for each use: the lines that take it are not interrupted
    if inside:
        inside.clear()
        raise KeyboardInterrupt
def storm():
    for _ in range(500):
        time.sleep(draw.random() * 0.004)
        signal.pthread_kill(main, signal.SIGINT)
    ended.append(True)
signal.signal(signal.SIGINT, interrupt)
threading.Thread(target=storm).start()
interrupts = 0
while not ended:
    try:
        inside[:] = [True]
        draw.choice(uses)()
        inside.clear()
    except KeyboardInterrupt:
        interrupts += 1
sessions = [model.session() for _ in range(4)]  # all are free
[session.close() for session in sessions]
assert model.generate("the cat", **short).text() and model.tokenize("a")
model.close()
print(interrupts > 10)
"""
    assert in_process(program) == "True"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_forked_process_is_refused_and_does_not_hang():
    program = """
import os, sys, quipu
model = quipu.Model(sys.argv[1], max_sessions=4)
session = model.session()
running = model.generate("the cat", temperature=1.2, stop_tokens=())
child = os.fork()
if child == 0:
    uses = [lambda: model.generate("a"), lambda: session.eval([1]), lambda: running.text(), lambda: list(running),
            lambda: model.tokenize("a"), lambda: model.sampler(), lambda: session.tokens, lambda: model.info,
            lambda: model.trace()]
    refused = 0
    for use in uses:
        try:
            use()
        except quipu.QuipuError as failure:
            refused += "fork" in str(failure)
    running.close()
    session.close()
    model.close()
    del model, session, running
    with quipu.Model(sys.argv[1]) as own:
        refused += own.generate("the cat", max_tokens=2).text() is not None
    sys.exit(0 if refused == len(uses) + 1 else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert running.text() is not None and session.eval([1]).size
print("parent goes on")
"""
    assert in_process(program) == "parent goes on"


def test_callbacks_cannot_use_the_model(model):
    found = []

    def use(_token, _row):
        for call in (model.session, lambda: model.generate("the"), lambda: session.eval([1])):
            try:
                call()
            except quipu.QuipuError as failure:
                found.append(str(failure))

    with model.session() as session:
        session.eval([1, 2], on_logits=use)
    assert len(found) == 3 and all("while the model runs" in text for text in found)


def test_a_failure_is_that_of_its_own_call(model):
    with ThreadPoolExecutor(6) as pool:
        def one(i):
            if i % 3 == 0:
                return answer(model, i).text()
            if i % 3 == 1:
                with pytest.raises(quipu.QuipuError, match="found 100000"):
                    model.session().eval([1, 100000])
            else:
                with pytest.raises(quipu.QuipuError, match="context is full"):
                    model.session().eval([1] * 129)
            return None

        found = list(pool.map(one, range(18)))
    assert [text for text in found if text] == [answer(model, i).text() for i in range(0, 18, 3)]


def test_answers_go_on_from_what_sessions_hold(model):
    prompt = list(range(4, 52))
    first = model.generate(prompt, max_tokens=8, **NO_END)
    expected = first.text()
    assert first.statistics["shared_tokens"] == 0
    again = model.generate(prompt + first.tokens + [7, 8], max_tokens=8, **NO_END)
    again.text()
    assert again.statistics["shared_tokens"] == len(prompt) + 7
    same = model.generate(prompt, max_tokens=8, **NO_END)
    assert same.text() == expected and same.statistics["shared_tokens"] == len(prompt) - 1
    together = [model.generate(list(range(60, 20, -1)), max_tokens=4, **NO_END) for _ in range(4)]
    assert len({g.text() for g in together}) == 1


def test_signals_do_not_stop_the_engine(model):
    """A handler runs on the main thread, and the engine's thread goes on."""
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        assert answer(model, 2).text() == answer(model, 2).text()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
