"""Trace ids and spans, as the rest of the code uses them."""

import re
from collections.abc import Generator

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from memplane_core.observability.tracing import (
    add_span,
    as_trace_id,
    configure_traces,
    current_trace_id,
    entry_span,
    flush_traces,
    span,
    traceparent,
)
from memplane_core.trace_settings import TraceSettings

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SAMPLED = f"00-{TRACE}-00f067aa0ba902b7-01"
NOT_SAMPLED = f"00-{TRACE}-00f067aa0ba902b7-00"


@pytest.fixture
def exporter() -> Generator[InMemorySpanExporter]:
    yield InMemorySpanExporter()
    configure_traces(TraceSettings(), service="test")


def use(exporter: InMemorySpanExporter | None, *, ratio: float, door: bool = False) -> None:
    configure_traces(TraceSettings(sample_ratio=ratio), service="test", door=door, exporter=exporter)


def sent(exporter: InMemorySpanExporter) -> list[str]:
    flush_traces()
    return [found.name for found in exporter.get_finished_spans()]


@pytest.mark.usefixtures("exporter")
class TestIds:
    def test_there_is_one_though_nothing_is_sent(self) -> None:
        use(None, ratio=1)
        assert current_trace_id() == ""
        assert traceparent() == ""
        with entry_span("request", parent=None):
            inside = current_trace_id()
            assert re.fullmatch(r"[0-9a-f]{32}", inside)
            assert re.fullmatch(f"00-{inside}-[0-9a-f]{{16}}-00", traceparent())
        assert current_trace_id() == ""

    @pytest.mark.parametrize(
        ("parent", "kept"),
        [
            (SAMPLED, True),
            (NOT_SAMPLED, True),
            ("", False),
            ("garbage", False),
            (f"00-{'0' * 32}-00f067aa0ba902b7-01", False),
            (f"00-{TRACE}-{'0' * 16}-01", False),
            (f"01-{TRACE}-00f067aa0ba902b7-01", False),
            (f"{SAMPLED}\n", False),
            (SAMPLED.upper(), False),
        ],
    )
    def test_a_parent_is_taken_over_where_it_makes_sense(self, parent: str, *, kept: bool) -> None:
        use(None, ratio=1)
        with entry_span("request", parent=parent):
            assert (current_trace_id() == TRACE) is kept

    def test_a_request_id_that_can_be_one_becomes_it(self) -> None:
        use(None, ratio=1)
        with entry_span("request", parent=None, trace_id=TRACE):
            assert current_trace_id() == TRACE
        assert [as_trace_id(text) for text in (TRACE, "0" * 32, TRACE[:-1], "z" * 32)] == [TRACE, None, None, None]


class TestSampling:
    def test_behind_the_door_the_callers_word_is_taken(self, exporter: InMemorySpanExporter) -> None:
        use(exporter, ratio=0)
        for parent in (SAMPLED, NOT_SAMPLED):
            with entry_span("request", parent=parent), span("part"):
                add_span("told", seconds=0.1, ended_ns=10**18)
        assert sent(exporter) == ["told", "part", "request"]

    @pytest.mark.parametrize(("ratio", "names"), [(0.0, []), (1.0, ["request", "request"])])
    def test_at_the_door_it_is_not(self, exporter: InMemorySpanExporter, ratio: float, names: list[str]) -> None:
        use(exporter, ratio=ratio, door=True)
        for parent in (SAMPLED, NOT_SAMPLED):
            with entry_span("request", parent=parent):
                pass
        assert sent(exporter) == names


class TestContent:
    def test_of_an_error_only_its_kind_is_told(self, exporter: InMemorySpanExporter) -> None:
        use(exporter, ratio=1)
        with (
            pytest.raises(KeyError),
            entry_span("task", parent=None, kind=SpanKind.CONSUMER),
            span("part", texts=2),
        ):
            raise KeyError("the heron at the weir")
        flush_traces()
        told = "".join(found.to_json() for found in exporter.get_finished_spans())
        assert "KeyError" in told
        assert "heron" not in told

    def test_a_collector_is_named_without_secrets(self) -> None:
        assert TraceSettings(endpoint="http://collector:4318").endpoint == "http://collector:4318/v1/traces"
        assert TraceSettings(endpoint="https://c/otlp/v1/traces").endpoint == "https://c/otlp/v1/traces"
        for wrong in ("collector:4318", "http://user:secret@collector", "ftp://collector"):
            with pytest.raises(ValueError, match=r"collector|HEADERS"):
                TraceSettings(endpoint=wrong)
