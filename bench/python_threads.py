#!/usr/bin/env python3
"""How much faster N threads of Python get answers of one model than one thread: bench/python_threads.py MODEL [N].

Rounds of one thread and of N threads take turns, so that a busy machine slows both. Needs the quipu package.
"""

import statistics
import sys
import threading
import time

import quipu

TOKENS, ROUNDS = 48, 7


def rate(model: quipu.Model, threads: int) -> float:
    """Tokens a second of all threads together."""
    def answer(i: int) -> None:
        model.generate(f"Once upon a time, number {i}", max_tokens=TOKENS, seed=i, stop_tokens=()).text()

    begin = time.monotonic()
    running = [threading.Thread(target=answer, args=(i,)) for i in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return threads * TOKENS / (time.monotonic() - begin)


def main(path: str, threads: int = 8) -> None:
    with quipu.Model(path, context=512, max_sessions=threads) as model:
        rate(model, threads)
        ratios = []
        for _ in range(ROUNDS):
            one, many = rate(model, 1), rate(model, threads)
            ratios.append(many / one)
            print(f"1 thread {one:.1f} tokens/s, {threads} threads {many:.1f}: {ratios[-1]:.2f} times")
        print(f"median {statistics.median(ratios):.2f} times")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
