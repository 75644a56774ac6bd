#!/usr/bin/env python3
"""Cycles of loops in objects for aarch64, as llvm-mca estimates them: arm_cycles.py OBJECT:FUNCTION:WEIGHTS...

WEIGHTS is what one turn of the function's loop with most products multiplies. Loops inside it are counted as often
as a constant says that they run (OBJECT:FUNCTION:WEIGHTS:TURNS), once by default. Prints cycles for 32
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


def main():
    print(f"{'loop':44}{'instructions':>13}" + "".join(f"{name:>13}" for name in PROCESSORS))
    for argument in sys.argv[1:]:
        path, function, weights, turns = (argument.split(":") + ["1"])[:4]
        rows = instructions_of(path, function)
        loops = loops_of(rows)
        products = [bool(re.match(r"[su]dot|smmla|bfdot|[su]mlal|fmla", row[1])) for row in rows]
        whole = max(loops, key=lambda loop: (sum(products[loop[0]:loop[1]]), loop[1] - loop[0]))
        inner = [loop for loop in loops if loop != whole and loop[0] >= whole[0] and loop[1] <= whole[1]]
        inner = max(inner, key=lambda loop: loop[1] - loop[0]) if inner and int(turns) > 1 else None
        code = [rows[i][1] for i in range(whole[0], whole[1] + 1) if not inner or not inner[0] <= i <= inner[1]]
        again = [rows[i][1] for i in range(inner[0], inner[1] + 1)] if inner else []
        share = 32 / int(weights)
        count = (len(code) + len(again) * int(turns)) * share
        line = f"{function:44}{count:13.1f}"
        for processor in PROCESSORS:
            sum_of = cycles(code, processor) + (cycles(again, processor) * int(turns) if inner else 0)
            line += f"{sum_of * share:13.2f}"
        print(line)


main()
