"""Writes src/template/pychar.def: the facts about characters that Python's str methods use.

Usage: template_pychar.py > src/template/pychar.def
The tables come from the running Python's own str methods, so that the two agree.
"""
import sys
import unicodedata

MAX = 0x110000
CHARS = [chr(c) for c in range(MAX)]


def rows(macro, name, entries, width=99):
    """One macro call: MACRO(name, entry, entry, ...), wrapped."""
    line = f"{macro}({name},"
    for i, entry in enumerate(entries):
        text = f" {entry}" + ("," if i + 1 < len(entries) else ")")
        if len(line) + len(text) > width:
            print(line)
            line = "   "
        line += text
    print(line)


def toggles(predicate):
    """The code points at which membership changes."""
    points, inside = [], False
    for c in range(MAX):
        member = not 0xD800 <= c < 0xE000 and predicate(CHARS[c])
        if member != inside:
            points.append(c)
            inside = member
    return points + [MAX] * inside


def case_ranges(convert):
    """(first, last, stride, delta) of the single-character mappings, and the longer ones apart."""
    simple, special = [], []
    for c in range(MAX):
        if 0xD800 <= c < 0xE000:
            continue
        to = convert(CHARS[c])
        if to is None:
            continue
        if len(to) > 1:
            special.append((c, [ord(x) for x in to]))
            continue
        delta = ord(to) - c
        last = simple[-1] if simple else None
        if last and last[3] == delta and c - last[1] in (1, 2) and last[2] in (0, c - last[1]):
            last[2] = c - last[1]
            last[1] = c
        else:
            simple.append([c, c, 0, delta])
    return [(a, b, s or 1, d) for a, b, s, d in simple], special


def main():
    print("/* Made by tests/scripts/template_pychar.py from Unicode "
          f"{unicodedata.unidata_version}; do not edit.")
    print(" * CLASS: the code points at which membership begins and ends, in turn.")
    print(" * MAPPING: {first, last, stride, delta}. SPECIAL: one code point to up to three.")
    print(" * The title tables hold only what differs from upper, the fold tables what differs from lower. */")
    for name, predicate in (("alpha", str.isalpha), ("numeric", str.isnumeric),
                            ("digit", str.isdigit), ("decimal", str.isdecimal),
                            ("printable", str.isprintable)):
        rows("CLASS", name, [f"0x{p:x}" for p in toggles(predicate)])
    for name, convert in (("upper", lambda c: c.upper() if c.upper() != c else None),
                          ("lower", lambda c: c.lower() if c.lower() != c else None),
                          ("title", lambda c: c.title() if c.title() != c.upper() else None),
                          ("fold", lambda c: c.casefold() if c.casefold() != c.lower() else None)):
        simple, special = case_ranges(convert)
        rows("MAPPING", name, [f"{{0x{a:x}, 0x{b:x}, {s}, {d}}}" for a, b, s, d in simple])
        rows("SPECIAL", name, [f"{{0x{c:x}, {{" + ", ".join(f"0x{x:x}" for x in to) + "}}"
                               for c, to in special])


if __name__ == "__main__":
    sys.exit(main())
