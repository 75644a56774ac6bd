#!/usr/bin/env python3
"""What a fleet asks of its workers: readiness, the names of metrics, what a server is. Ends with "N passed, N failed"."""
import ctypes
import re
import socket
import struct
import sys
import time

from server_process import Server, run_tests, test


def metrics(s):
    lines = s.get("/metrics")[1].decode().splitlines()
    kinds = dict(line.split()[2:4] for line in lines if line.startswith("# TYPE"))
    return kinds, {k: float(v) for k, v in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}


# What the boards of vLLM's repository show (examples/observability/), without KV connectors, images and data parallelism.
VLLM_BOARDS = set("""vllm:cache_config_info vllm:e2e_request_latency_seconds vllm:engine_sleep_state vllm:generation_tokens_total
vllm:inter_token_latency_seconds vllm:iteration_tokens_total vllm:kv_cache_usage_perc vllm:num_preemptions_total vllm:num_requests_running
vllm:num_requests_waiting vllm:num_requests_waiting_by_reason vllm:prefix_cache_hits_total vllm:prefix_cache_queries_total
vllm:prompt_tokens_cached_total vllm:prompt_tokens_total vllm:request_decode_time_seconds vllm:request_generation_tokens
vllm:request_inference_time_seconds vllm:request_max_num_generation_tokens vllm:request_params_max_tokens vllm:request_params_n
vllm:request_prefill_kv_computed_tokens vllm:request_prefill_time_seconds vllm:request_prompt_tokens vllm:request_queue_time_seconds
vllm:request_success_total vllm:request_time_per_output_token_seconds vllm:spec_decode_num_accepted_tokens_per_pos_total
vllm:spec_decode_num_accepted_tokens_total vllm:spec_decode_num_draft_tokens_total vllm:spec_decode_num_drafts_total
vllm:time_to_first_token_seconds http_requests_total process_resident_memory_bytes""".split())


@test
def metrics_have_the_names_of_other_engines(s):
    for body, status in (({"prompt": "a b c", "max_tokens": 3, "ignore_eos": True}, 200), ({"prompt": "a", "temperature": -1}, 400)):
        assert s.post("/v1/completions", body)[0] == status
    kinds, values = metrics(s)
    own = {k.split("{")[0].split(":")[1] for k in values if k.startswith("quipu:")}
    label = 'model_name="llama-text",engine="0"'
    for name in {k for k in values if k.startswith("vllm:")}:
        assert label in name, name
        assert name.split("{")[0].split(":")[1] in own | {"cache_config_info", "engine_sleep_state", "num_requests_waiting_by_reason"}, name
    for name in ("num_requests_waiting", "num_requests_running", "kv_cache_usage_perc", "prompt_tokens_total"):
        assert values[f"vllm:{name}{{{label}}}"] == values[f'quipu:{name}{{model_name="llama-text"}}'], name
    assert values[f'vllm:request_success_total{{{label},finished_reason="length"}}'] >= 1
    sizes = next(k for k in values if k.startswith("vllm:cache_config_info"))
    assert 'block_size="16"' in sizes and re.search(r'num_gpu_blocks="[1-9]', sizes), sizes
    assert values["llamacpp:tokens_predicted_total"] >= 3 and kinds["llamacpp:tokens_predicted_total"] == "counter"
    for part in ("prefill", "decode"):
        assert kinds[f"vllm:request_{part}_time_seconds"] == "histogram"
        assert values[f"vllm:request_{part}_time_seconds_sum{{{label}}}"] > 0
    assert not VLLM_BOARDS - set(kinds), VLLM_BOARDS - set(kinds)
    assert values[f"vllm:request_time_per_output_token_seconds_count{{{label}}}"] >= 1
    assert values[f"vllm:request_max_num_generation_tokens_sum{{{label}}}"] >= 3
    assert values[f'vllm:engine_sleep_state{{{label},sleep_state="awake"}}'] == 1
    replies = 'http_requests_total{handler="/v1/completions",method="POST",status="%dxx"}'
    assert values[replies % 2] >= 1 and values[replies % 4] >= 1, values
    with Server("--own-metrics") as other:
        assert not [k for k in metrics(other)[1] if k.startswith(("vllm:", "llamacpp:"))]


@test
def a_server_says_what_it_is(s):
    info = s.get("/server_info")[1]
    assert info == s.get("/get_server_info")[1] and info["page_size"] == 16 and info["max_running_requests"] == 8, info
    assert info["max_total_num_tokens"] == info["page_size"] * info["num_pages"] and info["model_path"].endswith(".gguf"), info
    model = s.get("/model_info")[1]
    assert model == s.get("/get_model_info")[1] and model["is_generation"] and model["vocab_size"] == 288, model
    assert model["max_context_length"] == info["max_model_len"] and model["served_model_name"] == "llama-text", model
    assert s.get("/load")[1] == {"server_load": 0} and s.get("/version")[1]["version"] == info["version"]


@test
def a_server_that_ends_is_first_not_ready(_):
    with Server("--drain-delay", "600") as s:
        assert s.get("/ready")[0] == 200
        s.process.terminate()
        while s.get("/ready")[0] != 503:
            time.sleep(0.01)
        assert s.get("/health")[0] == 200
        assert s.post("/v1/completions", {"prompt": "a", "max_tokens": 2})[0] == 200
        s.process.terminate()  # ends the delay, and with nothing under way the server
        assert s.process.wait(60) == 0


