"""Tensors of passes, schedules and times as numpy arrays."""

from pathlib import Path

import numpy as np
import pytest

import quipu

TEXT = str(Path(__file__).resolve().parents[2] / "tests/golden/models/llama-text.gguf")


def test_tensors_are_arrays():
    seen = []
    with quipu.Model(TEXT, context=64, device="cpu", tensors="layers.1.*,*.logits", on_tensor=seen.append) as model:
        logits = model.session().eval([5, 9, 14])
        named = {tensor.name: tensor for tensor in seen}
        assert named["layers.1.attn_qkv.attn"].data.shape == (3, 40)
        assert all(tensor.pass_ == 0 and tensor.dtype == "F32" for tensor in seen)
        assert np.array_equal(named["lm_head.logits"].data[-1], logits)


def test_what_a_receiver_raises_ends_the_call():
    def refuse(tensor):
        raise RuntimeError("enough")

    with quipu.Model(TEXT, context=64, device="cpu", on_tensor=refuse) as model:
        with pytest.raises(RuntimeError, match="enough"):
            model.session().eval([5, 9])
        with pytest.raises(RuntimeError, match="enough"):
            model.decode([model.session()], [5], 1)
    with pytest.raises(quipu.QuipuError, match="no tensor of the pass is called q"):
        quipu.Model(TEXT, context=64, device="cpu", tensors="q", on_tensor=refuse)


def test_a_schedule_that_python_made_runs():
    with quipu.Model(TEXT, context=64, threads=2, device="cpu") as model:
        before = model.session().eval([5, 9, 14])
        schedule = model.schedule()
        assert schedule.workers == 2 and schedule.instructions.dtype is quipu.schedule.INSTRUCTION
        assert [int(n) for n in schedule.queue(0)["step"]] == sorted(schedule.queue(0)["step"])
        # All of worker 1's work goes to worker 0, in the order of the steps.
        queue = np.concatenate([schedule.queue(0), schedule.queue(1)])
        queue = queue[np.argsort(queue["step"], kind="stable")]
        schedule.instructions = np.zeros((2, len(queue)), schedule.instructions.dtype)
        schedule.instructions[0], schedule.lengths[:] = queue, (len(queue), 0)
        model.reschedule(schedule)
        assert np.array_equal(model.session().eval([5, 9, 14]), before)
        assert model.schedule().lengths.tolist() == [len(queue), 0]
        # One that is not sound is refused, and the old one stays.
        schedule.instructions[0, 1]["waits"][0]["needed"] = 0
        schedule.instructions[0, :2] = schedule.instructions[0, 1::-1]
        with pytest.raises(quipu.QuipuError):
            model.reschedule(schedule)
        assert np.array_equal(model.session().eval([5, 9, 14]), before)


def test_schedules_in_files(tmp_path):
    with quipu.Model(TEXT, context=64, threads=2, device="cpu") as model:
        schedule = model.schedule()
        schedule.save(tmp_path / "queues")
        again = quipu.Schedule.load(tmp_path / "queues")
        assert again.to_bytes() == schedule.to_bytes() and again.fingerprint == schedule.fingerprint
        model.reschedule(file=str(tmp_path / "queues"))
    with pytest.raises(quipu.QuipuError, match="not a schedule"):
        quipu.Schedule(b"x")
    with pytest.raises(quipu.QuipuError, match="would have"):
        quipu.Schedule(schedule.to_bytes()[:-4])


def test_times_of_instructions():
    with quipu.Model(TEXT, context=64, threads=2, device="cpu") as model:
        with model.trace() as trace:
            model.session().eval([5, 9, 14])
            model.session().eval([5])
            timings = trace.timings()
        schedule = model.schedule()
    assert timings.shape == (2, *schedule.instructions.shape)
    for worker in range(2):
        rows = timings[:, worker, :schedule.lengths[worker]]
        assert (rows["wait"] <= rows["work"]).all() and (rows["work"] <= rows["end"]).all()
        assert (timings[:, worker, schedule.lengths[worker]:]["end"] == -1).all()
