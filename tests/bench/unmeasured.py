"""`python -m tests.bench.unmeasured MODULE`: a service that neither measures nor traces, as a peer of one that does.

What it would count is patched away where this module is imported: the server starts its worker as a new interpreter,
which imports it again. Request ids are there, so that it still answers.
"""

import runpy
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

from opentelemetry.trace import INVALID_SPAN, Span
from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.metrics import MetricWrapperBase

from memplane_core.clients import http
from memplane_core.observability import logs, tracing
from memplane_core.storage import session
from memplane_core.vectors import client
from memplane_core.web import app


def _itself(metric: MetricWrapperBase, *_: object, **__: object) -> MetricWrapperBase:
    return metric


def _nothing(*_: object, **__: object) -> None:
    return None


@contextmanager
def _no_span(*_: object, **__: object) -> Generator[Span]:
    yield INVALID_SPAN


def _no_id() -> str:
    return ""


def _request_id() -> str:
    return uuid4().hex


def _replace(module: Any, **names: Callable[..., Any]) -> None:
    for name, it in names.items():
        setattr(module, name, it)


_replace(MetricWrapperBase, labels=_itself)
_replace(Counter, inc=_nothing)
_replace(Histogram, observe=_nothing)
_replace(Gauge, set=_nothing, inc=_nothing, dec=_nothing)
_replace(tracing, entry_span=_no_span, span=_no_span, add_span=_nothing)
_replace(logs, current_trace_id=_no_id)
_replace(app, entry_span=_no_span, current_trace_id=_request_id, name_request=_nothing)
_replace(http, span=_no_span, traceparent=_no_id)
_replace(client, span=_no_span)
_replace(session, _measure=_nothing, add_span=_nothing)

if __name__ == "__main__":
    module = sys.argv.pop(1)
    sys.argv[0] = module
    runpy.run_module(module, run_name="__main__")
