"""Mutants of C: small changes of a source that mean something, found by its tokens.

A mutant replaces a statement, a condition or an initialiser by a copy with one change, and keeps the
original beside it: `if (MUTANT(7)) changed; else original;`. So one build holds all mutants, and the
environment says which one is alive. What cannot be written so (tables, macros, dimensions, case labels)
has no mutants, and what only frees memory or closes files is left to the sanitizers.
"""
import re

TOKEN = re.compile(
    r'(?P<space>\s+|\\\n|//[^\n]*|/\*.*?\*/)|(?P<directive>(?<![^\n])[ \t]*\#(?:\\\n|[^\n])*)'
    r'|(?P<string>"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\')'
    r'|(?P<number>\.?\d(?:[eEpP][+-]|[\w.])*)|(?P<name>[A-Za-z_]\w*)'
    r'|(?P<mark>\.\.\.|<<=|>>=|->|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|.)', re.DOTALL)

SWAPS = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "&&": "||", "||": "&&", "+": "-", "-": "+",
    "*": "+", "/": "*", "%": "/", "<<": ">>", ">>": "<<", "&": "|", "|": "&", "+=": "-=", "-=": "+=", "|=": "&=",
    "&=": "|=", "++": "--", "--": "++", "true": "false", "false": "true", "!": "", "break": "", "continue": "",
}
KEYWORDS = set("if else for while do switch case default return goto break continue sizeof static const struct enum "
               "union unsigned signed int char bool float double void long short typedef extern inline restrict".split())
BRACKETS = {"(": ")", "[": "]", "{": "}"}
RELEASES = re.compile(r"^(free|close|fclose|munmap|unlink|\w+_(free|destroy|close|unref|end))\s*\(")
NO_CODE = re.compile(r"^(assert|_Static_assert|static_assert|va_start|va_end|\(void\)\s*\w+;)")


class Token:
    def __init__(self, kind, text, begin, line):
        self.kind, self.text, self.begin, self.end, self.line = kind, text, begin, begin + len(text), line


def tokens_of(text):
    """Tokens without space and comments; a directive is a token, so that no statement spans one."""
    found, line = [], 1
    for match in TOKEN.finditer(text):
        if match.lastgroup != "space":
            found.append(Token(match.lastgroup, match[0], match.start(), line))
        line += match[0].count("\n")
    return found


class Region:
    """A statement, condition or initialiser of a function: tokens[first:last], and how it may be replaced."""

    def __init__(self, kind, tokens, first, last):
        self.kind, self.tokens = kind, tokens[first:last]
        self.begin, self.end = tokens[first].begin, tokens[last - 1].end


class Mutant:
    def __init__(self, region, token, change, text):
        self.region, self.line, self.change, self.text = region, token.line, change, text

    def written(self, number, original):
        """What stands in the source in place of the region."""
        here = f"MUTANT({number})"
        if self.region.kind == "statement":
            return f"{{ if ({here}) {{ {self.text} }} else {{ {original} }} }}"
        if self.region.kind == "expression":
            return f"{here} ? (void)({self.text or 0}) : (void)({original})"
        return f"{here} ? ({self.text}) : ({original})"


def matching(tokens, at):
    """The index of the bracket that closes the one at `at`."""
    depth = 0
    for i in range(at, len(tokens)):
        if tokens[i].kind == "mark":
            depth += tokens[i].text in BRACKETS
            depth -= tokens[i].text in BRACKETS.values()
            if depth == 0:
                return i
    return len(tokens) - 1


def split(tokens, first, last, mark):
    """Ranges between the marks that stand in no bracket."""
    begin, i = first, first
    while i < last:
        if tokens[i].kind == "mark" and tokens[i].text in BRACKETS:
            i = matching(tokens, i)
        elif tokens[i].text == mark:
            yield begin, i
            begin = i + 1
        i += 1
    yield begin, last


def is_declaration(tokens, first, last):
    names = 0
    for token in tokens[first:last]:
        if token.kind == "name" and (token.text not in ("return", "goto", "sizeof")):
            names += 1
        elif token.text != "*":
            break
        elif not names:
            return False
    return names > 1 and tokens[first].text not in ("return", "goto")


def initialisers(tokens, first, last):
    if any(token.text == "static" for token in tokens[first:last]):
        return
    for begin, end in split(tokens, first, last, ","):
        parts = list(split(tokens, begin, end, "="))
        if len(parts) == 2 and parts[1][0] < parts[1][1] and tokens[parts[1][0]].text != "{":
            yield Region("value", tokens, *parts[1])


def statement_end(tokens, at, end):
    """(index of the `;` or of a block's `{`, whether it is a block) of the statement that begins at `at`."""
    i = at
    while i < end:
        text = tokens[i].text if tokens[i].kind == "mark" else ""
        if text == "{":
            before = tokens[i - 1].text
            if before != "=" and not (before == ")" and any(t.text in ("=", "return") for t in tokens[at:i])):
                return i, True
        if text in BRACKETS:
            i = matching(tokens, i)
        elif text == ";" or text == "}":
            return i, False
        i += 1
    return end, False


