"""Writes src/text/nfc.def: the facts about characters that Normalization Form C needs.

Usage: nfc_table.py > src/text/nfc.def
The tables come from Python's unicodedata. Hangul syllables are left out, because they are computed.
"""
import sys
import unicodedata


def characters():
    return (chr(c) for c in range(0x110000) if not (0xD800 <= c < 0xE000 or 0xAC00 <= c < 0xD7A4))


def rows(macro, entries, width=99):
    """MACRO(a, b, ...) MACRO(...), several on a line."""
    line = ""
    for entry in entries:
        text = f"{macro}({', '.join(f'{n:#x}' for n in entry)})"
        if line and len(line) + 1 + len(text) > width:
            print(line)
            line = ""
        line += (" " if line else "") + text
    print(line)


def decompositions():
    """(character, first, second, composes); second is 0 where one character becomes another."""
    for c in characters():
        mapping = unicodedata.decomposition(c)
        if not mapping or mapping.startswith("<"):
            continue
        first, *second = (int(n, 16) for n in mapping.split())
        yield ord(c), first, second[0] if second else 0, int(unicodedata.normalize("NFC", c) == c)


def classes():
    """(first, last, combining class), where it is not 0."""
    ranges = []
    for c in characters():
        combining = unicodedata.combining(c)
        if not combining:
            continue
        if ranges and ranges[-1][1] + 1 == ord(c) and ranges[-1][2] == combining:
            ranges[-1][1] = ord(c)
        else:
            ranges.append([ord(c), ord(c), combining])
    return ranges


def main():
    print(f"""/* Made by tests/scripts/nfc_table.py from Unicode {unicodedata.unidata_version}; do not edit.
 * NFD(character, first, second or 0), by character.
 * NFC(first, second, character), by first and second.
 * CCC(first, last, canonical combining class), by character. */
#ifdef NFD""")
    table = list(decompositions())
    rows("NFD", [entry[:3] for entry in table])
    print("#endif\n#ifdef NFC")
    rows("NFC", sorted((a, b, c) for c, a, b, composes in table if composes and b))
    print("#endif\n#ifdef CCC")
    rows("CCC", classes())
    print("#endif")


sys.exit(main())
