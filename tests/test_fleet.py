#!/usr/bin/env python3
"""What a fleet asks of its workers: readiness, the names of metrics, what a server is. Ends with "N passed, N failed"."""
import re
import sys
import time

from server_process import Server, run_tests, test


def metrics(s):
    lines = s.get("/metrics")[1].decode().splitlines()
    kinds = dict(line.split()[2:4] for line in lines if line.startswith("# TYPE"))
    return kinds, {k: float(v) for k, v in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}


@test
def metrics_have_the_names_of_other_engines(s):
    for body, status in (({"prompt": "a b c", "max_tokens": 3, "ignore_eos": True}, 200), ({"prompt": "a", "temperature": -1}, 400)):
        assert s.post("/v1/completions", body)[0] == status
    kinds, values = metrics(s)
    own = {k.split("{")[0].split(":")[1] for k in values if k.startswith("quipu:")}
    label = 'model_name="llama-text",engine="0"'
    for name in {k for k in values if k.startswith("vllm:")}:
        assert label in name, name
        assert name.split("{")[0].split(":")[1] in own | {"cache_config_info"}, name
    for name in ("num_requests_waiting", "num_requests_running", "kv_cache_usage_perc", "prompt_tokens_total"):
        assert values[f"vllm:{name}{{{label}}}"] == values[f'quipu:{name}{{model_name="llama-text"}}'], name
    assert values[f'vllm:request_success_total{{{label},finished_reason="length"}}'] >= 1
    sizes = next(k for k in values if k.startswith("vllm:cache_config_info"))
    assert 'block_size="16"' in sizes and re.search(r'num_gpu_blocks="[1-9]', sizes), sizes
    assert values["llamacpp:tokens_predicted_total"] >= 3 and kinds["llamacpp:tokens_predicted_total"] == "counter"
    for part in ("prefill", "decode"):
        assert kinds[f"vllm:request_{part}_time_seconds"] == "histogram"
        assert values[f"vllm:request_{part}_time_seconds_sum{{{label}}}"] > 0
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


sys.exit(run_tests())