def regions_of_for(tokens, opening, closing):
    parts = list(split(tokens, opening + 1, closing, ";"))
    if len(parts) != 3:
        return
    if is_declaration(tokens, *parts[0]):
        yield from initialisers(tokens, *parts[0])
    if parts[1][0] < parts[1][1]:
        yield Region("value", tokens, *parts[1])
    if parts[2][0] < parts[2][1]:
        yield Region("expression", tokens, *parts[2])


def regions_of_body(tokens, at, end):
    """The regions of tokens[at:end], the inside of a function."""
    while at < end:
        token = tokens[at]
        if token.text in ("if", "while", "switch", "for") and token.kind == "name":
            opening = at + 1
            closing = matching(tokens, opening)
            if token.text == "for":
                yield from regions_of_for(tokens, opening, closing)
            else:
                yield Region("condition" if token.text in ("if", "while") else "value", tokens, opening + 1, closing)
            at = closing + 1
        elif token.kind == "directive" or token.text in ("{", "}", ";", "else", "do"):
            at += 1
        elif token.text in ("case", "default") or (at + 1 < end and token.kind == "name" and tokens[at + 1].text == ":"):
            while at < end and tokens[at].text != ":":
                at += 1
            at += 1
        else:
            stop, is_block = statement_end(tokens, at, end)
            if is_block or any(t.kind == "directive" for t in tokens[at:stop]):
                pass
            elif is_declaration(tokens, at, stop):
                yield from initialisers(tokens, at, stop)
            elif stop < end and tokens[stop].text == ";" and token.text not in ("goto", "typedef"):
                yield Region("statement", tokens, at, stop + 1)
            at = stop + 1


def regions_of(tokens):
    """The regions of all functions of a file: a block at the top after `)`."""
    i = 0
    while i < len(tokens):
        if tokens[i].kind == "mark" and tokens[i].text in BRACKETS:
            closing = matching(tokens, i)
            if tokens[i].text == "{" and i and tokens[i - 1].text == ")":
                for region in regions_of_body(tokens, i + 1, closing):
                    if all(token.kind != "directive" for token in region.tokens):
                        yield region
            i = closing
        i += 1


def is_operand(token):
    return token.kind in ("number", "string") or token.text in (")", "]") or \
        (token.kind == "name" and token.text not in KEYWORDS)


def changed_token(tokens, i):
    """What may stand in place of token i, or None."""
    token, before = tokens[i], tokens[i - 1] if i else None
    after = tokens[i + 1] if i + 1 < len(tokens) else None
    if token.kind == "number":
        match = re.fullmatch(r"(\d+)([uUlL]*)", token.text)
        return f"{1 - int(match[1]) if int(match[1]) < 2 else int(match[1]) + 1}{match[2]}" if match else None
    if token.kind == "string" or token.text not in SWAPS:
        return None
    if token.text in ("+", "-", "*", "&"):
        begins = after is not None and (is_operand(after) or after.text in ("(", "-", "*", "&", "!")) and after.text != ")"
        if before is None or not is_operand(before) or not begins:
            return None
        if before.text == ")" and token.text in ("*", "&", "-"):
            return None  # perhaps a cast
    return SWAPS[token.text]


def text_of(tokens):
    return " ".join(token.text for token in tokens)


def mutants_of_region(region):
    tokens = region.tokens
    whole = text_of(tokens)
    if NO_CODE.match(whole):
        return
    for i, token in enumerate(tokens):
        other = changed_token(tokens, i)
        if other is not None:
            text = text_of(tokens[:i]) + f" {other} " + text_of(tokens[i + 1:])
            yield Mutant(region, token, f"{token.text} -> {other or 'nothing'}", text)
    if region.kind == "statement" and tokens[0].text not in ("return", "break", "continue") and \
            not RELEASES.match(whole.replace(" ", "")):
        yield Mutant(region, tokens[0], "statement removed", ";")
    if region.kind == "condition":
        yield Mutant(region, tokens[0], "condition negated", f"!({whole})")
        yield Mutant(region, tokens[0], "never", f"0 && ({whole})")
        for mark in ("&&", "||"):
            parts = list(split(tokens, 0, len(tokens), mark))
            for gone, (begin, end) in enumerate(parts if len(parts) > 1 else ()):
                kept = [text_of(tokens[a:b]) for i, (a, b) in enumerate(parts) if i != gone]
                if begin < end:
                    yield Mutant(region, tokens[begin], f"without '{text_of(tokens[begin:end])}'", f" {mark} ".join(kept))


def mutants_of(text):
    """All mutants of a source, in its order."""
    for region in regions_of(tokens_of(text)):
        yield from mutants_of_region(region)


def lines_of_code(text):
    return sorted({token.line for token in tokens_of(text) if token.kind != "directive"})


def write_mutants(text, numbered):
    """The source with [(number, mutant)], of which no two are in one region."""
    for number, mutant in sorted(numbered, key=lambda pair: -pair[1].region.begin):
        begin, end = mutant.region.begin, mutant.region.end
        text = text[:begin] + mutant.written(number, text[begin:end]) + text[end:]
    return '#include "base/mutant.h"\n#line 1\n' + text
