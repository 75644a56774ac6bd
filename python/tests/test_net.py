"""Names of models, and the server in the process. tests/test_hub.py has a hub; here the cache is filled by hand."""

import json
import os
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest

import quipu
from quipu.hub import is_name

TEXT = str(Path(__file__).resolve().parents[2] / "tests/golden/models/llama-text.gguf")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache of Hugging Face with one model, and no way to the hub."""
    folder = tmp_path / "hub" / "models--someone--small"
    commit = "0123456789" * 4
    (folder / "snapshots" / commit).mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(commit)
    os.symlink(TEXT, folder / "snapshots" / commit / "small.gguf")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def test_names_are_those_of_the_program(cache):
    for open_model in (lambda: quipu.Model("hf:someone/small"), lambda: quipu.Model.from_pretrained("someone/small"),
                       lambda: quipu.Model.from_pretrained(TEXT)):
        with open_model() as model:
            assert model.generate("the cat", max_tokens=2).text() is not None
    assert quipu.pull("hf:someone/small").endswith("small.gguf") and quipu.pull(TEXT) == TEXT
    with pytest.raises(quipu.QuipuError, match="quipu pull|cache|offline"):
        quipu.Model("llama3.2:1b")
    with pytest.raises(quipu.QuipuError, match="did you mean llama3.2:1b"):
        quipu.Model("lama3.2:1b")
    assert not is_name("synthetic:tiny") and not is_name("a/b") and not is_name("missing.gguf")


def post(url, body, key=None):
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers), timeout=60) as reply:
        return json.load(reply)


def test_a_server_in_the_process():
    body = {"prompt": "the cat", "max_tokens": 5, "temperature": 0, "ignore_eos": True}
    with quipu.serve(TEXT, port=0, context=128, name="mine") as server, quipu.Model(TEXT, context=128) as model:
        reply = post(server.url + "/v1/completions", body)
        assert reply["model"] == "mine"
        assert reply["choices"][0]["text"] == model.generate("the cat", max_tokens=5, temperature=0,
                                                             stop_tokens=()).text()
        waiting = threading.Thread(target=server.wait)
        waiting.start()
        with quipu.serve(TEXT, port=0, api_key="secret", drain_seconds=5) as other:
            assert other.port != server.port
            assert post(other.url + "/v1/completions", body, "secret")["choices"]
            with pytest.raises(urllib.error.HTTPError, match="401"):
                post(other.url + "/v1/completions", body)
        with pytest.raises(urllib.error.URLError):
            post(other.url + "/v1/completions", body)
        assert post(server.url + "/v1/completions", body)["choices"]
        server.close()
        server.close()
        waiting.join()


def test_what_a_server_refuses():
    with pytest.raises(quipu.QuipuError, match="missing.gguf"):
        quipu.serve("missing.gguf", port=0)
    with pytest.raises(quipu.QuipuError, match="api-key|key"):
        quipu.serve(TEXT, port=0, host="0.0.0.0")
    with pytest.raises(quipu.QuipuError, match="did you mean 'context'"):
        quipu.serve(TEXT, port=0, contex=1)
    with pytest.raises(quipu.QuipuError, match="the port of a server is 0 to 65535"):
        quipu.serve(TEXT, port=70000)
    with pytest.raises(quipu.QuipuError, match="drain_seconds is 0 to 86400, found -1"):
        quipu.serve(TEXT, port=0, drain_seconds=-1)
