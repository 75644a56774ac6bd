"""The binary interface of libquipu changes only together with its version."""

import difflib
import re
import shutil
import subprocess

import pytest

import interface
from quipu import _native

pytestmark = pytest.mark.skipif(_native.ffi.sizeof("void *") != 8,
                                reason="packaging/interface.txt has the layouts of 64-bit machines")


def test_interface_is_that_of_the_version():
    old, new = interface.FILE.read_text(encoding="utf-8"), interface.interface()
    problem = interface.changed(old, new, interface.is_released(interface.version()))
    assert problem is None, problem + "\n" + "".join(
        difflib.unified_diff(old.splitlines(True), new.splitlines(True), "file", "library", n=1))


def test_structs_that_may_grow_do_not_end_in_padding():
    """A member that takes the place of padding would not change the size, which is how the library
    knows what a program's struct has."""
    found = 0
    for name in _native.ffi.list_types()[0]:
        kind = _native.ffi.typeof(f"{name} *")
        kind = kind.item if kind.kind == "pointer" else kind
        if kind.kind != "struct" or not kind.fields or kind.fields[0][0] != "size":
            continue
        found += 1
        last = kind.fields[-1][1]
        assert last.offset + _native.ffi.sizeof(last.type) == _native.ffi.sizeof(kind), name
    assert found == 14


def test_layouts_of_all_public_structs_are_there():
    text = interface.interface()
    for name in ("qp_engine_options", "qp_generate_result", "qp_sampling", "qp_sequence"):
        assert re.search(rf"^{name}: [1-9][0-9]* bytes$", text, re.MULTILINE)
    assert "qp_engine: " not in text  # opaque
    assert re.search(r"^qp_status qp_engine_open\(", text, re.MULTILINE)
    assert "\nQP_NO_MEMORY = 5\n" in text


@pytest.mark.skipif(shutil.which("nm") is None, reason="nm lists the symbols")
def test_the_library_exports_what_the_header_declares():
    path = _native.library
    names = subprocess.run(["nm", "-D", "--defined-only", str(path)], check=True, text=True,
                           capture_output=True).stdout
    exported = set(re.findall(r"[TBDR] (qp_\w+)", names))
    assert exported == {name for name in dir(_native.lib) if name.startswith("qp_")}


@pytest.mark.skipif(shutil.which("readelf") is None, reason="readelf prints the library's name")
def test_the_librarys_name_has_the_numbers_that_may_change_the_interface():
    path = _native.library
    said = subprocess.run(["readelf", "-d", str(path)], check=True, text=True, capture_output=True)
    major, minor, _ = interface.version().split(".")
    number = f"0.{minor}" if major == "0" else major
    assert re.search(r"SONAME.*\[(.*)\]", said.stdout)[1] == f"libquipu.so.{number}"


def test_what_to_do_about_a_change():
    old = "version 0.1.0\n\nint qp_a(int)\n"
    assert interface.changed(old, old, released=True) is None
    assert "raise QP_VERSION" in interface.changed(old, old + "int qp_b(int)\n", released=True)
    assert "CHANGELOG" in interface.changed(old, old + "int qp_b(int)\n", released=False)
    assert "version 0.2.0" in interface.changed(old, old.replace("0.1", "0.2"), released=True)
    assert interface.is_released("0.1.0")
