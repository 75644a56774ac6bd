"""Random programs of 2 to 8 threads and tasks that do all that the package has, at once and in any order.

    python3 python/tests/programs.py [COUNT [SEED]]

A program opens one model or two, does what it drew from all threads at once (answers, conversations, embeddings,
adapters, sessions that are forked, saved and loaded, steps, traces, callbacks that raise, processes that fork, Ctrl-C in
the main thread), and closes the models or leaves that to the collector. It may only raise QuipuError, must not hang,
and a finished answer must have the text that its prompt, adapters and seed had in every other program. `./dev programs`
runs 10,000 of them with a library built with AddressSanitizer, and again with ThreadSanitizer.
"""

import asyncio
import collections
import faulthandler
import gc
import os
import random
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

import quipu

TESTS = Path(__file__).resolve().parents[2] / "tests"
sys.path.insert(0, str(TESTS))

import lora_files  # noqa: E402

TEXT = str(TESTS / "golden/models/llama-text.gguf")
PROMPTS = ("the cat", "a dog sat on", "the", "on the cat the dog sat")
HANG_SECONDS = 120


class Mine(Exception):
    """What a program's own callbacks raise."""


class Shared:
    """What all programs share: a folder, two adapters, the text of each answer that any program has finished, and
    how often each action was begun and came to its end."""

    def __init__(self, folder):
        self.folder, self.known = folder, {}
        self.adapters = [lora_files.text_adapter(folder / name, 3, seed) for seed, name in enumerate(("one", "two"), 1)]
        self.begun, self.ended = collections.Counter(), collections.Counter()

    def compare(self, key, found):
        if self.known.setdefault(key, found) != found:
            raise AssertionError(f"{key}: {found!r} is not {self.known[key]!r}")


