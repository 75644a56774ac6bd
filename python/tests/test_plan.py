"""Plans, which need no weights."""

import json

import pytest

import quipu


def test_a_plan_is_objects():
    plan = quipu.plan("synthetic:tiny", tokens=8, context=64, sessions=2)
    assert plan.context == 64 and plan.largest_context >= 64
    assert [step.name for step in plan.steps][:2] == ["setup", "embedding"]
    assert "linear" in {operator for step in plan.steps for operator in step.operators}
    tokens = plan.tensors[0]
    assert (tokens.name, tokens.shape, tokens.symbols) == ("tokens", (8,), ("n_tokens",))
    names = {tensor.name for tensor in plan.tensors}
    assert all(set(step.cells) <= names for step in plan.steps)
    assert plan.bytes["total"] == sum(n for part, n in plan.bytes.items() if part != "total")
    assert "embedding" in str(plan)


def test_activations_in_bf16_take_half():
    arenas = [quipu.plan("synthetic:tiny", tokens=64, context=64, act_type=kind).bytes["arena"]
              for kind in ("F32", "BF16")]
    assert arenas[1] < arenas[0]


def test_sizes_are_those_that_were_asked_for():
    small, large = (quipu.plan("synthetic:tiny", context=n, kv_type="F32") for n in (64, 128))
    assert large.bytes["kv_cache"] == 2 * small.bytes["kv_cache"]
    assert quipu.plan("synthetic:tiny", memory=4 << 20).largest_context < small.largest_context


def test_config_json_is_enough(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({
        "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100}))
    assert len([s for s in quipu.plan(tmp_path).steps if s.layer == 1]) > 0


def test_what_is_wrong_is_said():
    with pytest.raises(quipu.QuipuError, match="Q9"):
        quipu.plan("synthetic:tiny", kv_type="Q9")
    with pytest.raises(TypeError, match="no option 'token'"):
        quipu.plan("synthetic:tiny", token=1)
    with pytest.raises(quipu.QuipuError, match="tokens must be 1 or more"):
        quipu.plan("synthetic:tiny", tokens=-1)
