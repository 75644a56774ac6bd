#!/usr/bin/env python3
"""Clients that people have, against quipu serve: openai, anthropic, ollama, langchain-openai, litellm.

    python3 -m venv clients
    clients/bin/pip install openai anthropic ollama langchain-openai litellm
    QUIPU_BINARY=build/quipu clients/bin/python tests/scripts/clients.py [MODEL]

MODEL needs a chat template; without it the tests' own small model. A client that is not installed
is skipped. Ends with "N passed, N failed, N skipped".
"""
import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

QUIPU = os.environ.get("QUIPU_BINARY", "build/quipu")
TINY = Path(__file__).resolve().parents[1] / "golden" / "models" / "llama-text.gguf"
HELLO = [{"role": "user", "content": "Say hello."}]
NAME = "served"


def openai_client(url):
    import openai
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none")
    assert client.models.list().data[0].id == NAME and client.models.retrieve(NAME).id == NAME
    settings = dict(model=NAME, messages=HELLO, max_tokens=8, temperature=0)
    whole = client.chat.completions.create(**settings)
    chunks = list(client.chat.completions.create(**settings, stream=True,
                                                 stream_options={"include_usage": True}))
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content, (text, whole)
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    done = client.completions.create(model=NAME, prompt="Once", max_tokens=5, logprobs=2)
    assert len(done.choices[0].logprobs.tokens) == 5
    response = client.responses.create(model=NAME, input="Hi", max_output_tokens=5, temperature=0)
    with client.responses.stream(model=NAME, input="Hi", max_output_tokens=5,
                                 temperature=0) as stream:
        streamed = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
    assert streamed == response.output_text, (streamed, response.output_text)
    try:
        client.chat.completions.create(model=NAME, messages=HELLO, temperature=-1)
        raise AssertionError("a wrong temperature was taken")
    except openai.BadRequestError as error:
        assert error.param == "temperature", error


def anthropic_client(url):
    import anthropic
    client = anthropic.Anthropic(base_url=url, api_key="none")
    settings = dict(model=NAME, messages=HELLO, max_tokens=8, system="Be brief.", temperature=0)
    try:
        whole = client.messages.create(**settings)
    except TypeError:  # the newest versions have no temperature
        settings["extra_body"] = {"temperature": settings.pop("temperature")}
        whole = client.messages.create(**settings)
    with client.messages.stream(**settings) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text and final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens
    assert client.messages.count_tokens(model=NAME, messages=HELLO).input_tokens > 0


def ollama_client(url):
    import ollama
    client = ollama.Client(host=url)
    options = {"num_predict": 8, "temperature": 0}
    whole = client.chat(model=NAME, messages=HELLO, options=options)
    parts = list(client.chat(model=NAME, messages=HELLO, options=options, stream=True))
    assert "".join(p.message.content for p in parts) == whole.message.content
    assert client.generate(model=NAME, prompt="Hi", options=options).done
    assert client.list().models[0].model == NAME
    client.show(NAME)


def langchain_client(url):
    from langchain_openai import ChatOpenAI
    model = ChatOpenAI(base_url=f"{url}/v1", api_key="none", model=NAME, max_tokens=8,
                       temperature=0)
    whole = model.invoke("Say hello.").content
    assert "".join(c.content for c in model.stream("Say hello.")) == whole


def litellm_client(url):
    import litellm
    settings = dict(model=f"openai/{NAME}", messages=HELLO, api_base=f"{url}/v1", api_key="none",
                    max_tokens=8, temperature=0)
    whole = litellm.completion(**settings).choices[0].message.content
    chunks = litellm.completion(**settings, stream=True)
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == whole


def start(model):
    process = subprocess.Popen([QUIPU, "serve", "-m", str(model), "--port", "0", "--alias", NAME],
                               stderr=subprocess.PIPE, text=True)
    line = process.stderr.readline()
    url = "http://127.0.0.1:" + line.rsplit(":", 1)[1].strip()
    while True:
        try:
            urllib.request.urlopen(url + "/health").read()
            return process, url
        except urllib.error.HTTPError:
            time.sleep(0.05)


def main():
    process, url = start(sys.argv[1] if len(sys.argv) > 1 else TINY)
    passed = failed = skipped = 0
    try:
        for client in (openai_client, anthropic_client, ollama_client, langchain_client,
                       litellm_client):
            try:
                client(url)
                passed += 1
                print("passed", client.__name__, flush=True)
            except ModuleNotFoundError as error:
                skipped += 1
                print("skipped", client.__name__, error)
            except Exception as error:  # the others go on
                failed += 1
                print("failed", client.__name__, type(error).__name__, error)
    finally:
        process.terminate()
        process.wait(60)
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


sys.exit(main())
