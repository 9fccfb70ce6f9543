"""A cross-encoder in memory: a query and a text read together, to a score of how well the text answers the query.

As with vectors, one pair a call by one thread: the score of a pair depends on nothing beside it.
"""

import math
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from memplane_embedding.models.manifest import ModelFolderError, is_complete, read_reranker
from memplane_embedding.runtime import Graph


class CrossEncoder:
    """A reranker's folder, loaded. `score` may be called from several threads at once.

    Args:
        folder: With `model.json`, the graph it names, and `tokenizer.json`.

    Raises:
        ModelFolderError: The folder cannot be used.
    """

    def __init__(self, folder: Path) -> None:
        self.manifest = read_reranker(folder)
        if not is_complete(folder, self.manifest):
            raise ModelFolderError(f"{str(folder)!r} is not complete; build the model again")
        path = folder / "tokenizer.json"
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises nothing narrower
            raise ModelFolderError(f"{str(path)!r}: {error}") from error
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(self.manifest.max_tokens, strategy="longest_first")
        # A text that spells out `[SEP]` means those letters.
        self._tokenizer.encode_special_tokens = True
        self._graph = Graph(folder / self.manifest.graph)
        self._output = next((name for name, shape in self._graph.probe().items() if shape == (1, 1)), "")
        if not self._output:
            raise ModelFolderError(f"{str(folder)!r}: no output of the graph is one number a pair")

    def score(self, query: str, text: str) -> float:
        """0 (does not fit) to 1 (answers it): the sigmoid of the model's logit; 0 where the model answers no number.

        Where the two are longer together than the model reads, the longer one loses its end first.
        """
        pair = self._tokenizer.encode(query, text)
        ids, types = np.array(pair.ids, np.int64), np.array(pair.type_ids, np.int64)
        logit = float(self._graph.run(self._output, ids, types)[0])
        return _sigmoid(logit) if math.isfinite(logit) else 0.0


def _sigmoid(logit: float) -> float:
    if logit >= 0:
        return 1 / (1 + math.exp(-logit))
    small = math.exp(logit)
    return small / (1 + small)
