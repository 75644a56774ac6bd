"""The binary interface of libquipu as text: functions, values of enumerations, layouts of structs.

packaging/interface.txt holds this text for the version that it names, and test_interface.py compares
the two. A program that was linked with a released version must run with every later library of the
same second number, so this text only changes together with QP_VERSION:

    python3 python/tests/interface.py        prints it
    python3 python/tests/interface.py write  writes the file, unless its version has been released

QUIPU_LIBRARY and QUIPU_HEADER name the library and the header; PYTHONPATH=python finds the package.
"""

import sys
from pathlib import Path

from quipu._native import ffi, lib

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "packaging" / "interface.txt"


def version() -> str:
    return ffi.string(lib.qp_version()).decode()


def functions() -> list[str]:
    """Every function of the header, with its type. Fails for one that the library lacks."""
    found = []
    for name in dir(lib):
        value = getattr(lib, name)
        if not isinstance(value, int):
            found.append(ffi.typeof(value).cname.replace("(*)", f" {name}", 1))
    return sorted(found, key=lambda line: line[line.index("qp_", line.index(" ")):])


def constants() -> list[str]:
    return sorted(f"{name} = {value}" for name in dir(lib)
                  if isinstance(value := getattr(lib, name), int))


def layout(name: str) -> list[str]:
    """A struct's size, and the offset and type of each member; nothing for an opaque struct."""
    pointer = ffi.typeof(f"{name} *")  # a pointer, because a typedef can be of a function
    kind = pointer.item if pointer.kind == "pointer" else pointer
    if kind.kind != "struct" or kind.fields is None:
        return []
    return [f"{name}: {ffi.sizeof(kind)} bytes"] + [
        f"  {field.offset:5} {member}: {field.type.cname}" for member, field in kind.fields]


def interface() -> str:
    typedefs, structs, _ = ffi.list_types()
    names = {*typedefs, *(f"struct {name}" for name in structs if name not in typedefs)}
    layouts = [layout(name) for name in sorted(names)]
    parts = [functions(), constants(), *filter(None, layouts)]
    return f"version {version()}\n" + "".join("\n" + "\n".join(lines) + "\n" for lines in parts)


def is_released(number: str) -> bool:
    return f"## {number} (not released)" not in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def changed(old: str, new: str, released: bool) -> str | None:
    """What to do about an interface that is not the one in the file; None where they are equal."""
    if old == new:
        return None
    number = new.splitlines()[0].removeprefix("version ")
    if released and old.splitlines()[0] == new.splitlines()[0]:
        return (f"the public interface differs from that of version {number}, which has been "
                f"released: raise QP_VERSION and QP_VERSION_MINOR in include/quipu.h, then write "
                f"packaging/interface.txt anew with: python3 python/tests/interface.py write")
    return (f"packaging/interface.txt does not describe the interface of version {number}: if the "
            f"change is meant, name it in CHANGELOG.md and write the file anew with: "
            f"python3 python/tests/interface.py write")


def main() -> None:
    text = interface()
    if sys.argv[1:] != ["write"]:
        sys.stdout.write(text)
        return
    old = FILE.read_text(encoding="utf-8") if FILE.exists() else "\n"
    if old.splitlines()[0] == text.splitlines()[0] and is_released(version()):
        sys.exit(changed(old, text, True))
    FILE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