class Program:
    """One program."""

    def __init__(self, seed, shared):
        self.random, self.shared, self.failures, self.closed = random.Random(seed), shared, [], set()
        self.name = f"{os.getpid()}-{seed}"
        self.models = [self.open() for _ in range(2 if self.random.random() < 0.15 else 1)]

    def open(self):
        draw, options = self.random, {}
        if draw.random() < 0.3:
            options["adapters"] = [quipu.Adapter(path, waits=True) for path in self.shared.adapters]
        if draw.random() < 0.1:
            raises = draw.random() < 0.2
            options |= {"tensors": "*.logits", "on_tensor": fail if raises else lambda tensor: tensor.data.sum()}
        model = quipu.Model(TEXT, threads=draw.choice((1, 2)), context=64, max_sessions=draw.choice((1, 2, 4, 8)),
                            chunk=draw.choice((8, 64)), **options)
        model.has_adapters = "adapters" in options
        return model

    def run(self):
        seeds = [self.random.random() for _ in range(self.random.randint(2, 8))]
        threads = [threading.Thread(target=self.one_thread, args=(seed,)) for seed in seeds]
        for thread in threads:
            thread.start()
        if self.random.random() < 0.1:
            self.interrupted()
        for thread in threads:
            thread.join()
        self.random.shuffle(self.models)
        while self.models:
            model = self.models.pop()
            if self.random.random() < 0.7:
                model.close()
        if self.failures:
            raise self.failures[0]

    def act(self, draw):
        usual = [self.answer] * 3 + [self.leave, self.forget, self.evaluate, self.fork_session, self.fail, self.step,
                 self.tasks, self.wrong, self.decode, self.bound, self.chat, self.embed, self.adapted, self.saved]
        rare = [self.close, self.collect, self.fork, self.trace, self.reschedule, self.cycle, self.open_another]
        action = draw.choice(rare if draw.random() < 0.08 else usual)
        self.shared.begun[action.__name__] += 1
        try:
            action(draw.choice(self.models), draw)
            self.shared.ended[action.__name__] += 1
        except (quipu.QuipuError, Mine):
            pass  # closed, full, or cancelled

    def one_thread(self, seed):
        draw = random.Random(seed)
        for _ in range(draw.randint(1, 5)):
            try:
                self.act(draw)
            except BaseException as failure:
                self.failures.append(failure)

    def interrupted(self):
        """Ctrl-C in the main thread, while others use the models."""
        main, seconds, draw = threading.main_thread().ident, self.random.random() * 0.02, random.Random(self.random.random())
        sender = threading.Timer(seconds, lambda: signal.pthread_kill(main, signal.SIGINT))
        self.shared.begun["interrupted"] += 1
        try:
            sender.start()
            while sender.is_alive():
                self.act(draw)
            time.sleep(0.01)
        except KeyboardInterrupt:
            self.shared.ended["interrupted"] += 1
        sender.join()

    def start(self, model, draw, **more):
        key = (draw.choice(PROMPTS), draw.randint(0, 3), draw.choice((1, 5, 12)))
        prompt, seed, count = key
        return key, model.generate(prompt, seed=seed, max_tokens=count, temperature=1.1, stop_tokens=(), **more)

    def finished(self, key, generation, text):
        if generation.finish != "cancelled":
            self.shared.compare(key, text)

    def answer(self, model, draw):
        key, generation = self.start(model, draw, logprobs=draw.choice((None, None, 2)))
        self.finished(key, generation, generation.text())

    def chat(self, model, draw):
        question, seed = draw.choice(PROMPTS), draw.randint(0, 1)
        said = model.chat([{"role": "user", "content": question}], seed=seed, max_tokens=4, temperature=1.1)
        self.finished(("chat", question, seed), said, said.text())

    def embed(self, model, draw):
        texts = [draw.choice(PROMPTS) for _ in range(draw.randint(1, 3))]
        for text, row in zip(texts, model.embed(texts)):
            self.shared.compare(("embed", text), row.tobytes())

    def adapted(self, model, draw):
        lora = draw.choice((0, 1, (0, 1), ())) if model.has_adapters else ()
        key, generation = self.start(model, draw, lora=lora)
        self.finished((*key, lora), generation, generation.text())

    def saved(self, model, draw):
        path = Path(self.shared.folder, f"{self.name}-{draw.random()}")
        tokens = [draw.randint(1, 200) for _ in range(draw.randint(1, 20))]
        try:
            with model.session() as session:
                session.eval(tokens)
                session.save(path)
                expected = session.eval([5])
            with model.session() as session:
                session.load(path)
                assert session.tokens == tokens and np.array_equal(session.eval([5]), expected)
            path.write_bytes(path.read_bytes()[:-draw.randint(1, 100)])
            with model.session() as session:
                session.load(path)
        except quipu.QuipuError:
            return
        finally:
            path.unlink(missing_ok=True)
        raise AssertionError("a file that was cut was loaded")

    def leave(self, model, draw):
        for _ in self.start(model, draw)[1]:
            if draw.random() < 0.5:
                break

    def forget(self, model, draw):
        held = [self.start(model, draw)[1] for _ in range(draw.randint(1, 4))]
        if draw.random() < 0.5:
            held[-1].close()

    def evaluate(self, model, draw):
        with model.session() as session:
            rows = session.eval([draw.randint(1, 200) for _ in range(draw.randint(1, 20))], every_row=True)
            assert rows.shape[1] == model.info.vocab_size
            session.truncate(draw.randint(0, 8))
            model.detokenize(session.tokens)

    def fork_session(self, model, draw):
        session = model.session()
        session.generate("the cat", max_tokens=4, temperature=0)
        other = session.fork()
        if draw.random() < 0.5:
            session.close()
        other.generate("a", max_tokens=3).text()

    def fail(self, model, draw):
        with model.session() as session:
            if draw.random() < 0.5:
                session.eval([1, 2, 3], on_logits=fail)
            else:
                model.step([quipu.Sequence(session, [1, 2], sampler=model.sampler(), on_token=fail)])

    def step(self, model, draw):
        batch = [quipu.Sequence(model.session(), [1, draw.randint(2, 100)], sampler=model.sampler(seed=i), max_tokens=4)
                 for i in range(draw.randint(1, 2))]
        while batch:
            model.step(batch)
            batch = [sequence for sequence in batch if not sequence.done]

    def decode(self, model, draw):
        with model.session() as session:
            session.eval([1, 2])
            assert model.decode([session], [3], draw.randint(1, 6)).shape[1] == 1

    def bound(self, model, _draw):
        grammar = quipu.Grammar(model.vocabulary, gbnf='root ::= "a" | "the"')
        generation = model.generate("the cat", grammar=grammar, max_tokens=8)
        assert generation.text() in ("a", "the") or generation.finish != "stop"

    def tasks(self, model, draw):
        async def read(cancelled):
            key, generation = self.start(model, draw)
            if cancelled:
                async for _ in generation:
                    return
            self.finished(key, generation, "".join([piece async for piece in generation]))

        async def main():
            found = await asyncio.gather(*[read(draw.random() < 0.3) for _ in range(draw.randint(1, 4))],
                                         return_exceptions=True)
            for failure in found:
                if isinstance(failure, BaseException):
                    raise failure

        asyncio.run(main())

    def wrong(self, model, draw):
        other = self.models[-1] if self.models[-1] is not model else None
        uses = [lambda: model.generate([]), lambda: model.generate("a", heat=1), lambda: model.session().eval([10 ** 6]),
                lambda: model.generate([1] * 100).text(), lambda: model.generate("a", stop=[""]),
                lambda: model.sampler(temperature=-1), lambda: model.generate("a", lora="none"),
                lambda: quipu.Model("nosuch.gguf"), lambda: model.session().load(TEXT)]
        if other:
            uses += [lambda: model.eval([(other.session(), [1])]), lambda: model.decode([other.session()], [1], 1),
                     lambda: model.step([quipu.Sequence(other.session(), [1])]),
                     lambda: model.step([quipu.Sequence(model.session(), [1], sampler=other.sampler())])]
        draw.choice(uses)()
        if not self.closed:
            raise AssertionError("nothing was refused")

    def cycle(self, model, draw):
        """Objects that refer to each other go in any order."""
        held = [model, model.session(), self.start(model, draw)[1], model.sampler(), model.vocabulary]
        held.append(quipu.Sequence(held[1], [1], sampler=held[3], on_token=lambda _: held))
        draw.shuffle(held)
        del held[:draw.randint(0, 3)]
        held.append(held)

    def open_another(self, _model, draw):
        with quipu.Model(TEXT, threads=1, context=64, max_sessions=1) as model:
            self.answer(model, draw)

    def reschedule(self, model, draw):
        if draw.random() < 0.5:
            model.reschedule(assignment=draw.choice(("rr", "zz", "wave", "dag")))
        else:
            model.reschedule(model.schedule())

    def trace(self, model, _draw):
        with model.trace() as trace:
            model.generate("the", max_tokens=2).text()
            trace.table()

    def close(self, model, _draw):
        self.closed.add(model)
        model.close()

    def collect(self, _model, _draw):
        gc.collect()

    def fork(self, model, _draw):
        if "libasan" in os.environ.get("LD_PRELOAD", ""):
            return  # AddressSanitizer's allocator may be locked by another thread, and is so for ever in the child
        child = os.fork()
        if child == 0:  # other threads' locks may be held here: only what is promised is called
            code = 1
            try:
                model.generate("the cat")
            except quipu.QuipuError:
                code = 0
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "the forked process was not refused"


def fail(*_):
    raise Mine


def main(count=100, seed=0):
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="quipu-programs-") as folder:
        shared = Shared(Path(folder))
        for i in range(count):
            faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
            try:
                Program(seed + i, shared).run()
            except BaseException:
                print(f"program {seed + i}", file=sys.stderr)
                raise
            if (i + 1) % 1000 == 0:
                print(f"{i + 1} programs, {time.monotonic() - begin:.0f} s", flush=True)
        faulthandler.cancel_dump_traceback_later()
        gc.collect()
    print("actions that came to their end, of those begun:",
          ", ".join(f"{name} {shared.ended[name]}/{n}" for name, n in sorted(shared.begun.items())))
    print(f"{count} programs, {len(shared.known)} answers compared, {time.monotonic() - begin:.1f} s")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
