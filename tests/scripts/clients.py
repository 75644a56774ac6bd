#!/usr/bin/env python3
"""Clients that people have, against quipu serve: openai, anthropic, ollama, langchain-openai, litellm, and with a
model that writes given texts also openai-agents and pydantic-ai: thoughts, calls of tools and their results.

    python3 -m venv clients
    clients/bin/pip install openai anthropic ollama langchain-openai litellm openai-agents pydantic-ai-slim[openai]
    QUIPU_BINARY=build/quipu clients/bin/python tests/scripts/clients.py [MODEL]

MODEL needs a chat template; without it the tests' own small model. A client that is not installed
is skipped. Ends with "N passed, N failed, N skipped".
"""
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from scripted_model import scripted_model

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


# ---- A loop with a tool: the model thinks, calls, and says what it was told ----

THOUGHT, SAID, ARGUMENTS = "I have to look it up.", "Then it is sunny in Lima.", {"city": "Lima"}
SCRIPTS = {"calls": f"<think>\n{THOUGHT}\n</think>\n\n<tool_call>\n"
                    + json.dumps({"name": "get_weather", "arguments": ARGUMENTS}) + "\n</tool_call>", "told": SAID}
TEMPLATE = ("{% for m in messages %}[{{ m.role }}] {{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function | tojson }}"
            "{% endfor %}\n{% endfor %}{{ tools | tojson if tools else '' }}{% if add_generation_prompt %}"
            "{% if messages[-1].role == 'tool' %}<|told|>{% else %}<|calls|>{% endif %}{% endif %}{# </think> #}")
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "d", "parameters": PARAMETERS}}
ASKED = [{"role": "user", "content": "What is the weather in Lima?"}]


def get_weather(city: str) -> str:
    """The weather of a city."""
    assert city == "Lima"
    return "sunny"


def openai_chat_loop(url):
    import openai
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none")
    settings = dict(model=NAME, tools=[TOOL], temperature=0)
    whole = client.chat.completions.create(messages=ASKED, **settings)
    message, details = whole.choices[0].message, whole.usage.completion_tokens_details
    assert message.reasoning_content == THOUGHT and details.reasoning_tokens > 5, whole
    with client.chat.completions.stream(messages=ASKED, **settings) as stream:
        pieces = [e for e in stream if e.type == "tool_calls.function.arguments.delta"]
        final = stream.get_final_completion().choices[0]
    call = final.message.tool_calls[0]
    assert len(pieces) > 2 and json.loads(call.function.arguments) == ARGUMENTS and final.finish_reason == "tool_calls"
    result = {"role": "tool", "tool_call_id": call.id, "content": get_weather("Lima")}
    sent = {"role": "assistant", "content": None, "tool_calls": [call.to_dict()]}
    for name in ("parsed_arguments",):
        sent["tool_calls"][0]["function"].pop(name, None)
    sent["tool_calls"][0].pop("index", None)
    told = client.chat.completions.create(messages=[*ASKED, sent, result], **settings)
    assert told.choices[0].message.content == SAID, told


def openai_responses_loop(url):
    import openai
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none")
    tools = [{"type": "function", "name": "get_weather", "parameters": PARAMETERS, "strict": False}]
    with client.responses.stream(model=NAME, input=ASKED[0]["content"], tools=tools, temperature=0) as stream:
        kinds = [e.type for e in stream]
        first = stream.get_final_response()
    assert "response.reasoning_text.delta" in kinds and "response.function_call_arguments.delta" in kinds, kinds
    reasoning, call = first.output
    assert reasoning.content[0].text == THOUGHT and json.loads(call.arguments) == ARGUMENTS, first
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    told = client.responses.create(model=NAME, input=[result], previous_response_id=first.id, tools=tools, temperature=0)
    assert told.output_text == SAID, told
    assert client.responses.retrieve(told.id).output_text == SAID
    assert client.responses.input_items.list(told.id).data[-1].type == "function_call_output"
    client.responses.delete(first.id)


def anthropic_loop(url):
    import anthropic
    client = anthropic.Anthropic(base_url=url, api_key="none")
    settings = dict(model=NAME, max_tokens=1100, tools=[{"name": "get_weather", "input_schema": PARAMETERS}],
                    thinking={"type": "enabled", "budget_tokens": 1024}, extra_body={"temperature": 0})
    with client.messages.stream(messages=ASKED, **settings) as stream:
        kinds = [e.type for e in stream]
        final = stream.get_final_message()
    assert {"thinking", "signature", "input_json"} <= set(kinds), kinds
    thinking, call = final.content
    assert thinking.thinking == THOUGHT and call.input == ARGUMENTS and final.stop_reason == "tool_use", final
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}
    history = [*ASKED, {"role": "assistant", "content": final.content}, {"role": "user", "content": [result]}]
    assert client.messages.create(messages=history, **settings).content[0].text == SAID


