"""What the suites of the program as a process share: runs of $QUIPU_BINARY on the tiny models of
golden/models, in a home of their own. With --update a suite rewrites golden/cli, the answers that must
not change unnoticed; look at the difference before you commit it."""
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
MODELS = HERE / "golden/models"
GOLDEN = HERE / "golden/cli"
QUIPU = os.environ.get("QUIPU_BINARY") or str(HERE.parent / "build/quipu")
UPDATE = "--update" in sys.argv
MODEL = "llama-text.gguf"
SLOW = [MODEL, "-c", "200000", "--ignore-eos"]  # an answer of seconds
TEMPORARY = tempfile.mkdtemp(prefix="quipu-cli-")
HOME = {key: value for key, value in os.environ.items() if not key.startswith("QUIPU_")}
HOME |= {"HOME": TEMPORARY, "XDG_CACHE_HOME": TEMPORARY, "XDG_STATE_HOME": TEMPORARY, "LC_ALL": "C.UTF-8", "TERM": "dumb"}
failures = 0


def check(condition, what):
    global failures
    if not condition:
        failures += 1
        print("FAILED:", what)


def quipu(*arguments, stdin=b"", environment=None, **more):
    """(status, stdout, stderr) of one run in golden/models."""
    done = subprocess.run([QUIPU, *arguments], input=stdin, cwd=MODELS, timeout=60,
                          env=HOME | (environment or {}), stdout=more.pop("stdout", subprocess.PIPE),
                          stderr=subprocess.PIPE, **more)
    return done.returncode, (done.stdout or b"").decode("utf-8", "replace"), done.stderr.decode()


def expect(status, said, *arguments, **more):
    """Wrong usage and faults: a status, a sentence on stderr, nothing on stdout."""
    found, out, err = quipu(*arguments, **more)
    check(found == status, f"{arguments}: status {found}, expected {status}: {err}")
    check(said in err, f"{arguments}: expected {said!r} in {err!r}")
    check(out == "", f"{arguments}: {out!r} on standard output")


def golden(name, *arguments, stdin=b""):
    status, out, err = quipu(*arguments, stdin=stdin)
    check(status == 0, f"{name}: status {status}: {err}")
    path = GOLDEN / name
    out = out.replace(TEMPORARY, "TEMPORARY")
    if UPDATE:
        GOLDEN.mkdir(exist_ok=True)
        path.write_text(out)
    check(path.exists() and path.read_text() == out,
          f"{name} is not as committed ({Path(sys.argv[0]).name} --update rewrites it):\n{out}")
    return out


def vocabulary_only():
    """A directory with tokenizer files and nothing else."""
    folder = Path(TEMPORARY, "vocabulary")
    folder.mkdir(exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(MODELS / "llama-text" / name, folder)
    return str(folder)


def run_parts(*parts):
    """Runs the parts of a suite; its exit status."""
    try:
        for part in parts:
            start = time.monotonic()
            part()
            print(f"{part.__name__}: {time.monotonic() - start:.1f} s")
    finally:
        shutil.rmtree(TEMPORARY)
    return failures > 0
