"""Runs a function of a FlashInfer-Bench data set on tensors in shared memory: a reference or a solution.

    function.py SOCKET MEMORY PLAN.json

`quipu ops import` starts it with two open descriptors. Over the socket come questions (number, what, n), and
answers (number, code, 0) go back; the memory holds a text and the arguments, where the plan says. Tensors are
torch.Tensor where Python has PyTorch, numpy.ndarray where it has only NumPy, else memoryview with the tensor's
format and shape.
"""
import importlib
import json
import mmap
import os
import struct
import sys
import traceback
from pathlib import Path

MESSAGE = struct.Struct("=QII")
TEXT_BYTES = 4096
LOAD, REFRESH, RUN, STORE = range(4)  # questions
DONE, RAISED, NOT_LOADED, WRONG_SHAPE, WRONG_TYPE = range(5)  # codes of answers


class Wrong(Exception):
    """A result of another shape or type than the definition's."""

    def __init__(self, code, text):
        super().__init__(text)
        self.code = code


def compare(spec, shape, dtype):
    if list(shape) != spec["shape"]:
        raise Wrong(WRONG_SHAPE, f"{spec['name']} has the shape {list(shape)}, expected {spec['shape']}")
    if dtype != spec["dtype"]:
        raise Wrong(WRONG_TYPE, f"{spec['name']} is {dtype}, expected {spec['dtype']}")


# Types whose name differs in PyTorch: an element of the latter is a pair.
TORCH_NAMES = {"float4_e2m1": "float4_e2m1fn_x2"}
OWN_NAMES = {name: own for own, name in TORCH_NAMES.items()}


class Torch:
    """On a GPU the arguments have a copy of the whole shared memory, and what lies between the tensors comes back
    with them: the judge looks at it too."""

    def __init__(self, plan, memory):
        import torch
        self.torch, self.device = torch, plan["device"]
        if self.device == "cpu":
            torch.set_num_threads(plan["threads"])
        self.shared = torch.frombuffer(memory, dtype=torch.uint8, offset=TEXT_BYTES)
        self.copy = self.shared if self.device == "cpu" else self.shared.to(self.device)

    def of(self, memory, spec):
        dtype = getattr(self.torch, TORCH_NAMES.get(spec["dtype"], spec["dtype"]))
        if 0 in spec["shape"]:
            return self.torch.empty(spec["shape"], dtype=dtype, device=memory.device)
        first = spec["offset"] - TEXT_BYTES
        return memory[first:first + spec["elements"] * dtype.itemsize].view(dtype).reshape(spec["shape"])

    def view(self, spec):
        return self.of(self.shared, spec)

    def place(self, spec):
        return self.of(self.copy, spec)

    def refresh(self):
        if self.device != "cpu":
            self.copy.copy_(self.shared)

    def collect(self):
        if self.device != "cpu":
            self.shared.copy_(self.copy)

    def call(self, function, arguments, n):
        with self.torch.no_grad():
            for _ in range(n):
                results = function(*arguments)
        if self.device != "cpu":
            self.torch.cuda.synchronize()
        return results

    def store(self, value, view, spec):
        if isinstance(value, memoryview):
            compare(spec, value.shape, NAMES.get(value.format, value.format))
            value = self.torch.frombuffer(bytearray(value), dtype=view.dtype).reshape(view.shape)
        elif not self.torch.is_tensor(value):
            value = self.torch.as_tensor(value, dtype=None if hasattr(value, "shape") else view.dtype)
        dtype = str(value.dtype).removeprefix("torch.")
        compare(spec, value.shape, OWN_NAMES.get(dtype, dtype))
        if spec["dtype"] in TORCH_NAMES:
            view, value = view.view(self.torch.uint8), value.contiguous().view(self.torch.uint8)
        view.copy_(value)


# Formats of Python's own views; a type without one, such as bfloat16, needs PyTorch.
FORMATS = {"float32": "f", "float16": "e", "int64": "q", "int32": "i", "int16": "h", "int8": "b", "bool": "?"}
NAMES = {code: name for name, code in FORMATS.items()}


def need_format(spec):
    if spec["dtype"] not in FORMATS:
        raise ImportError(f"tensors of {spec['dtype']} need PyTorch, which {sys.executable} does not have")


class Numpy:
    def __init__(self, plan, memory):
        import numpy
        self.numpy, self.memory = numpy, memory

    def view(self, spec):
        need_format(spec)
        dtype = self.numpy.dtype(spec["dtype"])
        flat = self.numpy.frombuffer(self.memory, dtype, spec["elements"], spec["offset"])
        return flat.reshape(spec["shape"])

    def place(self, spec):
        return self.view(spec)

    def refresh(self):
        pass

    def collect(self):
        pass

    def call(self, function, arguments, n):
        for _ in range(n):
            results = function(*arguments)
        return results

    def store(self, value, view, spec):
        value = self.numpy.asarray(value, dtype=None if hasattr(value, "shape") else view.dtype)
        compare(spec, value.shape, str(value.dtype))
        view[...] = value


