"""Traces: one id for all that a request leads to, in every process, and spans of those that are sampled.

The id travels as W3C `traceparent`: between services in a header, to the workers in a header of the task. It is there
for each request, sampled or not; spans are made only where they will be sent.
"""

import random
import re
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, Decision, ParentBased, Sampler, SamplingResult
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.util.types import AttributeValue

from memplane_core.observability.tracebacks import describe
from memplane_core.trace_settings import TraceSettings

TRACEPARENT: Final = "traceparent"

_HEADER: Final = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_TRACE_ID: Final = re.compile(r"[0-9a-f]{32}")
_NOBODY: Final = 1
"""Id of the span that a trace begins under where only its trace id was given."""


class _Share(Sampler):
    """Samples by chance alone: a caller from outside who chooses the trace id does not choose by it."""

    def __init__(self, ratio: float) -> None:
        self._ratio = ratio

    def should_sample(self, *_: Any, **__: Any) -> SamplingResult:
        """By chance."""
        taken = self._ratio >= 1 or random.random() < self._ratio  # noqa: S311 - nothing is kept secret by it
        return SamplingResult(Decision.RECORD_AND_SAMPLE if taken else Decision.DROP)

    def get_description(self) -> str:
        """For people."""
        return f"Share({self._ratio:g})"


class _Traces:
    """Of this process. Not OpenTelemetry's own global, which can be set once only."""

    provider: TracerProvider = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False)
    tracer: trace.Tracer = provider.get_tracer("memplane")


def configure_traces(
    settings: TraceSettings, *, service: str, door: bool = False, exporter: SpanExporter | None = None
) -> None:
    """Trace from now on as `settings` say.

    Args:
        settings: Of the process.
        service: Its name.
        door: It is called from outside: whether to sample is not its callers' choice.
        exporter: Instead of one to the settings' endpoint.
    """
    if exporter is None and settings.endpoint:
        exporter = OTLPSpanExporter(
            endpoint=settings.endpoint,
            headers={name: value.get_secret_value() for name, value in settings.headers.items()},
            certificate_file=settings.ca_pem_path or None,
            timeout=5,
        )
    _Traces.provider.shutdown()
    share = _Share(settings.sample_ratio)
    if exporter is None:
        sampler: Sampler = ALWAYS_OFF
    elif door:
        sampler = ParentBased(share, remote_parent_sampled=share, remote_parent_not_sampled=share)
    else:
        sampler = ParentBased(share)
    resource = Resource({"service.name": f"memplane-{service}", "service.namespace": "memplane"})
    _Traces.provider = TracerProvider(sampler=sampler, resource=resource, shutdown_on_exit=True)
    if exporter is not None:
        _Traces.provider.add_span_processor(BatchSpanProcessor(exporter))
    _Traces.tracer = _Traces.provider.get_tracer("memplane")


def flush_traces() -> None:
    """Send what waits to be sent."""
    _Traces.provider.force_flush()


@contextmanager
def entry_span(
    name: str, *, parent: str | None, trace_id: str | None = None, kind: SpanKind = SpanKind.SERVER
) -> Generator[Span]:
    """The span of what comes from another process: a request, or a task.

    Args:
        name: Of bounded number; `update_name` where it is known better at the end.
        parent: The `traceparent` that came with it. One that makes no sense is taken for none.
        trace_id: 32 hex digits to begin a trace under, where there is no `parent`.
        kind: `SERVER`, or `CONSUMER` for a task.
    """
    above = _context(parent) or _begun(trace_id)
    context = Context() if above is None else trace.set_span_in_context(NonRecordingSpan(above), Context())
    with _started(name, kind=kind, context=context) as span:
        yield span


def name_request(span: Span, method: str, *, route: str, status: int) -> None:
    """Say what a request was, by its template: a path that was called can hold anything."""
    if span.is_recording():
        span.update_name(f"{method} {route}")
        span.set_attributes({"http.request.method": method, "http.route": route, "http.response.status_code": status})
        if status >= 500:
            span.set_status(Status(StatusCode.ERROR))


@contextmanager
def span(name: str, *, kind: SpanKind = SpanKind.INTERNAL, **attributes: AttributeValue) -> Generator[Span]:
    """A part of what is being done; costs next to nothing where that is not sampled."""
    current = trace.get_current_span()
    if not current.is_recording():
        yield current
        return
    with _started(name, kind=kind, context=None) as started:
        started.set_attributes(attributes)
        yield started


def add_span(name: str, *, seconds: float, ended_ns: int, **attributes: AttributeValue) -> None:
    """A part of what is being done, told of after it has ended at `ended_ns` (epoch nanoseconds)."""
    if trace.get_current_span().is_recording():
        began = ended_ns - int(seconds * 1e9)
        told = _Traces.tracer.start_span(name, kind=SpanKind.CLIENT, attributes=attributes, start_time=began)
        told.end(ended_ns)


def current_trace_id() -> str:
    """32 hex digits; `""` outside of any request or task."""
    context = trace.get_current_span().get_span_context()
    return f"{context.trace_id:032x}" if context.is_valid else ""


def traceparent() -> str:
    """What to hand on to whoever is asked next; `""` outside of any request or task."""
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return ""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags) & 1:02x}"


def as_trace_id(text: str) -> str | None:
    """`text` where it can be the id of a trace."""
    return text if _TRACE_ID.fullmatch(text) and int(text, 16) else None


@contextmanager
def _started(name: str, *, kind: SpanKind, context: Context | None) -> Generator[Span]:
    with _Traces.tracer.start_as_current_span(
        name,
        context=context,
        kind=kind,
        # Of its own accord it would keep the message of the error, which may quote a memory.
        record_exception=False,
        set_status_on_exception=False,
    ) as started:
        try:
            yield started
        except Exception as error:
            started.set_status(Status(StatusCode.ERROR, describe(error)))
            raise


def _context(parent: str | None) -> SpanContext | None:
    found = _HEADER.fullmatch(parent or "")
    if found is None:
        return None
    context = SpanContext(
        int(found[1], 16), int(found[2], 16), is_remote=True, trace_flags=TraceFlags(int(found[3], 16) & 1)
    )
    return context if context.is_valid else None


def _begun(trace_id: str | None) -> SpanContext | None:
    if trace_id is None or as_trace_id(trace_id) is None:
        return None
    return SpanContext(int(trace_id, 16), _NOBODY, is_remote=True, trace_flags=TraceFlags(0))
