"""quipu: Llama-family models on CPUs and NVIDIA GPUs.

A program::

    import quipu

    with quipu.Model("model.gguf") as model:
        for piece in model.chat([{"role": "user", "content": "Name the four seasons."}], temperature=0):
            print(piece, end="", flush=True)

Any thread may use a model, and several at a time. Text is str, tokens are lists of int or numpy arrays, logits
are numpy arrays. What is refused raises QuipuError.
"""

from quipu._native import lib as _lib
from quipu._native import text_of as _text_of
from quipu._text import ToolCall
from quipu.convert import convert
from quipu.errors import CancelledError, InvalidError, NoMemoryError, QuipuError, WrongTokenError, WrongTypeError
from quipu.generation import Generation, TokenLogprob
from quipu.grammar import Grammar, Matcher
from quipu.hub import pull
from quipu.model import Model, ModelInfo, Session
from quipu.options import Adapter, Tensor
from quipu.plan import Plan, plan
from quipu.sampling import Sampler, Sampling
from quipu.schedule import Schedule
from quipu.server import Server, serve
from quipu.step import Sequence
from quipu.trace import Trace
from quipu.vocabulary import Vocabulary

__version__: str = _text_of(_lib.qp_version())

__all__ = ["Adapter", "CancelledError", "Generation", "Grammar", "InvalidError", "Matcher", "Model", "ModelInfo",
           "NoMemoryError", "Plan", "QuipuError", "Sampler", "Sampling", "Schedule", "Sequence", "Server", "Session",
           "Tensor", "TokenLogprob", "ToolCall", "Trace", "Vocabulary", "WrongTokenError", "WrongTypeError", "__version__",
           "convert", "plan", "pull", "serve"]
