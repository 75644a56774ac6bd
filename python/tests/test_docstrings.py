"""pydoc and Sphinx read the docstrings of what is public."""

import inspect
import os
import pydoc
import subprocess
import sys

import pytest

import quipu
import quipu.compat

CONFIGURATION = """
project = "quipu"
extensions = ["sphinx.ext.autodoc"]
"""

PAGE = """
quipu
=====

.. automodule:: quipu
   :members:
   :imported-members:

.. automodule:: quipu.options
   :members:
   :exclude-members: Tensor

.. automodule:: quipu.compat
   :members:
"""


def test_every_public_name_is_explained():
    for name in quipu.__all__:
        thing = getattr(quipu, name)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            assert pydoc.getdoc(thing), name
        for member, value in vars(thing).items() if inspect.isclass(thing) else ():
            if not member.startswith("_") and (inspect.isroutine(value) or isinstance(value, property)):
                assert inspect.getdoc(getattr(thing, member)), f"{name}.{member}"
        assert name == "__version__" or name in pydoc.render_doc(thing, renderer=pydoc.plaintext)


def test_sphinx_reads_the_package_without_a_warning(tmp_path):
    pytest.importorskip("sphinx")
    (tmp_path / "conf.py").write_text(CONFIGURATION)
    (tmp_path / "index.rst").write_text(PAGE)
    found = subprocess.run([sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "xml", tmp_path,
                            tmp_path / "out"], env={**os.environ, "LC_ALL": "C.UTF-8"},
                           text=True, capture_output=True, timeout=300)
    assert found.returncode == 0, found.stderr
    page = (tmp_path / "out" / "index.xml").read_text(encoding="utf-8")
    for name in (*quipu.__all__, "compat.LLM"):
        assert name == "__version__" or f'ids="quipu.{name}' in page, name
    # A table or a program without "::" before it would be a paragraph.
    assert page.count("<literal_block") >= 9 and "<block_quote" not in page