def ollama_loop(url):
    import ollama
    client = ollama.Client(host=url)
    settings = dict(model=NAME, tools=[get_weather], think=True, options={"temperature": 0})
    parts = list(client.chat(messages=ASKED, stream=True, **settings))
    assert "".join(p.message.thinking or "" for p in parts) == THOUGHT, parts
    call = next(c for p in parts for c in p.message.tool_calls or [])
    assert call.function.arguments == ARGUMENTS, call
    history = [*ASKED, {"role": "assistant", "content": "", "tool_calls": [call]},
               {"role": "tool", "tool_name": "get_weather", "content": "sunny"}]
    assert client.chat(messages=history, **settings).message.content == SAID


def litellm_loop(url):
    import litellm
    for model, base in ((f"openai/{NAME}", f"{url}/v1"), (f"anthropic/{NAME}", url), (f"ollama_chat/{NAME}", url)):
        settings = dict(model=model, api_base=base, api_key="none", tools=[TOOL], temperature=0, max_tokens=300)
        message = litellm.completion(messages=ASKED, **settings).choices[0].message
        call = message.tool_calls[0]
        assert json.loads(call.function.arguments) == ARGUMENTS, (model, message)
        result = {"role": "tool", "tool_call_id": call.id, "name": "get_weather", "content": "sunny"}
        told = litellm.completion(messages=[*ASKED, message.model_dump(), result], **settings)
        assert told.choices[0].message.content == SAID, (model, told)
    chunks = litellm.completion(model=f"openai/{NAME}", api_base=f"{url}/v1", api_key="none", messages=ASKED, tools=[TOOL],
                                temperature=0, stream=True)
    assert "".join(getattr(c.choices[0].delta, "reasoning_content", None) or "" for c in chunks) == THOUGHT


def langchain_loop(url):
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_openai import ChatOpenAI
    model = ChatOpenAI(base_url=f"{url}/v1", api_key="none", model=NAME, temperature=0).bind_tools([TOOL])
    asked = HumanMessage(ASKED[0]["content"])
    chunks = list(model.stream([asked]))
    streamed = chunks[0]
    for chunk in chunks[1:]:
        streamed += chunk
    for message in (model.invoke([asked]), streamed):
        assert message.tool_calls[0]["args"] == ARGUMENTS, message
        told = model.invoke([asked, message, ToolMessage("sunny", tool_call_id=message.tool_calls[0]["id"])])
        assert told.content == SAID, told


def openai_agents_loop(url):
    import asyncio
    import agents
    import openai
    agents.set_tracing_disabled(True)
    for kind in (agents.OpenAIResponsesModel, agents.OpenAIChatCompletionsModel):
        client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none")  # of one event loop
        agent = agents.Agent(name="a", model=kind(model=NAME, openai_client=client), tools=[agents.function_tool(get_weather)],
                             model_settings=agents.ModelSettings(temperature=0))
        assert asyncio.run(agents.Runner.run(agent, ASKED[0]["content"])).final_output == SAID, kind


def pydantic_ai_loop(url):
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider
    provider = OpenAIProvider(base_url=f"{url}/v1", api_key="none")
    for kind in (OpenAIChatModel, OpenAIResponsesModel):
        agent = Agent(kind(NAME, provider=provider), tools=[get_weather], model_settings={"temperature": 0})
        result = agent.run_sync(ASKED[0]["content"])
        assert result.output == SAID, (kind, result)


CLIENTS = (openai_client, anthropic_client, ollama_client, langchain_client, litellm_client)
LOOPS = (openai_chat_loop, openai_responses_loop, anthropic_loop, ollama_loop, litellm_loop, langchain_loop, openai_agents_loop,
         pydantic_ai_loop)


def start(model):
    process = subprocess.Popen([QUIPU, "serve", "-m", str(model), "--port", "0", "--alias", NAME, "-c", "4096"],
                               stderr=subprocess.PIPE, text=True)
    line = ""
    while "listening" not in line:
        line = process.stderr.readline()
    url = "http://127.0.0.1:" + re.search(r"listening at http://.*:(\d+)", line)[1]
    while True:
        try:
            urllib.request.urlopen(url + "/health").read()
            return process, url
        except urllib.error.HTTPError:
            time.sleep(0.05)


def run(model, clients, counts):
    process, url = start(model)
    try:
        for client in clients:
            try:
                client(url)
                result, why = "passed", ""
            except ModuleNotFoundError as error:
                result, why = "skipped", error
            except Exception as error:  # the others go on
                result, why = "failed", f"{type(error).__name__} {error}"
            counts[result] += 1
            print(result, client.__name__, why, flush=True)
    finally:
        process.terminate()
        process.wait(60)


def main():
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    run(sys.argv[1] if len(sys.argv) > 1 else TINY, CLIENTS, counts)
    with tempfile.TemporaryDirectory() as top:
        marks = ("<think>", "</think>", "<tool_call>", "</tool_call>")
        run(scripted_model(f"{top}/model", TEMPLATE, SCRIPTS, marks), LOOPS, counts)
    print(", ".join(f"{n} {name}" for name, n in counts.items()))
    return 1 if counts["failed"] else 0


sys.exit(main())
