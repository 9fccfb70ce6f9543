"""Structured logs: a JSON object a line, with what the request or task has bound. Never content, never secrets."""

import logging
import sys

import structlog

from memplane_core.settings import LogSettings

_QUIETER = {
    "alembic.runtime.plugins": logging.WARNING,
    "asyncio": logging.WARNING,
    # A line for each task sent, received and done: the beat alone makes one every second.
    "celery.app.trace": logging.WARNING,
    "celery.beat": logging.WARNING,
    "celery.worker.strategy": logging.WARNING,
    "purgatory": logging.WARNING,
    # It logs a trace of every failed call and then raises, and we say what we make of it.
    "pymilvus": logging.CRITICAL,
}
"""What libraries say of their own accord, at our levels."""


def configure_logs(settings: LogSettings, *, service: str) -> None:
    """Send the logs of this process, the libraries' included, to standard output as `settings` says."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer() if settings.format == "json" else structlog.dev.ConsoleRenderer()
    )
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
    structlog.contextvars.bind_contextvars(service=service)


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """A logger for a module."""
    return structlog.stdlib.get_logger(name)
