#!/usr/bin/env python3
"""The program with signals and terminals: interrupts, editing, progress. See cli_process.py."""
import base64
import fcntl
import json
import os
import pty
import random
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
import unicodedata
from pathlib import Path

from cli_process import HOME, MODEL, MODELS, QUIPU, SLOW, TEMPORARY, check, run_parts


def until(condition, what, seconds=30):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    check(condition(), what)


def catches(pid, number):
    """Whether the process has a handler for the signal."""
    caught = re.search(r"^SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text(), re.M)[1]
    return int(caught, 16) >> (number - 1) & 1 == 1


def interrupts():
    random.seed(7)
    for command, stdin in ((["run", "-p", "a"], b""), (["chat"], b"a\nb\n"), (["run"], None)):
        for delay in [random.uniform(0, 0.25) for _ in range(6)] + [0.5]:
            arguments = [QUIPU, *command, "-m", *SLOW]
            child = subprocess.Popen(arguments, cwd=MODELS, env=HOME, stdin=subprocess.PIPE,
                                     stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            if stdin is not None:
                child.stdin.write(stdin)
                child.stdin.close()
                child.stdin = None
            if delay == 0.5:  # sooner, it may still be loading
                until(lambda: catches(child.pid, signal.SIGINT), f"{command} catches interrupts")
            time.sleep(delay)
            child.send_signal(signal.SIGINT)
            err = child.communicate(timeout=60)[1].decode()
            check(child.returncode in (130, -signal.SIGINT), f"{command}: {child.returncode} {err}")
            check("interrupted" in err or delay < 0.5, f"{command} after {delay}: {err!r}")


class Screen:
    """What a terminal shows: as much of one as the program uses. Rows above never scroll away."""

    def __init__(self, columns):
        self.columns, self.rows, self.row, self.column, self.rest = columns, [[]], 0, 0, ""

    def feed(self, text):
        text = self.rest + text
        at = 0
        while at < len(text):
            clipboard = re.compile(r"\x1b\]52;[^\a]*\a").match(text, at)
            if clipboard:
                at = clipboard.end()
                continue
            sequence = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])").match(text, at)
            if sequence:
                self.control(sequence[2], int(sequence[1]) if sequence[1].isdigit() else 0)
                at = sequence.end()
            elif text[at] == "\x1b" and len(text) - at < 12:
                break  # the rest of it is still to come
            else:
                self.put(text[at])
                at += 1
        self.rest = text[at:]

    def control(self, letter, number):
        row = self.rows[self.row]
        if letter == "A":
            self.row = max(0, self.row - (number or 1))
        elif letter == "B":
            self.down(number or 1)
        elif letter == "C":
            self.column = min(self.columns - 1, self.column + (number or 1))
        elif letter == "D":
            self.column = max(0, self.column - (number or 1))
        elif letter == "J":
            del self.rows[self.row + 1:]
            del row[self.column:]
        elif letter == "K":
            del row[self.column:]

    def down(self, count):
        self.row += count
        while len(self.rows) <= self.row:
            self.rows.append([])

    def put(self, character):
        if character == "\n":
            self.down(1)
        elif character == "\r":
            self.column = 0
        elif character >= " " and not unicodedata.combining(character):
            if self.column >= self.columns:
                self.down(1)
                self.column = 0
            row = self.rows[self.row]
            row.extend(" " * (self.column + 1 - len(row)))
            row[self.column] = character
            self.column += 1

    def text(self, first=0):
        return "\n".join("".join(row) for row in self.rows[first:])


