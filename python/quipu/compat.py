"""vLLM's offline interface, as thin as it can be: for programs that have LLM(...).generate(prompts, SamplingParams(...)).

doc/LIBRARY.md lists the calls of vLLM and of llama-cpp-python beside quipu's.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from quipu.generation import Generation
from quipu.model import Model

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from quipu.options import ModelOptions



@dataclass
class SamplingParams:
    """vLLM's names; its defaults where they differ from the model's own: temperature 1, 16 tokens."""

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0 or -1: all."""
    min_p: float = 0.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    stop: str | Sequence[str] | None = None
    max_tokens: int | None = 16
    ignore_eos: bool = False
    logprobs: int | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)

    def options(self, choice: int) -> dict[str, Any]:
        """The options of Model.generate() for the choice of this number."""
        return {"temperature": self.temperature, "top_p": self.top_p, "top_k": max(self.top_k, 0),
                "min_p": self.min_p, "seed": (self.seed or 0) + choice, "presence_penalty": self.presence_penalty,
                "frequency_penalty": self.frequency_penalty, "repetition_penalty": self.repetition_penalty,
                "stop": self.stop or (), "max_tokens": self.max_tokens or 0, "logprobs": self.logprobs,
                "logit_bias": self.logit_bias, "stop_tokens": () if self.ignore_eos else None}


@dataclass(frozen=True)
class CompletionOutput:
    """One answer."""

    index: int
    text: str
    token_ids: list[int]
    finish_reason: str | None
    logprobs: list[dict[int, float]] | None


@dataclass(frozen=True)
class RequestOutput:
    """The answers to one prompt."""

    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool = True


def _output(index: int, generation: Generation) -> CompletionOutput:
    text = generation.text()
    tops = [{**dict(entry.top), entry.token: entry.logprob} for entry in generation.logprobs] or None
    return CompletionOutput(index, text, generation.tokens, generation.finish, tops)


class LLM:
    """A model whose answers to many prompts are made together. Options are those of Model; vLLM's
    max_model_len is `context`, max_num_seqs `max_sessions`, tensor_parallel_size `ranks`."""

    def __init__(self, model: str | os.PathLike[str], **options: Unpack[ModelOptions]) -> None:
        self.model = Model(model, **options)

    def generate(self, prompts: str | Sequence[str] | Sequence[Sequence[int]],
                 sampling_params: SamplingParams | None = None) -> list[RequestOutput]:
        """Continues texts, or lists of token ids, side by side; the outputs have the order of the prompts."""
        params = sampling_params or SamplingParams()
        texts: list[str | Sequence[int]] = [prompts] if isinstance(prompts, str) else list(prompts)
        ids = [self.model.tokenize(text) if isinstance(text, str) else list(text) for text in texts]
        return self._answers([text if isinstance(text, str) else None for text in texts], ids, params)

    def chat(self, messages: Sequence[Mapping[str, Any]] | Sequence[Sequence[Mapping[str, Any]]],
             sampling_params: SamplingParams | None = None, *, tools: Sequence[Mapping[str, Any]] | None = None,
             chat_template_kwargs: Mapping[str, Any] | None = None) -> list[RequestOutput]:
        """Answers one conversation, or several side by side. Calls of `tools` stand in the outputs as the model
        writes them, as with vLLM; Model.chat(tools=...) takes them apart."""
        several: list[Any] = list(messages)
        if several and isinstance(several[0], Mapping):
            several = [several]
        vocabulary = self.model._need_vocabulary()
        variables: dict[str, Any] = {**(chat_template_kwargs or {}), **({"tools": list(tools)} if tools else {})}
        ids = [vocabulary.tokenize_chat(conversation, **variables) for conversation in several]
        return self._answers([None] * len(ids), ids, sampling_params or SamplingParams())

    def _answers(self, texts: list[str | None], ids: list[list[int]], params: SamplingParams) -> list[RequestOutput]:
        running = [[self.model.generate(prompt, **params.options(i)) for i in range(params.n)] for prompt in ids]
        return [RequestOutput(text, prompt, [_output(i, generation) for i, generation in enumerate(generations)])
                for text, prompt, generations in zip(texts, ids, running)]
