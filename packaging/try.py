"""Ten lines to an answer, with an installed wheel: try.py MODEL"""
import sys

import quipu

with quipu.Model(sys.argv[1]) as model:
    for piece in model.generate("Once upon a time", max_tokens=16, temperature=0):
        print(piece, end="", flush=True)
    print()