class Terminal:
    """The program at a terminal of its own."""

    def __init__(self, *arguments, columns=80, kind="xterm"):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(MODELS)
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("4H", 24, columns, 0, 0))
            os.execve(QUIPU, [QUIPU, *arguments], HOME | {"TERM": kind})
        self.screen, self.seen, self.raw = Screen(columns), 0, ""

    def until(self, pattern, seconds=30):
        """Waits until what is on the screen below the last such match has the pattern."""
        end = time.monotonic() + seconds
        while not re.search(pattern, self.screen.text(self.seen)) and time.monotonic() < end:
            if select.select([self.fd], [], [], 0.1)[0]:
                try:
                    text = os.read(self.fd, 65536).decode("utf-8", "replace")
                except OSError:
                    break
                self.raw += text
                self.screen.feed(text)
        shown = self.screen.text(self.seen)
        check(re.search(pattern, shown), f"terminal: {pattern!r} in {shown[-500:]!r}")
        self.seen = self.screen.row

    def edit(self, text):
        """Types into the editor, which shows its prompt before it takes the terminal over."""
        until(lambda: not termios.tcgetattr(self.fd)[3] & termios.ICANON, "the editor's terminal")
        os.write(self.fd, text.encode())

    def resize(self, columns):
        self.screen.columns = columns
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("4H", 24, columns, 0, 0))

    def interrupt(self):
        os.write(self.fd, b"\x03")

    def status(self):
        """Of its end, with all that it wrote until then."""
        try:
            while select.select([self.fd], [], [], 60)[0]:
                text = os.read(self.fd, 65536).decode("utf-8", "replace")
                self.raw += text
                self.screen.feed(text)
        except OSError:  # the other end is closed
            pass
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def terminal():
    t = Terminal("chat", "-m", *SLOW)
    t.until(r"llama-text.gguf, context 200000. Type a message, or .help.\n> ")
    t.edit("tell me\r")
    t.until(r"tell me\n.")
    t.interrupt()
    t.until(r"\(Stopped\.\)\n> ")
    t.edit("half a lüne")
    t.until(r"> half a lüne")
    t.interrupt()
    t.until(r"\n> $")
    t.edit("/save kept\x7f\x7f\x7f\x7f/dev/null\r")  # editing
    t.until(r"2 messages saved to /dev/null\n> ")
    t.edit("\x10\r")  # Ctrl-P: the message before
    t.until(r"2 messages saved to /dev/null\n> ")
    t.edit("/bogus\r")
    t.until(r"/bogus is not a command; /help lists them\n> ")
    t.edit("/sav\r")
    t.until(r"/sav is not a command; did you mean /save\?\n> ")
    t.edit("\x04")
    t.until(r"\n$")
    check(t.status() == 0, "Ctrl-D ends a chat at a terminal with success")
    check(t.raw.count("\x1b[?2004h") == t.raw.count("\x1b[?2004l") == 1, "pasting is bracketed, then not")
    history = Path(TEMPORARY, "quipu/history")
    check("tell" in history.read_text() and history.stat().st_mode & 0o77 == 0, "history")


def progress():
    """Long work is shown at a terminal, and what was shown goes away."""
    prompt = Path(TEMPORARY, "long")
    prompt.write_text("the cat in the hat " * 300)
    t = Terminal("run", "-m", MODEL, "-c", "4000", "--chunk", "64", "-f", str(prompt), "-n", "2", "--raw")
    t.until(r"generated 2 tokens")
    check(t.status() == 0, "a long prompt")
    check("reading the prompt   0%  0 of " in t.raw, t.raw[:500])
    check("reading" not in t.screen.text(), t.screen.text())
    # At a terminal the answer has no control characters, and no line reaches its edge.
    t = Terminal("run", "-m", MODEL, "-p", "the", "-n", "60", "--temp", "1.5", "-s", "5", "--ignore-eos", columns=30)
    t.until(r";\s(stop|length)\n")
    answer = t.screen.text().split("\nprompt ")[0]
    check(all(len(line) < 30 for line in answer.splitlines()), answer)
    check(t.status() == 0, "run at a terminal")
    t = Terminal("bench", "-m", MODEL, "-p", "8", "-n", "4", "-r", "2")
    t.until(r"\| tg4 \|")
    check("pp8: run 2 of 2" in t.raw and "tg4: run 1 of 2" in t.raw, t.raw)
    check("run 2" not in t.screen.text(), t.screen.text())
    check(t.status() == 0, "bench at a terminal")
    # Standard input at a terminal ends with one Ctrl-D.
    t = Terminal("tokenize", "-m", MODEL)
    t.until(r"end it with Ctrl-D")
    os.write(t.fd, b"the\n\x04")
    t.until(r"\d+ \d+\n$", seconds=5)
    check(t.status() == 0, "tokenize at a terminal")


