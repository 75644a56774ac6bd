"""FlashInfer-Bench's data sets on a GPU: solutions in PyTorch, Triton and CUDA, right, wrong and hostile ones.

QUIPU_TEST_PYTHON names a Python with PyTorch, Triton and tvm_ffi, by default python3; the test is skipped where that
finds no GPU. `test_exchange_cuda.py FOLDER` only writes the data set there.
"""
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from test_exchange import QUIPU, check, tensor, write

PYTHON = os.environ.get("QUIPU_TEST_PYTHON", "python3")
REFERENCE = '''
import torch


def run(x):
    """silu(gate) * up, where a row of x is gate, then up."""
    gate, up = x.float().chunk(2, dim=-1)
    return (torch.nn.functional.silu(gate) * up).to(x.dtype)
'''
TORCH = '''
import torch


def run(x, out):
    gate, up = x.chunk(2, dim=-1)
    torch.mul(torch.nn.functional.silu(gate.float()), up, out=out) if out.dtype == torch.float32 else out.copy_(
        torch.nn.functional.silu(gate.float()) * up.float())
'''
TRITON = '''
import triton
import triton.language as tl


@triton.jit
def silu(x, out, m, SIZE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, SIZE)
    gate = tl.load(x + row * 2 * m + at, at < m, 0).to(tl.float32)
    up = tl.load(x + row * 2 * m + m + at, at < m, 0).to(tl.float32)
    tl.store(out + row * m + at, gate * tl.sigmoid(gate) * up, at < m)
    BAD


def run(x, out):
    m = out.shape[1]
    silu[(x.shape[0],)](x, out, m, SIZE=triton.next_power_of_2(m))
'''
KERNEL = '''
#include <cuda_bf16.h>
#include <cstdint>

__global__ void silu(const __nv_bfloat16 *x, __nv_bfloat16 *out, int64_t rows, int64_t m)
{
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < rows * m; i += gridDim.x * (int64_t)blockDim.x) {
        int64_t row = i / m, column = i % m;
        float gate = __bfloat162float(x[row * 2 * m + column]), up = __bfloat162float(x[row * 2 * m + m + column]);
        out[i] = __float2bfloat16_rn(gate / (1 + expf(-gate)) * up);
    }
}
'''
TVM_FFI = KERNEL + '''
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

void run(tvm::ffi::TensorView x, tvm::ffi::TensorView out)
{
    auto stream = (cudaStream_t)TVMFFIEnvGetStream(x.device().device_type, x.device().device_id);
    silu<<<1024, 256, 0, stream>>>((const __nv_bfloat16 *)x.data_ptr(), (__nv_bfloat16 *)out.data_ptr(), out.size(0),
                                   out.size(1));
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run);
'''
BINDING = KERNEL + '''
#include <ATen/cuda/CUDAContext.h>
#include <torch/extension.h>

void run(torch::Tensor x, torch::Tensor out)
{
    silu<<<1024, 256, 0, at::cuda::getCurrentCUDAStream()>>>((const __nv_bfloat16 *)x.data_ptr(),
                                                            (__nv_bfloat16 *)out.data_ptr(), out.size(0), out.size(1));
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) { module.def("run", &run); }
'''


# Definitions of pairs of 4-bit numbers, and of tokens drawn from 128,256.
PAIRS = "import torch\ndef run(x, out):\n    out.view(torch.uint8).copy_(x.view(torch.uint8))\n"
DRAWN = "import torch\ndef run(probs, samples):\n    samples.copy_(torch.multinomial(probs, 1).flatten())\n"
OTHERS = {
    "pairs": ("cast", {"rows": 33}, {"x": tensor("float4_e2m1", "rows", "m")}, {"out": tensor("float4_e2m1", "rows", "m")},
              "import torch\ndef run(x):\n    return x.view(torch.uint8).clone().view(x.dtype)\n"),
    "draw": ("sampling", {"rows": 16}, {"probs": tensor("float32", "rows", "m")}, {"samples": tensor("int64", "rows")},
             "import torch\ndef run(probs):\n    return torch.multinomial(probs, 1).flatten()\n"),
}
DEFINITIONS = {"pairs": "pairs", "odd": "pairs", "drawn": "draw"}


def bad(statement):
    return TRITON.replace("BAD", statement)


