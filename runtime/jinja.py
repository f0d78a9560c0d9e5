"""Jinja as chat templates use it. Imported with the first template that is rendered: it takes its time."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.sandbox
from jinja2 import Template, TemplateError

__all__ = ["Template", "TemplateError", "compiled"]


def compiled(source: str) -> Template:
    """The template, in a sandbox, with what models' templates count on. TemplateError where it cannot be read."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment.from_string(source)


class _Generation(jinja2.ext.Extension):
    """{% generation %}: marks the assistant's text for training; here it is only its inside."""

    tags = {"generation"}  # noqa: RUF012 - the library declares it so

    def parse(self, parser: Any) -> Any:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise(words: str) -> None:
    raise TemplateError(words)


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **kinds: Any) -> str:
    # Jinja's own escapes < and > for HTML, which models were not trained with.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **kinds)