class Plain(Numpy):
    def __init__(self, plan, memory):
        self.memory = memory

    def view(self, spec):
        need_format(spec)
        size = struct.calcsize(FORMATS[spec["dtype"]])
        flat = memoryview(self.memory)[spec["offset"]:spec["offset"] + spec["elements"] * size]
        return flat.cast(FORMATS[spec["dtype"]], spec["shape"])

    def store(self, value, view, spec):
        value = memoryview(value)
        compare(spec, value.shape, NAMES.get(value.format, value.format))
        view.cast("B")[:] = value.cast("B")


def toolkit(plan, memory):
    for kind in (Torch, Numpy):
        try:
            return kind(plan, memory)
        except ImportError:
            pass
    return Plain(plan, memory)


def compiled(plan, folder):
    """The function of C++ or CUDA sources, built by the package that their binding names."""
    sources = [str(folder / path) for path in plan["sources"]]
    cpp = [path for path in sources if Path(path).suffix in (".c", ".cc", ".cpp", ".cxx")]
    cuda = [path for path in sources if Path(path).suffix == ".cu"]
    if plan["binding"] == "torch":
        from torch.utils.cpp_extension import load
        return load(name="solution", sources=cpp + cuda, extra_include_paths=[str(folder)],
                    with_cuda=plan["language"] == "cuda", build_directory=str(folder))
    import tvm_ffi.cpp
    library = tvm_ffi.cpp.build(name="solution", cpp_files=cpp, cuda_files=cuda,
                                extra_include_paths=[str(folder)], build_directory=str(folder))
    return tvm_ffi.load_module(str(library))


def load(plan):
    folder = Path(plan["folder"])
    if plan["language"] in ("cpp", "cuda"):
        module = compiled(plan, folder)
    else:
        sys.path[:0] = [str(folder.parent), str(folder)]
        module = importlib.import_module(".".join([folder.name, *Path(plan["file"]).with_suffix("").parts]))
    return getattr(module, plan["function"])


class Call:
    """The function with its arguments."""

    def __init__(self, plan, memory):
        self.plan = plan
        kit = self.kit = toolkit(plan, memory)
        specs = [spec for spec in plan["inputs"] if "offset" in spec] + plan["outputs"]
        self.views = {spec["name"]: kit.view(spec) for spec in specs}
        self.placed = {spec["name"]: kit.place(spec) for spec in specs}
        self.function = load(plan)
        self.arguments = [self.placed[spec["name"]] if "offset" in spec else spec["value"]
                          for spec in plan["inputs"]]
        if plan["fills_outputs"]:
            self.arguments += [self.placed[spec["name"]] for spec in plan["outputs"]]

    def refresh(self, n):
        self.kit.refresh()

    def run(self, n):
        self.results = self.kit.call(self.function, self.arguments, n)

    def store(self, n):
        specs, results = self.plan["outputs"], self.results
        self.kit.collect()
        if self.plan["fills_outputs"]:
            results = [self.views[spec["name"]] for spec in specs]
        elif isinstance(results, dict):
            results = [results.get(spec["name"]) for spec in specs]
        elif not isinstance(results, (tuple, list)) or len(specs) == 1 != len(results):
            results = [results]
        if len(results) != len(specs):
            raise Wrong(WRONG_SHAPE, f"it returned {len(results)} results, expected {len(specs)}")
        for spec, result in zip(specs, results):
            view = self.views[spec["name"]]
            if result is not view:
                self.kit.store(result, view, spec)


def answer(call, plan, memory, what, n):
    """Does what is asked; (call, code)."""
    try:
        if what == LOAD:
            return Call(plan, memory), DONE
        {REFRESH: Call.refresh, RUN: Call.run, STORE: Call.store}[what](call, n)
        return call, DONE
    except Wrong as wrong:
        text, code = str(wrong), wrong.code
    except (Exception, SystemExit) as error:
        traceback.print_exc()
        text, code = traceback.format_exception_only(type(error), error)[-1].strip(), RAISED
        if what == LOAD:
            code = NOT_LOADED
    memory[:TEXT_BYTES] = text.encode("utf-8", "replace")[:TEXT_BYTES - 1].ljust(TEXT_BYTES, b"\0")
    return call, code


def main():
    socket, shared = int(sys.argv[1]), int(sys.argv[2])
    plan = json.loads(Path(sys.argv[3]).read_text(encoding="utf-8"))
    memory = mmap.mmap(shared, 0)
    call = None
    while len(message := os.read(socket, MESSAGE.size)) == MESSAGE.size:
        number, what, n = MESSAGE.unpack(message)
        call, code = answer(call, plan, memory, what, n)
        sys.stdout.flush()
        sys.stderr.flush()
        os.write(socket, MESSAGE.pack(number, code, 0))
    os._exit(0)


main()