def editing():
    t = Terminal("chat", "-m", MODEL, "-n", "2", columns=30)
    t.until(r"/help\.\n> ")
    # Lines pasted together are one message, as are lines broken by Alt-Enter or a backslash.
    t.edit("\x1b[200~one\rtwo\n\tthree\r\n\x1b[201~")
    t.until(r"> one\n\. two\n\.     three$")
    t.edit("\x1b\rfour\\\r5\r")
    t.until(r"three\n\. four\n\. 5\n(.|\n)*Stopped after 2 tokens(.|\n)*\n> $")
    # A message wider than the terminal is drawn anew for another width.
    t.edit("abcdefghijklmnopqrstuvwxyz0123456789")
    t.until(r"> abcdefghijklmnopqrstuvwxyz01\n  23456789$")
    t.seen -= 1
    t.resize(50)
    t.until(r"> abcdefghijklmnopqrstuvwxyz0123456789$")
    t.edit("\x01/set seed 7 \x0b\r")  # Ctrl-A, Ctrl-K
    t.until(r"seed is 7\.\n> ")
    # Completion: what is common, then a list.
    t.edit("/se\t")
    t.until(r"> /set $")
    t.edit("see\t8\r")
    t.until(r"seed is 8\.\n> ")
    t.edit("/sch\tthr\tda\t\r")
    t.until(r"schedule is now: throughput, dag\.\n> ")
    t.edit("/s\t")
    t.until(r"/set .*/show .*/system .*/save ")
    kept = Path(TEMPORARY, "typed.json")
    kept.write_text("before")
    t.edit(f"\x15/save {TEMPORARY}/ty\t\r")
    t.until(r"exists\.[^$]*\[y/N\] ")
    t.edit("n")
    t.until(r"Nothing was saved\.\n> ")
    check(kept.read_text() == "before", "what a person wants to keep stays")
    t.edit("\x12sav\r")  # Ctrl-R
    t.until(r"exists\.[^$]*\[y/N\] ")
    t.edit("y")
    t.until(r"2 messages saved")
    check([m["content"] for m in json.loads(kept.read_text())][0] == "one\ntwo\n\tthree\nfour\n5", "lines")
    t.edit("/regen\r")
    t.until(r"/regen\n(.|\n)*Stopped(.|\n)*\n> $")
    t.edit("/bye\r")
    check(t.status() == 0, "/bye ends a chat")
    # The next chat knows what was typed in this one.
    t = Terminal("chat", "-m", MODEL)
    t.until(r"> ")
    t.edit("\x10\x10\x10")
    t.until(r"> /save ")
    t.edit("\x15")
    os.kill(t.pid, signal.SIGTERM)
    check(t.status() == -signal.SIGTERM, "SIGTERM ends a chat")
    check(termios.tcgetattr(t.fd)[3] & termios.ICANON, "and gives the terminal back as it was")
    # A terminal without escape sequences is read line by line.
    t = Terminal("chat", "-m", MODEL, "-n", "2", kind="dumb")
    t.until(r"> $")
    os.write(t.fd, b"a\\\n")
    t.until(r"\. $")
    os.write(t.fd, b"b\n")
    t.until(r"Stopped after 2 tokens")
    os.write(t.fd, b"/exit\n")
    check(t.status() == 0 and "\x1b" not in t.raw, "a dumb terminal")


