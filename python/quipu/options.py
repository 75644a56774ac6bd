"""The options of a model, a plan, a schedule and an answer: the keyword arguments that type checkers see."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Union

import numpy.typing as npt

if TYPE_CHECKING:
    from quipu.grammar import Grammar
    from quipu.sampling import Sampling

Schema = Union[Mapping[str, Any], bool, str, type]
"""A JSON Schema as a mapping or a text, or a class of pydantic."""


class ScheduleOptions(TypedDict, total=False):
    """How a pass becomes queues of instructions: qp_schedule_options of quipu.h."""

    setting: Literal["latency", "throughput"]
    assignment: Literal["rr", "zz", "wave", "dag", "pool"]
    memory_fraction: float
    file: str


@dataclass(frozen=True)
class Tensor:
    """A tensor of a pass, as a step has left it: see on_tensor of Model.

    Members::

        name    "layers.3.attn_qkv.qkv": layer, step and tensor
        pass_   number of the pass, from 0 on
        data    the values: F32 and F16 as such, BF16 as float32, ids as int32 or int64, FP8 as uint8
        dtype   as it is stored: "F32", "BF16", ...
    """

    name: str
    pass_: int
    data: npt.NDArray[Any]
    dtype: str


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter of a model: a GGUF file, or a directory of PEFT.

    scale   a factor of what it adds
    waits   only answers that ask for it have it
    name    by which they do; without one the last part of its path
    """

    path: str | os.PathLike[str]
    scale: float = 1.0
    waits: bool = False
    name: str = ""


Lora = Union[None, str, int, Sequence[Union[str, int]], Mapping[Union[str, int], float]]
"""Adapters of an answer, by their names or numbers: one, several, or each with a scale; none: (). None: those of
the model that do not wait."""


class ModelOptions(TypedDict, total=False):
    """Options of an engine: qp_engine_options of quipu.h, which explains them."""

    threads: int
    context: int
    max_sessions: int
    chunk: int
    max_outputs: int
    page_size: int
    pages: int
    kv_type: Literal["F16", "BF16", "F32", "F8"]
    device: Literal["cpu", "cuda", "auto"]
    exec: Literal["auto", "threads", "operators", "reference", "serial", "megakernel", "cuda"]
    workers: int
    order: int
    fuse: bool
    batch_invariant: bool
    activations: Literal["auto", "8", "16", "bf16", "float"]
    cpu_mask: str
    speculate: Literal["off", "lookup"]
    draft: str
    ranks: int
    transport: Literal["threads", "mpi", "messages"]
    cut: Literal["gather", "reduce"]
    gpus: str
    cache_packed: str
    cache_packed_size: int
    bf16_copies: Literal["auto", "on", "off"]
    plan: Literal["paged", "flashinfer", "padded"]
    act_type: Literal["F32", "BF16"]
    exchange: Literal["auto", "peers", "nccl", "host"]
    rules: str
    schedule: ScheduleOptions | None
    log: Callable[[str], None] | None
    tensors: str
    on_tensor: Callable[[Tensor], None] | None
    adapters: Sequence[Adapter | str | os.PathLike[str]]
    adapters_at_once: int
    merge_adapters: bool


class ConvertOptions(TypedDict, total=False):
    """Options of a conversion: qp_convert_options of quipu.h."""

    type: str
    pure: bool
    clamp: bool
    threads: int
    adapters: Sequence[Adapter | str | os.PathLike[str]]
    log: Callable[[str], None] | None


class PlanOptions(TypedDict, total=False):
    """Options of a plan: qp_plan_options of quipu.h."""

    tokens: int
    context: int
    sessions: int
    page_size: int
    kv_type: Literal["F16", "BF16", "F32", "F8"]
    memory: int
    act_type: Literal["F32", "BF16"]


class SamplingOptions(TypedDict, total=False):
    """The fields of Sampling, as keyword arguments."""

    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    seed: int | None
    typical_p: float | None
    top_n_sigma: float | None
    min_keep: int | None
    xtc_probability: float | None
    xtc_threshold: float | None
    dry_multiplier: float | None
    dry_base: float | None
    dry_allowed_length: int | None
    dry_penalty_last_n: int | None
    mirostat: int | None
    mirostat_tau: float | None
    mirostat_eta: float | None
    stop: str | Sequence[str]
    logit_bias: Mapping[int, float]
    grammar: Grammar | None
    stop_tokens: Sequence[int] | None


class GenerateOptions(SamplingOptions, total=False):
    """Options of an answer. `sampling` takes the place of the settings of Sampling.

    Besides those of Sampling::

        max_tokens   most tokens of the answer; 0: until the context is full
        schema       the answer is JSON of this schema; Generation.parsed() reads it
        logprobs     Generation.logprobs has the log-probability of each token, and of so many of the
                     likeliest
        special      control tokens appear in the text
        lora         LoRA adapters of the model, by names or numbers: "name", ["a", "b"] or {"a": 0.5}; () is
                     none. Those of a session are given when it is opened
    """

    max_tokens: int
    sampling: Sampling | None
    schema: Schema | None
    logprobs: int | None
    special: bool
    lora: Lora


class ChatOptions(GenerateOptions, total=False):
    """Options of an answer to a conversation.

    Besides those of GenerateOptions::

        tools       [{"type": "function", "function": {"name", "description", "parameters"}}, ...]:
                    what the model may call; Generation.tool_calls has its calls
        variables   further variables of the chat template, such as {"enable_thinking": False}
    """

    tools: Sequence[Mapping[str, Any]] | None
    variables: Mapping[str, Any] | None
