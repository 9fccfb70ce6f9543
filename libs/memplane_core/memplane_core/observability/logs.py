"""Structured logs: a JSON object a line, with what the request or task has bound. Never content, never secrets."""

import logging
import sys
import threading
from types import TracebackType

import structlog

from memplane_core.observability.process import name_process, process_name
from memplane_core.observability.tracebacks import format_exc_info
from memplane_core.observability.tracing import current_trace_id
from memplane_core.settings import LogSettings

_QUIETER = {
    "alembic.runtime.plugins": logging.WARNING,
    "asyncio": logging.WARNING,
    # A line for each task sent, received and done: the beat alone makes one every second.
    "celery.app.trace": logging.WARNING,
    "celery.beat": logging.WARNING,
    "celery.worker.strategy": logging.WARNING,
    # Each repeat of a batch that a collector does not take; that it was given up is told.
    "opentelemetry.exporter.otlp.proto.http.trace_exporter": logging.ERROR,
    "purgatory": logging.WARNING,
    # It logs a trace of every failed call and then raises, and we say what we make of it.
    "pymilvus": logging.CRITICAL,
}
"""What libraries say of their own accord, at our levels."""


def configure_logs(settings: LogSettings, *, service: str) -> None:
    """Send the logs of this process, the libraries' included, to standard output as `settings` says."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        _of_this_process,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.ExceptionRenderer(format_exc_info),
    ]
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer() if settings.format == "json" else structlog.dev.ConsoleRenderer()
    )
    if settings.format == "console":
        shared.append(_without_control_characters)
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(processor=renderer, foreign_pre_chain=shared))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(settings.level.upper())
    for noisy, level in _QUIETER.items():
        logging.getLogger(noisy).setLevel(level)
    name_process(service)
    sys.excepthook = _tell_of_the_end
    threading.excepthook = lambda end: _tell_of_the_end(
        end.exc_type, end.exc_value or end.exc_type(), end.exc_traceback
    )


def _of_this_process(_: object, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Every line says which service it is of, and within a trace of which: a thread of a library knows nothing else."""
    event.setdefault("service", process_name())
    if "trace_id" not in event and (trace_id := current_trace_id()):
        event["trace_id"] = trace_id
    return event


def _without_control_characters(_: object, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """On a terminal what a library says must not move the cursor. The other values are quoted anyway."""
    event["event"] = "".join(char if char.isprintable() else repr(char)[1:-1] for char in str(event["event"]))
    return event


def _tell_of_the_end(kind: type[BaseException], error: BaseException | None, at: TracebackType | None) -> None:
    """Log what ended a thread or the process. Python's own way would print the message of the error too."""
    if issubclass(kind, KeyboardInterrupt):
        return
    get_logger(__name__).critical("ended by an error", exc_info=(kind, error or kind(), at))


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """A logger for a module."""
    return structlog.stdlib.get_logger(name)
