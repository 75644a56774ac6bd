"""The short form of programs.py, whose long form is `./dev programs`."""

import subprocess
import sys
from pathlib import Path


def test_random_programs_neither_crash_nor_hang():
    program = Path(__file__).with_name("programs.py")
    found = subprocess.run([sys.executable, "-X", "faulthandler", str(program), "40"], text=True, capture_output=True,
                           timeout=500)
    assert found.returncode == 0, found.stderr
    assert "40 programs" in found.stdout
