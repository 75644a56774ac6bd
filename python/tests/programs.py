"""Random programs of 2 to 8 threads and tasks that open, generate, cancel, close, raise and fork.

    python3 python/tests/programs.py [COUNT [SEED]]

Each program opens a model, does what it drew from all threads at once, and closes the model or leaves that to the
collector. It may only raise QuipuError, must not hang, and a finished answer must have the text that its prompt and
seed had in every other program. `./dev programs` runs 10,000 of them with a library built with AddressSanitizer, and
again with ThreadSanitizer.
"""

import asyncio
import faulthandler
import gc
import os
import random
import sys
import threading
import time
from pathlib import Path

import quipu

TEXT = str(Path(__file__).resolve().parents[2] / "tests/golden/models/llama-text.gguf")
PROMPTS = ("the cat", "a dog sat on", "the", "on the cat the dog sat")
HANG_SECONDS = 120


class Mine(Exception):
    """What a program's own callbacks raise."""


class Program:
    """One program; `known`: the text of each answer that any program has finished."""

    def __init__(self, seed, known):
        self.random, self.known, self.failures = random.Random(seed), known, []
        self.closed = False
        self.model = quipu.Model(TEXT, threads=self.random.choice((1, 2)), context=64,
                                 max_sessions=self.random.choice((1, 2, 4, 8)), chunk=self.random.choice((8, 64)))

    def run(self):
        seeds = [self.random.random() for _ in range(self.random.randint(2, 8))]
        threads = [threading.Thread(target=self.one_thread, args=(seed,)) for seed in seeds]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.random.random() < 0.7:
            self.model.close()
        if self.failures:
            raise self.failures[0]

    def one_thread(self, seed):
        draw = random.Random(seed)
        actions = [self.answer, self.answer, self.answer, self.leave, self.forget, self.evaluate, self.fork_session,
                   self.fail, self.step, self.tasks, self.wrong, self.decode, self.bound]
        rare = [self.close, self.collect, self.fork, self.trace]
        for _ in range(draw.randint(1, 5)):
            action = draw.choice(rare if draw.random() < 0.08 else actions)
            try:
                action(draw)
            except (quipu.QuipuError, Mine):
                pass  # closed, full, or cancelled
            except BaseException as failure:
                self.failures.append(failure)

    def start(self, draw, **more):
        key = (draw.choice(PROMPTS), draw.randint(0, 3), draw.choice((1, 5, 12)))
        prompt, seed, count = key
        return key, self.model.generate(prompt, seed=seed, max_tokens=count, temperature=1.1, stop_tokens=(), **more)

    def compare(self, key, generation, text):
        if generation.finish != "cancelled" and self.known.setdefault(key, text) != text:
            raise AssertionError(f"{key}: {text!r} is not {self.known[key]!r}")

    def answer(self, draw):
        key, generation = self.start(draw, logprobs=draw.choice((None, None, 2)))
        self.compare(key, generation, generation.text())

    def leave(self, draw):
        for _ in self.start(draw)[1]:
            if draw.random() < 0.5:
                break

    def forget(self, draw):
        held = [self.start(draw)[1] for _ in range(draw.randint(1, 4))]
        if draw.random() < 0.5:
            held[-1].close()

    def evaluate(self, draw):
        with self.model.session() as session:
            rows = session.eval([draw.randint(1, 200) for _ in range(draw.randint(1, 20))], every_row=True)
            assert rows.shape[1] == self.model.info.vocab_size
            session.truncate(draw.randint(0, 8))
            self.model.detokenize(session.tokens)

    def fork_session(self, draw):
        session = self.model.session()
        session.generate("the cat", max_tokens=4, temperature=0)
        other = session.fork()
        if draw.random() < 0.5:
            session.close()
        other.generate("a", max_tokens=3).text()

    def fail(self, draw):
        def raises(*_):
            raise Mine

        with self.model.session() as session:
            if draw.random() < 0.5:
                session.eval([1, 2, 3], on_logits=raises)
            else:
                self.model.step([quipu.Sequence(session, [1, 2], sampler=self.model.sampler(), on_token=raises)])

    def step(self, draw):
        batch = [quipu.Sequence(self.model.session(), [1, draw.randint(2, 100)], sampler=self.model.sampler(seed=i),
                                max_tokens=4) for i in range(draw.randint(1, 2))]
        while batch:
            self.model.step(batch)
            batch = [sequence for sequence in batch if not sequence.done]

    def decode(self, draw):
        with self.model.session() as session:
            session.eval([1, 2])
            assert self.model.decode([session], [3], draw.randint(1, 6)).shape[1] == 1

    def bound(self, _draw):
        grammar = quipu.Grammar(self.model.vocabulary, gbnf='root ::= "a" | "the"')
        generation = self.model.generate("the cat", grammar=grammar, max_tokens=8)
        assert generation.text() in ("a", "the") or generation.finish != "stop"

    def tasks(self, draw):
        async def read(cancelled):
            key, generation = self.start(draw)
            if cancelled:
                async for _ in generation:
                    return
            self.compare(key, generation, "".join([piece async for piece in generation]))

        async def main():
            found = await asyncio.gather(*[read(draw.random() < 0.3) for _ in range(draw.randint(1, 4))],
                                         return_exceptions=True)
            for failure in found:
                if isinstance(failure, BaseException):
                    raise failure

        asyncio.run(main())

    def wrong(self, draw):
        draw.choice((lambda: self.model.generate([]), lambda: self.model.generate("a", heat=1),
                     lambda: self.model.session().eval([10 ** 6]), lambda: self.model.generate([1] * 100).text(),
                     lambda: self.model.generate("a", stop=[""]), lambda: self.model.sampler(temperature=-1)))()
        if not self.closed:
            raise AssertionError("nothing was refused")

    def trace(self, _draw):
        with self.model.trace() as trace:
            self.model.generate("the", max_tokens=2).text()
            trace.table()

    def close(self, _draw):
        self.closed = True
        self.model.close()

    def collect(self, _draw):
        gc.collect()

    def fork(self, _draw):
        child = os.fork()
        if child == 0:  # other threads' locks may be held here: only what is promised is called
            code = 1
            try:
                self.model.generate("the cat")
            except quipu.QuipuError:
                code = 0
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "the forked process was not refused"


def main(count=100, seed=0):
    known, begin = {}, time.monotonic()
    for i in range(count):
        faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
        try:
            Program(seed + i, known).run()
        except BaseException:
            print(f"program {seed + i}", file=sys.stderr)
            raise
        if (i + 1) % 1000 == 0:
            print(f"{i + 1} programs, {time.monotonic() - begin:.0f} s", flush=True)
    faulthandler.cancel_dump_traceback_later()
    gc.collect()
    print(f"{count} programs, {len(known)} answers compared, {time.monotonic() - begin:.1f} s")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
