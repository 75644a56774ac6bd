#!/usr/bin/env python3
"""Cycles of loops in objects for aarch64, as llvm-mca estimates them: arm_cycles.py OBJECT:FUNCTION:WEIGHTS...

WEIGHTS is what one turn of the function's loop with most products multiplies. The longest loop in it is counted as often
as a constant says that it runs (OBJECT:FUNCTION:WEIGHTS:TURNS), once by default. Where loops are nested otherwise, the
constant is a list of them, from the outermost on, as numbers of instructions: 45-259*1,79-243*4. Prints cycles for 32
weights by processor. llvm-mca assumes that all loads hit the first cache and that branches are predicted.
"""
import re
import subprocess
import sys

PROCESSORS = ["cortex-a76", "neoverse-n1", "neoverse-v2", "apple-m1"]
MCA, OBJDUMP = "llvm-mca-19", "aarch64-linux-gnu-objdump"


def instructions_of(path, function):
    """[(address, text, target or None)] of a function."""
    text = subprocess.run([OBJDUMP, "-d", "--no-show-raw-insn", f"--disassemble={function}", path],
                          capture_output=True, text=True, check=True).stdout
    rows = []
    for line in text.splitlines():
        match = re.match(r"\s+([0-9a-f]+):\t(.*)", line)
        if match:
            code = re.sub(r"\s*(//.*|<[^>]*>)", "", match[2]).strip()
            branch = re.match(r"(b\.?\w*|cbn?z|tbn?z)\s.*?\b([0-9a-f]+)$", code)
            rows.append((int(match[1], 16), code, int(branch[2], 16) if branch else None))
    if not rows:
        sys.exit(f"{path}: no function {function}")
    return rows


def loops_of(rows):
    """[(first, last)] indices of instructions: from the target of a backward branch to the branch."""
    index = {address: i for i, (address, _, _) in enumerate(rows)}
    return [(index[target], i) for i, (address, _, target) in enumerate(rows)
            if target is not None and target <= address and target in index]


def cycles(code, processor):
    """Of one turn of a loop, branches left out."""
    source = "\n".join(line for line in code if not re.match(r"(b\.?\w*|cbn?z|tbn?z|bl|prfm)\s", line))
    out = subprocess.run([MCA, "-march=aarch64", f"-mcpu={processor}", "-mattr=+dotprod,+i8mm,+bf16,+fullfp16",
                          "-iterations=200"], input=source, capture_output=True, text=True)
    match = re.search(r"Total Cycles:\s+(\d+)", out.stdout)
    if not match:
        sys.exit(out.stderr[:1000])
    return int(match[1]) / 200


def longest_of(rows, turns):
    """[(first, last, turns)]: the loop with most products, and the longest one inside it if that has several turns."""
    loops = loops_of(rows)
    products = [bool(re.match(r"[su]dot|smmla|bfdot|[su]mlal|fmla", row[1])) for row in rows]
    whole = max(loops, key=lambda loop: (sum(products[loop[0]:loop[1]]), loop[1] - loop[0]))
    inner = [loop for loop in loops if loop != whole and loop[0] >= whole[0] and loop[1] <= whole[1]]
    if not inner or turns == 1:
        return [(*whole, 1)]
    return [(*whole, 1), (*max(inner, key=lambda loop: loop[1] - loop[0]), turns)]


def nest_of(rows, text):
    if "-" not in text:
        return longest_of(rows, int(text))
    return [tuple(map(int, re.split(r"[-*]", part))) for part in text.split(",")]


def main():
    print(f"{'loop':44}{'instructions':>13}" + "".join(f"{name:>13}" for name in PROCESSORS))
    for argument in sys.argv[1:]:
        path, function, weights, text = (argument.split(":") + ["1"])[:4]
        rows = instructions_of(path, function)
        nest, share, count, sums = nest_of(rows, text), 32 / int(weights), 0, dict.fromkeys(PROCESSORS, 0)
        for (first, last, turns), inner in zip(nest, [*nest[1:], (len(rows), 0, 0)]):
            code = [rows[i][1] for i in range(first, last + 1) if not inner[0] <= i <= inner[1]]
            count += len(code) * turns
            for processor in PROCESSORS:
                sums[processor] += cycles(code, processor) * turns
        print(f"{function:44}{count * share:13.1f}" + "".join(f"{sums[name] * share:13.2f}" for name in PROCESSORS))


main()
