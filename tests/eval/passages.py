"""XQuAD and CMRC 2018: questions, each answered by one paragraph of many."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec
from tests.eval.sets import Collection, EvalSet, Question, read_data

from memplane_core.contracts.memories import MemoryWrite

WHEN: Final = datetime(2024, 1, 1, tzinfo=UTC)
"""`occurred_at` of all paragraphs, which have no date: what is embedded begins with it and is the same on every day."""

XQUAD: Final = (("zh", "zh"), ("en", "en"), ("en", "zh"), ("zh", "en"))
"""Language of the questions and of the paragraphs."""


class Passages(msgspec.Struct, frozen=True):
    """Paragraphs, and questions with the paragraph that answers each."""

    collection: Collection
    questions: list[Question]


def xquad_sets(folder: Path) -> list[EvalSet]:
    """The four pairings of languages.

    Raises:
        MissingDataError: A file is not there.
    """
    read = {language: read_passages(folder, f"xquad/xquad.{language}.json") for language in ("zh", "en")}
    return [
        EvalSet(
            key=f"xquad.{asked}_{told}",
            collection=read[told].collection,
            questions=read[asked].questions,  # both languages have the same paragraphs in the same order
            languages=frozenset({asked, told}),
        )
        for asked, told in XQUAD
    ]


def cmrc_set(folder: Path) -> EvalSet:
    """The trial part.

    Raises:
        MissingDataError: The file is not there.
    """
    read = read_passages(folder, "cmrc2018/cmrc2018_trial.json")
    return EvalSet(key="cmrc", collection=read.collection, questions=read.questions, languages=frozenset({"zh"}))


def read_passages(folder: Path, name: str) -> Passages:
    """A file in the form of SQuAD; paragraphs are named by their number. A question without text is left out."""
    memories: list[MemoryWrite] = []
    questions: list[Question] = []
    articles: list[dict[str, Any]] = json.loads(read_data(folder, name))["data"]
    for paragraph in (paragraph for article in articles for paragraph in article["paragraphs"]):
        number = str(len(memories))
        memories.append(MemoryWrite(external_id=number, content=paragraph["context"], occurred_at=WHEN))
        asked: list[str] = [qa["question"] for qa in paragraph["qas"]]
        questions += [Question(text=text, gold=frozenset({number})) for text in asked if text.strip()]
    collection = Collection(name=Path(name).stem.replace(".", "_"), memories=memories)
    return Passages(collection=collection, questions=questions)
