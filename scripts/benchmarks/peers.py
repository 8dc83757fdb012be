"""
The libraries that ours is measured against, set up as their users would for the least cost.
"""

from __future__ import annotations

import json
import logging
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
    from opentelemetry.trace import Tracer


class NullExporter(SpanExporter):
    """
    Drops every span.
    """

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """
        Drop the spans.
        """
        del spans
        return SpanExportResult.SUCCESS


@contextmanager
def open_tracer(processor: SpanProcessor | None = None) -> Iterator[Tracer]:
    """
    Open a tracer of the OpenTelemetry SDK, by default on its batch processor and an exporter that does nothing.
    """
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(processor or BatchSpanProcessor(NullExporter()))
    try:
        yield provider.get_tracer("benchmark")
    finally:
        provider.shutdown()


class JSONFormatter(logging.Formatter):
    """
    Writes a record and its attributes as one line of JSON.
    """

    def format(self, record: logging.LogRecord) -> str:
        """
        Return the line.
        """
        return json.dumps(
            {
                "time": record.created,
                "level": record.levelname,
                "message": record.getMessage(),
                "attributes": getattr(record, "attributes", None),
            }
        )


@contextmanager
def open_logger() -> Iterator[logging.Logger]:
    """
    Open a logger of the standard library that writes JSON to nowhere.
    """
    with open(os.devnull, "w", encoding="utf-8") as stream:  # noqa: PTH123 - a device, not a path
        handler = logging.StreamHandler(stream)
        handler.setFormatter(JSONFormatter())
        logger = logging.Logger("benchmark", logging.INFO)  # noqa: LOG001 - in no tree, so that nothing else hears it
        logger.addHandler(handler)
        yield logger