@test
def a_delay_ends_by_itself(_):
    with Server("--drain-delay", "0.1") as s:
        s.process.terminate()
        assert s.process.wait(60) == 0
    with Server() as s:
        assert s.get("/ready")[0] == 200


# ---- Events of the cache, over ZMQ ----

def unpack(data):
    """One value of msgpack, of those kinds that events have."""
    def one(at):
        kind = data[at]
        fixed = {0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q"}
        if kind < 0x80:
            return kind, at + 1
        if kind in fixed:
            size = struct.calcsize(fixed[kind])
            return struct.unpack(fixed[kind], data[at + 1:at + 1 + size])[0], at + 1 + size
        if kind == 0xC0:
            return None, at + 1
        if 0xA0 <= kind < 0xC0:
            return data[at + 1:at + 1 + (kind & 31)].decode(), at + 1 + (kind & 31)
        assert 0x90 <= kind < 0xA0 or kind == 0xDD, hex(kind)
        n, at = (kind & 15, at + 1) if kind != 0xDD else (struct.unpack(">I", data[at + 1:at + 5])[0], at + 5)
        values = []
        for _ in range(n):
            value, at = one(at)
            values.append(value)
        return values, at
    value, end = one(0)
    assert end == len(data), (end, len(data))
    return value


class Socket:
    """A socket of libzmq; `kind`: 2 SUB, 5 DEALER."""

    def __init__(self, library, kind, address):
        self.z = library
        for name in ("zmq_ctx_new", "zmq_socket"):
            getattr(library, name).restype = ctypes.c_void_p
        self.context = ctypes.c_void_p(library.zmq_ctx_new())
        self.socket = ctypes.c_void_p(library.zmq_socket(self.context, kind))
        wait = ctypes.c_int(30000)
        library.zmq_setsockopt(self.socket, 27, ctypes.byref(wait), ctypes.c_size_t(4))  # milliseconds to receive
        if kind == 2:
            library.zmq_setsockopt(self.socket, 6, b"", ctypes.c_size_t(0))
        assert library.zmq_connect(self.socket, address.encode()) == 0

    def send(self, *parts):
        for i, part in enumerate(parts):
            self.z.zmq_send(self.socket, part, ctypes.c_size_t(len(part)), 2 if i + 1 < len(parts) else 0)

    def receive(self):
        parts, more, size = [], ctypes.c_int(1), ctypes.c_size_t(4)
        while more.value:
            room = ctypes.create_string_buffer(1 << 16)
            n = self.z.zmq_recv(self.socket, room, ctypes.c_size_t(1 << 16), 0)
            assert n >= 0, "nothing came"
            parts.append(room.raw[:n])
            self.z.zmq_getsockopt(self.socket, 13, ctypes.byref(more), ctypes.byref(size))
        return parts


def apply(events, held):
    """What a router knows after the events: tokens by the hash of each block."""
    for event in events:
        if event[0] == "BlockStored":
            _, hashes, parent, tokens, size, lora, medium = event
            assert len(tokens) == size * len(hashes) and lora is None and medium == "CPU", event
            before = held[parent] if parent is not None else []
            for i, name in enumerate(hashes):
                before = before + tokens[i * size:(i + 1) * size]
                held[name] = before
        else:
            assert event[0] == "BlockRemoved" and event[2] == "CPU", event
            for name in event[1]:
                del held[name]


@test
def changes_of_the_cache_are_published(_):
    try:
        library = ctypes.CDLL("libzmq.so.5")
    except OSError:
        print("skipped: changes of the cache: libzmq.so.5 is not installed")
        return
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        addresses = [f"tcp://127.0.0.1:{free.getsockname()[1]}" for free in (one, other)]
    with Server("--kv-events", addresses[0], "--kv-events-replay", addresses[1], "--kv-events-topic", "kv@a@m", "--pages", "40",
                "--parallel", "1") as s:
        subscriber = Socket(library, 2, addresses[0])
        again = Socket(library, 5, addresses[1])
        held, prompts = {}, [list(range(5 + i, 105 + i)) for i in range(12)]
        for prompt in prompts:  # more than the cache holds
            assert s.post("/v1/completions", {"prompt": prompt, "max_tokens": 1})[0] == 200
        again.send(b"", (0).to_bytes(8, "big"))
        numbers = []
        while True:
            empty, number, payload = again.receive()
            assert empty == b""
            if number == b"\xff" * 8:
                assert payload == b""
                break
            numbers.append(int.from_bytes(number, "big"))
            moment, events, rank = unpack(payload)
            assert rank == 0 and abs(moment - time.time()) < 600
            apply(events, held)
        assert numbers == list(range(len(numbers))) and numbers, numbers
        rows = s.get("/engine")[1]
        assert len(held) <= 40 and prompts[-1][:96] in held.values() and prompts[0][:96] not in held.values(), (len(held), rows)
        assert s.post("/v1/completions", {"prompt": [7] * 40, "max_tokens": 1})[0] == 200
        while [7] * 32 not in held.values():  # its two pages may come in one message or in two
            topic, number, payload = subscriber.receive()
            assert topic == b"kv@a@m"
            if int.from_bytes(number, "big") >= len(numbers):
                apply(unpack(payload)[1], held)
    s = Server("--kv-events", "tcp://127.0.0.1:x", wait=False)
    assert s.process.wait(60) and "tcp://127.0.0.1:x" in s.process.stderr.read()


sys.exit(run_tests())
