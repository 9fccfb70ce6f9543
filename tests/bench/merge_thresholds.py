"""`python -m tests.bench.merge_thresholds`: what merging by cosine and by words makes of our own texts, per model."""

import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

import numpy as np
from tests.bench.merge_texts import SAMPLES

from memplane_core.domain.index import FloatArray
from memplane_core.domain.memory import head_of
from memplane_core.domain.merging import Guard, said, threshold_of
from memplane_core.settings import default_models_dir
from memplane_embedding.model import OnnxModel
from memplane_embedding.models.catalog import BUNDLED

AT: Final = datetime(2023, 5, 8, 13, 56, tzinfo=UTC)
LATER: Final = AT + timedelta(days=33, minutes=122)
"""When the copy is told: the embedded text begins with the date."""

KINDS: Final = ("copies", "paraphrases", "others")
GUARDS: Final[tuple[Guard, ...]] = ("none", "facts", "words")


def rows(name: str, threshold: float, embed: Callable[[str, datetime], FloatArray]) -> list[str]:
    """Lines of a Markdown table."""
    cosines = {kind: list[float]() for kind in KINDS}
    merged = {guard: dict.fromkeys(KINDS, 0) for guard in GUARDS}
    for sample in SAMPLES:
        memory = embed(sample.memory, AT)
        for kind in KINDS:
            for text in getattr(sample, kind):
                cosine = float(memory @ embed(text, LATER))
                cosines[kind].append(cosine)
                for guard in GUARDS:
                    same = said(sample.memory, guard) == said(text, guard)
                    merged[guard][kind] += same and cosine >= threshold
    spread = " | ".join(
        " / ".join(f"{value:.3f}" for value in np.percentile(cosines[kind], [5, 50, 95])) for kind in KINDS
    )
    counts = " | ".join(
        ", ".join(f"{merged[guard][kind]} of {len(cosines[kind])}" for kind in KINDS) for guard in GUARDS
    )
    return [f"| {name} | {threshold:.3f} | {spread} | {counts} |"]


def main() -> int:
    """Print the table."""
    lines = [
        "| model | threshold | copies | paraphrases | other facts | none | facts | words |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in BUNDLED:
        model = OnnxModel(default_models_dir() / name)

        def embed(text: str, at: datetime, model: OnnxModel = model) -> FloatArray:
            return model.embed(model.split(text, head=head_of("Ann", at), input_type="passage").windows[0].ids)

        lines += rows(name, threshold_of(model.manifest.span), embed)
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
