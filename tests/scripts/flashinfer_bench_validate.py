#!/usr/bin/env python3
"""Validates a data set written by `quipu ops export`, and traces printed by `quipu ops import`, with
the flashinfer-bench package: flashinfer_bench_validate.py FOLDER [TRACES.jsonl...]

Every definition, workload and trace must be read by the package's own models, every reference must
run on its smallest workload and give the declared shapes, and the constraints must hold for the
index tensors. Exits with 77 where the package is missing.
"""
import json
import sys
from pathlib import Path


try:
    import torch
    from flashinfer_bench.data import Definition, Solution, Trace, TraceSet
    from safetensors.torch import load_file
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32,
          "int32": torch.int32}


def make_input(root, spec, source, sizes):
    if source.type == "scalar":
        return source.value
    shape = [sizes[axis] for axis in spec.shape]
    if source.type == "safetensors":
        tensor = load_file(str(root / source.path))[source.tensor_key]
        assert list(tensor.shape) == shape, (source.tensor_key, tensor.shape, shape)
        assert tensor.dtype == DTYPES[spec.dtype.value]
        return tensor
    return torch.randn(shape).to(DTYPES[spec.dtype.value])


def run_reference(root, definition, workload):
    sizes = {name: getattr(axis, "value", None) for name, axis in definition.axes.items()}
    sizes.update(workload.axes)
    assert None not in sizes.values(), f"{definition.name}: an axis without a size"
    inputs = {name: make_input(root, spec, workload.inputs[name], sizes)
              for name, spec in definition.inputs.items()}
    for constraint in definition.constraints:
        assert eval(constraint, {**sizes, **inputs}), f"{definition.name}: {constraint}"
    scope = {}
    exec(definition.reference, scope)
    outputs = scope["run"](**inputs)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    assert len(outputs) == len(definition.outputs)
    for output, (name, spec) in zip(outputs, definition.outputs.items()):
        expected = [sizes[axis] for axis in spec.shape]
        assert list(output.shape) == expected, (definition.name, name, output.shape)
        assert output.dtype == DTYPES[spec.dtype.value], (definition.name, name, output.dtype)
        assert torch.isfinite(output).any()


def main():
    root = Path(sys.argv[1])
    data = TraceSet.from_path(str(root))
    assert data.definitions, "no definitions"
    for name, definition in data.definitions.items():
        Definition.model_validate_json(definition.model_dump_json())
        workloads = data.workloads[name]
        assert workloads and all(trace.is_workload_trace() for trace in workloads), name
        assert len({trace.workload.uuid for trace in workloads}) == len(workloads)
        run_reference(root, definition, workloads[0].workload)
        print(f"{name}: {len(workloads)} workloads")
    for path in sys.argv[2:]:
        for line in Path(path).read_text().splitlines():
            trace = Trace.model_validate(json.loads(line))
            assert trace.definition in data.definitions
            print(f"trace of {trace.solution}: {trace.evaluation.status.value}")


main()
