"""An ONNX graph of a BERT-shaped encoder, opened for one text or one pair of texts a call."""

from pathlib import Path
from typing import Any, Final, Protocol, cast

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from memplane_core.domain.index import FloatArray
from memplane_embedding.models.manifest import ModelFolderError

Ids = npt.NDArray[np.int64]

_TYPES: Final[dict[str, type[np.signedinteger[Any]]]] = {"tensor(int64)": np.int64, "tensor(int32)": np.int32}
_INPUTS: Final = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
_PROBE: Final = np.array([0, 1, 2], np.int64)


class _Value(Protocol):
    """An input or output of a graph."""

    name: str
    type: str


class _Session(Protocol):
    """What is used of an onnxruntime session, which has no types of its own."""

    def get_inputs(self) -> list[_Value]: ...

    def get_outputs(self) -> list[_Value]: ...

    def run(self, output_names: list[str], input_feed: dict[str, Any]) -> list[npt.NDArray[Any]]: ...


class Graph:
    """A graph in memory, computed by the calling thread alone, so that the same ids give the same bytes.

    Args:
        path: Of the ONNX file.

    Raises:
        ModelFolderError: It cannot be opened, or wants what is not known here.
    """

    def __init__(self, path: Path) -> None:
        self._session = _open(path)
        self._inputs = {item.name: _TYPES.get(item.type) for item in self._session.get_inputs()}
        for name, kind in self._inputs.items():
            if name not in _INPUTS or kind is None:
                raise ModelFolderError(f"{str(path.parent)!r}: the graph wants {name!r}, which is not known here")

    def probe(self) -> dict[str, tuple[int, ...]]:
        """The shape of each output for one input of three tokens."""
        names = [item.name for item in self._session.get_outputs()]
        answers = self._session.run(names, self._feed(_PROBE, np.zeros_like(_PROBE)))
        return {name: answer.shape for name, answer in zip(names, answers, strict=True)}

    def run(self, output: str, ids: Ids, types: Ids | None = None) -> FloatArray:
        """One output for one row of token ids, without the batch's dimension.

        Args:
            output: Its name.
            ids: Special tokens included.
            types: 0 for tokens of the first text, 1 for those of a second; all 0 where None.
        """
        (answer,) = self._session.run([output], self._feed(ids, np.zeros_like(ids) if types is None else types))
        return np.asarray(answer, np.float32)[0]

    def _feed(self, ids: Ids, types: Ids) -> dict[str, Any]:
        row = ids[None, :]
        values = {
            "input_ids": row,
            "attention_mask": np.ones_like(row),
            "token_type_ids": types[None, :],
            "position_ids": np.arange(ids.size, dtype=np.int64)[None, :],
        }
        return {name: values[name].astype(kind or np.int64, copy=False) for name, kind in self._inputs.items()}


def _open(path: Path) -> _Session:
    options = cast("Any", ort.SessionOptions())
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.enable_mem_pattern = False  # plans are kept for every length seen
    options.log_severity_level = 3
    try:
        return cast("_Session", ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"]))
    except Exception as error:  # the library raises nothing narrower
        raise ModelFolderError(f"{str(path)!r}: {error}") from error
