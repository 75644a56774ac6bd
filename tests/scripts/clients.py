#!/usr/bin/env python3
"""Clients that people have, against quipu serve: openai, anthropic, ollama, langchain (its packages for the three), litellm,
llama-index, instructor, outlines, guidance, and with a model that writes given texts also openai-agents, pydantic-ai, smolagents,
haystack and dspy: thoughts, calls of tools and their results, objects of classes.

    python3 -m venv clients
    clients/bin/pip install uv
    clients/bin/uv pip install --python clients/bin/python openai anthropic ollama langchain-openai langchain-anthropic
        langchain-ollama litellm openai-agents pydantic-ai-slim[openai] instructor outlines[openai] guidance smolagents[openai]
        haystack-ai dspy
    clients/bin/uv pip install --python others/bin/python llama-index-llms-openai-like   # a folder of its own: it needs other versions
    QUIPU_BINARY=build/quipu clients/bin/python tests/scripts/clients.py [MODEL [NAME...]]

MODEL needs a chat template; without it, or "", the tests' own small model. NAME: only these functions. A client that is not installed
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


# ---- Objects of a class, from a model that writes at random but within the form ----

def person():
    import pydantic

    class Person(pydantic.BaseModel):
        name: str = pydantic.Field(pattern="^[a-z]{1,8}$")  # guidance joins tokens, which may be parts of characters
        age: int = pydantic.Field(ge=0, le=120)
    return Person


def instructor_client(url):
    import instructor
    import openai
    kind = person()
    for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
        client = instructor.from_openai(openai.OpenAI(base_url=f"{url}/v1", api_key="none"), mode=mode)
        made = client.chat.completions.create(model=NAME, messages=HELLO, response_model=kind, max_retries=0, max_tokens=300)
        assert isinstance(made, kind) and 0 <= made.age <= 120, (mode, made)


def outlines_client(url):
    import openai
    import outlines
    model = outlines.from_openai(openai.OpenAI(base_url=f"{url}/v1", api_key="none"), NAME)
    kind = person()
    assert kind.model_validate_json(model("A person.", kind, max_tokens=300)).age <= 120
    assert "".join(model.stream("Hello", max_tokens=8, temperature=0)) == model("Hello", max_tokens=8, temperature=0)


def guidance_client(url):
    import guidance
    model = guidance.models.OpenAI(NAME, echo=False, base_url=f"{url}/v1", api_key="none")
    kind = person()
    with guidance.user():
        model += "A person."
    with guidance.assistant():
        model += guidance.json("made", schema=kind, max_tokens=300)
    assert kind.model_validate_json(model["made"]).age <= 120


def llama_index_client(url):
    from llama_index.core.llms import ChatMessage
    from llama_index.llms.openai_like import OpenAILike
    model = OpenAILike(model=NAME, api_base=f"{url}/v1", api_key="none", is_chat_model=True, max_tokens=8, temperature=0,
                       context_window=4096)
    whole = model.chat([ChatMessage(role="user", content="Say hello.")]).message.content
    assert "".join(c.delta or "" for c in model.stream_chat([ChatMessage(role="user", content="Say hello.")])) == whole
    assert model.complete("Say hello.").text == whole


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


def llama_index_loop(url):
    import asyncio
    from llama_index.core.agent.workflow import FunctionAgent
    from llama_index.llms.openai_like import OpenAILike
    model = OpenAILike(model=NAME, api_base=f"{url}/v1", api_key="none", is_chat_model=True, is_function_calling_model=True,
                       temperature=0, max_tokens=300, context_window=4096)

    async def ask():
        return await FunctionAgent(tools=[get_weather], llm=model).run(ASKED[0]["content"])
    assert str(asyncio.run(ask())) == SAID


def langchain_others_loop(url):
    from langchain_anthropic import ChatAnthropic
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_ollama import ChatOllama
    asked = HumanMessage(ASKED[0]["content"])
    for model in (ChatAnthropic(model=NAME, base_url=url, api_key="none", max_tokens=300), ChatOllama(model=NAME, base_url=url)):
        model = model.bind_tools([TOOL])
        message = model.invoke([asked])
        assert message.tool_calls[0]["args"] == ARGUMENTS, message
        told = model.invoke([asked, message, ToolMessage("sunny", tool_call_id=message.tool_calls[0]["id"])])
        text = told.content if isinstance(told.content, str) else "".join(b.get("text", "") for b in told.content)
        assert text == SAID, told


def smolagents_loop(url):
    from smolagents import OpenAIModel, tool
    model = OpenAIModel(model_id=NAME, api_base=f"{url}/v1", api_key="none", temperature=0)

    @tool
    def get_weather(city: str) -> str:
        """The weather of a city.

        Args:
            city: its name
        """
        return "sunny"
    message = model.generate([{"role": "user", "content": [{"type": "text", "text": ASKED[0]["content"]}]}],
                             tools_to_call_from=[get_weather], tool_choice="auto")
    call = message.tool_calls[0].function
    given = json.loads(call.arguments) if isinstance(call.arguments, str) else call.arguments
    assert call.name == "get_weather" and given == ARGUMENTS, message


def haystack_loop(url):
    from haystack.components.generators.chat import OpenAIChatGenerator
    from haystack.dataclasses import ChatMessage
    from haystack.tools import Tool
    from haystack.utils import Secret
    tool = Tool(name="get_weather", description="d", parameters=PARAMETERS, function=get_weather)
    model = OpenAIChatGenerator(model=NAME, api_base_url=f"{url}/v1", api_key=Secret.from_token("none"), tools=[tool],
                                generation_kwargs={"temperature": 0})
    asked = ChatMessage.from_user(ASKED[0]["content"])
    reply = model.run([asked])["replies"][0]
    assert reply.tool_calls[0].arguments == ARGUMENTS, reply
    told = model.run([asked, reply, ChatMessage.from_tool("sunny", origin=reply.tool_calls[0])])["replies"][0]
    assert told.text == SAID, told


def dspy_loop(url):
    import dspy
    model = dspy.LM(f"openai/{NAME}", api_base=f"{url}/v1", api_key="none", temperature=0, max_tokens=300, cache=False)
    with dspy.context(lm=model):
        said = dspy.Predict("question -> answer")(question="What is the capital of France?").answer
    assert said == "Paris", said


CLIENTS = (openai_client, anthropic_client, ollama_client, langchain_client, litellm_client, instructor_client, outlines_client,
           guidance_client, llama_index_client)
LOOPS = (openai_chat_loop, openai_responses_loop, anthropic_loop, ollama_loop, litellm_loop, langchain_loop, langchain_others_loop,
         openai_agents_loop, pydantic_ai_loop, llama_index_loop, smolagents_loop, haystack_loop)
PROGRAM = "[[ ## answer ## ]]\nParis\n\n[[ ## completed ## ]]"  # as DSPy reads answers


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


def chosen(clients, only):
    return [c for c in clients if not only or c.__name__ in only]


def main():
    only = set(sys.argv[2:])  # names of functions, after a model or ""
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    run(sys.argv[1] if sys.argv[1:2] and sys.argv[1] else TINY, chosen(CLIENTS, only), counts)
    with tempfile.TemporaryDirectory() as top:
        marks = ("<think>", "</think>", "<tool_call>", "</tool_call>")
        run(scripted_model(f"{top}/model", TEMPLATE, SCRIPTS, marks), chosen(LOOPS, only), counts)
        run(scripted_model(f"{top}/dspy", "{% if messages %}<|says|>{% endif %}", {"says": PROGRAM}), chosen((dspy_loop,), only), counts)
    print(", ".join(f"{n} {name}" for name, n in counts.items()))
    return 1 if counts["failed"] else 0


sys.exit(main())
