"""Answers the lines of standard input together, as many at a time as the model has sessions.

    printf 'Name a planet.\nName a fruit.\n' | python3 examples/answers.py model.gguf
"""

import asyncio
import sys

import quipu


async def answer(model: quipu.Model, question: str) -> None:
    generation = model.chat([{"role": "user", "content": question}], max_tokens=100)
    text = await generation
    print(f"{question}\n{text}\n({len(generation.tokens)} tokens, {generation.finish})\n")


async def main(path: str) -> None:
    questions = [line.strip() for line in sys.stdin if line.strip()]
    with quipu.Model(path) as model:
        await asyncio.gather(*(answer(model, question) for question in questions))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
