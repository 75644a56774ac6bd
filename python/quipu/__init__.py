"""quipu: Llama-family models on CPUs and NVIDIA GPUs.

    import quipu

    with quipu.Model("model.gguf") as model:
        for piece in model.chat([{"role": "user", "content": "Name the four seasons."}], temperature=0):
            print(piece, end="", flush=True)

A model belongs to one thread at a time. Text is str, tokens are lists of int, logits are numpy arrays.
"""

from quipu._native import QuipuError
from quipu.grammar import Grammar, Matcher
from quipu.model import Generation, Model, ModelInfo, Session
from quipu.plan import Plan, plan
from quipu.sampling import Sampler, Sampling
from quipu.step import Sequence
from quipu.trace import Trace
from quipu.vocabulary import Vocabulary

__all__ = ["Generation", "Grammar", "Matcher", "Model", "ModelInfo", "Plan", "QuipuError", "Sampler", "Sampling",
           "Sequence", "Session", "Trace", "Vocabulary", "plan"]