# name -> (language, binding, entry, source, status, part of the log, seconds)
SOLUTIONS = {
    "torch": ("python", None, "main.py::run", TORCH, "PASSED", "", 90),
    "triton": ("triton", None, "main.py::run", bad(""), "PASSED", "", 90),
    "tvm": ("cuda", "tvm-ffi", "main.cu::run", TVM_FFI, "PASSED", "", 150),
    "binding": ("cuda", "torch", "main.cu::run", BINDING, "PASSED", "", 150),
    "wrong": ("triton", None, "main.py::run", bad("").replace("* up, at", "+ up, at"), "INCORRECT_NUMERICAL",
              "elements are wrong", 90),
    "lazy": ("python", None, "main.py::run", "def run(x, out):\n    pass\n", "INCORRECT_NUMERICAL", "out: ", 90),
    "asleep": ("python", None, "main.py::run", "import torch\ndef run(x, out):\n    torch.cuda._sleep(1 << 60)\n",
               "TIMEOUT", "not done after", 25),
    "endless": ("triton", None, "main.py::run", bad("while tl.load(x, volatile=True) == tl.load(x, volatile=True):\n"
                                                    "        tl.store(out, 0.0)"), "TIMEOUT", "not done after", 40),
    "far": ("triton", None, "main.py::run", bad("tl.store(out + (tl.program_id(0).to(tl.int64) + 1) * 1000000000000, 0.0)"),
            "RUNTIME_ERROR", "illegal memory access", 90),
    "overrunning": ("triton", None, "main.py::run", bad("tl.store(out + tl.num_programs(0) * m, 1.0)"), "RUNTIME_ERROR",
                    'behind the end of "out"', 90),
    "changing": ("triton", None, "main.py::run", bad("tl.store(x, 3.0)"), "RUNTIME_ERROR", 'changed its input "x"', 90),
    "pairs": ("python", None, "main.py::run", PAIRS, "PASSED", "", 90),
    "odd": ("python", None, "main.py::run", PAIRS.replace(")\n", " ^ 16)\n"), "INCORRECT_NUMERICAL", "elements are wrong",
            90),
    "drawn": ("python", None, "main.py::run", DRAWN, "PASSED", "", 90),
    "broken": ("cuda", "tvm-ffi", "main.cu::run", "__global__ void run(", "COMPILE_ERROR", "", 150),
}


def write_all(root):
    write(root / "definitions/activation/silu_halves.json", json.dumps({
        "name": "silu_halves", "op_type": "activation", "description": "silu(gate) * up.", "tags": [],
        "axes": {"rows": {"type": "var"}, "width": {"type": "const", "value": 8192},
                 "m": {"type": "const", "value": 4096}},
        "inputs": {"x": tensor("bfloat16", "rows", "width")}, "outputs": {"out": tensor("bfloat16", "rows", "m")},
        "constraints": ["width == 2 * m"], "reference": REFERENCE}))
    write(root / "workloads/activation/silu_halves.jsonl", json.dumps({
        "definition": "silu_halves", "solution": None, "evaluation": None,
        "workload": {"uuid": "rows-511", "axes": {"rows": 511}, "inputs": {"x": {"type": "random"}}}}) + "\n")
    for name, (kind, sizes, inputs, outputs, reference) in OTHERS.items():
        write(root / f"definitions/{kind}/{name}.json", json.dumps({
            "name": name, "op_type": kind, "description": name, "tags": [],
            "axes": {"rows": {"type": "var"}, "m": {"type": "const", "value": 128256 if kind == "sampling" else 64}},
            "inputs": inputs, "outputs": outputs, "constraints": [], "reference": reference}))
        write(root / f"workloads/{kind}/{name}.jsonl", json.dumps({
            "definition": name, "solution": None, "evaluation": None,
            "workload": {"uuid": name, "axes": sizes, "inputs": {each: {"type": "random"} for each in inputs}}}) + "\n")
    for name, (language, binding, entry, source, _, _, _) in SOLUTIONS.items():
        spec = {"language": language, "target_hardware": ["NVIDIA H200"], "entry_point": entry, "dependencies": [],
                "destination_passing_style": True}
        if binding:
            spec["binding"] = binding
        write(root / f"solutions/test/activation/silu_halves/{name}.json", json.dumps({
            "name": name, "definition": DEFINITIONS.get(name, "silu_halves"), "author": "test", "spec": spec,
            "sources": [{"path": entry.split("::")[0], "content": source}]}))


def judge(root, name):
    """The trace of a solution."""
    seconds = SOLUTIONS[name][-1]
    done = subprocess.run([QUIPU, "ops", "import", str(root / f"solutions/test/activation/silu_halves/{name}.json"),
                           "--data", str(root), "--device", "cuda", "--timeout", str(seconds), "-r", "3", "--unconfined",
                           "--python", PYTHON],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=400)
    return name, done.stdout, done.stderr


def compare(root):
    """The saved traces of those that passed, on the leaderboard."""
    done = subprocess.run([QUIPU, "ops", "leaderboard", str(root)], stdout=subprocess.PIPE, text=True, timeout=60)
    print(done.stdout)
    check(done.returncode == 0 and all(name in done.stdout for name in SOLUTIONS if name not in DEFINITIONS), done.stdout)


def main():
    if len(sys.argv) > 1:
        write_all(Path(sys.argv[1]))
        return 0
    found = subprocess.run([PYTHON, "-c", "import torch; assert torch.cuda.is_available()"], stderr=subprocess.DEVNULL)
    if found.returncode:
        print("skipped: no PyTorch with a GPU")
        return 77
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_all(root)
        with ThreadPoolExecutor(len(SOLUTIONS)) as pool:
            lines = list(pool.map(lambda name: judge(root, name), SOLUTIONS))
        (root / "traces/activation").mkdir(parents=True)
        (root / "traces/activation/silu_halves.jsonl").write_text(
            "".join(out for name, out, _ in lines if name not in DEFINITIONS))
        for name, out, err in lines:
            evaluation = json.loads(out)["evaluation"] if out else {"status": "no trace", "log": err}
            _, _, _, _, status, log, _ = SOLUTIONS[name]
            right = evaluation["status"] == status and log in evaluation["log"]
            print(f"{name:12} {evaluation['status']:20} {evaluation.get('performance', '')}")
            if not right:
                wrong.append((name, evaluation["status"], evaluation["log"][-1500:]))
        compare(root)
    for name, status, log in wrong:
        print(f"--- {name}: {status}\n{log}")
    check(not wrong, f"other verdicts than expected: {[name for name, _, _ in wrong]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
