#!/usr/bin/env python3
"""Writes src/tensor/grids.def: the grids of the IQ formats, which are part of the file format.

    pip install gguf && python3 tests/scripts/grids.py
"""
import os

import gguf.quants as quants

GRIDS = [("IQ2_XXS", 2), ("IQ2_XS", 2), ("IQ2_S", 2), ("IQ1_S", 2), ("IQ3_XXS", 3), ("IQ3_S", 3)]
HEAD = """\
/* Made by tests/scripts/grids.py from the gguf package; do not edit. The grids of grids.h as sorted
 * codes, 16 to a ROW: digit i of a code, of 2 bits or in the IQ3 grids of 3, stands for value i. */
/* clang-format off */
"""


def codes(name, bits):
    grid = getattr(quants, name)
    grid.init_grid()
    digit = {level: i for i, level in enumerate(grid.grid_map)}
    for values in grid.grid.reshape(grid.grid_shape):
        yield sum(digit[int(value)] << bits * i for i, value in enumerate(values))


def main():
    home = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
    with open(os.path.join(home, "src", "tensor", "grids.def"), "w") as out:
        out.write(HEAD)
        for name, bits in GRIDS:
            out.write("#ifdef GRID_%s\n" % name)
            all_codes = [str(code) for code in codes(name, bits)]
            for i in range(0, len(all_codes), 16):
                out.write("ROW(%s)\n" % ",".join(all_codes[i : i + 16]))
            out.write("#endif\n")
        out.write("/* clang-format on */\n")


if __name__ == "__main__":
    main()
