import numpy as np
import pytest

from memplane_core.domain.embedding import InputType
from memplane_core.domain.index import FloatArray
from memplane_embedding.models.calibrate import Calibration, as_table, calibrate
from memplane_embedding.models.catalog import BUNDLED
from memplane_embedding.models.manifest import Manifest
from memplane_embedding.models.pairs import NONSENSE, PAIRS


def test_anchors_are_the_edges_of_unrelated_and_of_matching_pairs() -> None:
    subjects = {text: n for n, pair in enumerate(PAIRS) for text in (pair.question, pair.memory)}
    subjects |= {text: n + len(PAIRS) for n, pair in enumerate(PAIRS) for text in (pair.question_zh, pair.memory_zh)}

    def embed(text: str, head: str, input_type: InputType) -> FloatArray:
        """Unit vectors: 0.5 between different subjects, 0.8 within one, 0.1 more between Chinese ones."""
        assert (head != "") == (input_type == "passage")
        size = 2 * len(PAIRS) + 3
        vector = np.zeros(size, dtype=np.float32)
        n = subjects.get(text)
        if n is None:
            vector[-1] = 1.0
            return vector
        common = 0.5 + 0.1 * (n >= len(PAIRS))
        vector[-2], vector[n] = common**0.5, 0.3**0.5
        vector[-3 if input_type == "query" else -1] = (0.7 - common) ** 0.5
        return vector

    measured = calibrate("m", embed)

    assert (measured.anchor_low, measured.anchor_high) == pytest.approx((0.5, 0.8), abs=1e-3)
    assert measured.anchor_cjk == pytest.approx(0.1, abs=1e-3)
    assert (measured.matching, measured.matching_cjk) == pytest.approx((0.8, 0.9), abs=1e-3)
    assert (measured.passing, measured.nonsense) == (1.0, 1.0)


def test_the_table_has_a_row_for_each_model() -> None:
    row = Calibration(
        name="m",
        span=0.2,
        anchor_low=0.5,
        anchor_high=0.9,
        anchor_cjk=-0.01,
        matching=0.7,
        matching_cjk=0.6,
        passing=0.25,
        nonsense=1.0,
    )
    assert as_table([row]).splitlines()[2:] == [
        "| m | 0.20 | 0.500 to 0.900 | -0.010 | 0.700 | 0.600 | 25% | 100% |",
    ]


def test_no_text_is_in_two_entries() -> None:
    texts = [text for pair in PAIRS for text in (pair.question, pair.memory, pair.question_zh, pair.memory_zh)]
    assert len({*texts, *NONSENSE}) == len(texts) + len(NONSENSE)


@pytest.mark.parametrize("model", [model.manifest for model in BUNDLED.values()], ids=lambda manifest: manifest.name)
def test_every_bundled_model_has_anchors_in_order(model: Manifest) -> None:
    assert 0 < model.anchor_low < model.anchor_high < 1
    assert model.span > 0
    assert model.anchor_cjk > 0