def commands():
    """Messages of several lines, an editor, the clipboard, another context."""
    editor = Path(TEMPORARY, "editor")
    editor.write_text('#!/bin/sh\ntest -t 0 && echo "edited: $(cat "$1")" > "$1"\n')
    editor.chmod(0o755)
    HOME["EDITOR"] = str(editor)
    t = Terminal("run", MODEL, "-n", "2")  # a model and no prompt, at a terminal
    t.until(r"/help\.\n> $")
    t.edit('"""one\r')
    t.until(r'> """one\n\. $')
    t.edit('two"""\r')
    t.until(r"Stopped after 2 tokens(.|\n)*\n> $")
    t.edit("/edit\r")
    t.until(r"\n\s*edited: one\n\s*two\n(.|\n)*Stopped after 2 tokens(.|\n)*\n> $")
    editor.write_text("#!/bin/sh\nexit 3\n")
    t.edit("/edit\r")
    t.until(r"Nothing was sent: the editor '[^']*' ended with status\s3(.|\n)*\n> $")
    t.edit("/set num_ctx 100\r")
    t.until(r"100 positions, whose KV cache takes [\d.]+ MiB(.|\n)*context is 100\.\n> $")
    t.edit("/set num_ctx\r")
    t.until(r"context is 100: positions of (.|\n)*\n> $")
    t.edit("/set context 99999999\r")
    t.until(r"to 67108864, found 99999999\n> $")
    t.edit("/set context 7\r")
    t.until(r"expected a whole number from 16 (.|\n)*\n> $")
    t.edit("/set parameter temperature 0\r")
    t.until(r"temp is 0\.\n> $")
    t.edit("/set repeat_last_n 4\r")
    t.until(r"counts all tokens of the context\.\n> $")
    t.edit("/show messages\r")
    t.until(r"user +one\n(.|\n)*edited: one\n(.|\n)*\n> $")
    t.edit("/show settings\r")
    t.until(r"temp +0 (.|\n)*context +100 (.|\n)*\n> $")
    t.edit("/show template\r")
    t.until(r"im_start(.|\n)*\n> $")
    t.edit("/show nothing\r")
    t.until(r"not 'nothing'\n> $")
    t.edit("/thoughts\r")
    t.until(r"has no thoughts\.\n> $")
    t.edit("/copy\r")
    t.until(r"was handed to the terminal's clipboard\.\n> $")
    answer = base64.b64decode(re.search(r"\x1b\]52;c;([^\a]+)\a", t.raw)[1]).decode()
    t.edit("/save answer.json\r".replace("answer", f"{TEMPORARY}/answer"))
    t.until(r"4 messages saved")
    check(json.loads(Path(TEMPORARY, "answer.json").read_text())[-1]["content"] == answer, "the copy is the answer")
    t.edit("/bye\r")
    check(t.status() == 0, "commands")
    del HOME["EDITOR"]


def thoughts():
    """Thoughts are dimmed or folded; with --plain they stand between marks."""
    folder = Path(TEMPORARY, "thinker")
    shutil.copytree(Path(MODELS, "llama-text"), folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["chat_template"] = ("{% for m in messages %}{{ m.content }}{% if '</think>' in m.content %}x{% endif %}"
                                 "{% endfor %}<think>")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    chat = ("chat", str(folder), "-n", "3", "--temp", "0")
    t = Terminal(*chat)
    t.until(r"> $")
    t.edit("the\r")
    t.until(r"Stopped(.|\n)*\n> $")
    check("\x1b[0;2m" in t.raw and "<think>" not in t.screen.text(), repr(t.raw[-500:]))
    t.edit("/thoughts fold\r")
    t.until(r"folded to a line(.|\n)*\n> $")
    t.edit("cat\r")
    t.until(r"\(thought \d words?\)(.|\n)*\n> $")
    t.edit("/thoughts\r")
    t.until(r"/thoughts\n.+\n> $")
    t.edit("/bye\r")
    check(t.status() == 0, "thoughts")
    t = Terminal(*chat, "--plain")
    t.until(r"> $")
    t.edit("the\r")
    t.until(r"<think>\n(.|\n)*</think>(.|\n)*\n> $")
    check("\x1b[0;2m" not in t.raw, "--plain has no styles")
    t.edit("/bye\r")
    check(t.status() == 0, "plain")


sys.exit(run_parts(interrupts, terminal, editing, commands, thoughts, progress))
