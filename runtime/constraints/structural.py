"""Structural tags: free text, and in it, or in its place, parts that are bound to a schema, a regex or a grammar.

A specification is JSON, in the two forms that servers take. The older one lists what may stand amid free text:

    {"structures": [{"begin": "<fn=add>", "schema": {...}, "end": "</fn>"}], "triggers": ["<fn="]}

The newer one is a tree of formats, `{"type": "structural_tag", "format": F}` or F by itself, where F has a "type":
const_string, any_text, json_schema, regex, grammar, sequence, or, tag, triggered_tags, tags_with_separator. Both become
a grammar in llguidance's dialect of Lark, in which free text ends at the first trigger: what has begun as a call goes
on as one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from palmette.errors import ConstraintError, suggestion

_ANY = r"/(.|\n)*/"


class _Format(NamedTuple):
    """needs: keys that must be there, with their kinds; may: that may be."""

    write: Callable[[_Writer, Mapping[str, Any], str], str]
    needs: Mapping[str, type | tuple[type, ...]]
    may: Mapping[str, type | tuple[type, ...]]


def lark(text: str, control: Mapping[str, int | None]) -> str:
    """The grammar of a specification. control: ids of the control tokens by how they are written; where a string of the
    specification holds such a spelling, the token is meant. None for one that ends every text, and is left out.

    ConstraintError with the pointer where the specification is wrong.
    """
    try:
        spec = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ConstraintError(f"the structural tag is not JSON: {error}", hint="give it as JSON") from error
    try:
        return _Writer(control).grammar(spec)
    except RecursionError:
        raise ConstraintError("the structural tag is nested too deeply", hint="use fewer levels") from None


def _modern(spec: Any) -> tuple[Any, str]:
    """The format, and its pointer, of either form."""
    if not isinstance(spec, dict):
        raise ConstraintError(
            f"a structural tag must be an object, not {type(spec).__name__}",
            hint='give {"structures": [...], "triggers": [...]} or {"type": "structural_tag", "format": {...}}',
        )
    if "structures" not in spec:
        return (spec.get("format"), "/format") if spec.get("type") == "structural_tag" else (spec, "")
    _checked(spec, "", {"structures": list, "triggers": list}, {"type": str})
    tags = []
    for i, one in enumerate(spec["structures"]):
        at = f"/structures/{i}"
        if not isinstance(one, dict):
            raise ConstraintError("a structure must be an object", pointer=at, hint='give "begin", "schema" and "end"')
        _checked(one, at, {"begin": str, "end": str}, {"schema": (dict, bool)})
        content = {"type": "json_schema", "json_schema": one.get("schema", True)}
        tags.append({"type": "tag", "begin": one["begin"], "content": content, "end": one["end"]})
    return {"type": "triggered_tags", "triggers": spec["triggers"], "tags": tags}, ""


class _Writer:
    """Rules are numbered as they are made; each format gives an expression."""

    def __init__(self, control: Mapping[str, int | None]) -> None:
        self._control = control
        spelled = sorted(filter(None, control), key=len, reverse=True)
        self._names = re.compile("|".join(map(re.escape, spelled))) if spelled else None
        self._rules: list[str] = []

    def grammar(self, spec: Any) -> str:
        form, at = _modern(spec)
        start = self.expression(form, at)
        return "\n".join([f"start: {start}", *self._rules]) + "\n"

    def expression(self, form: Any, at: str) -> str:
        kind = form.get("type") if isinstance(form, dict) else None
        if not isinstance(kind, str) or kind not in _FORMATS:
            raise ConstraintError(
                f"there is no format {kind!r}" if kind is not None else "a format must be an object with a type",
                pointer=f"{at}/type" if kind is not None else at,
                hint=suggestion(str(kind), _FORMATS),
            )
        known = _FORMATS[kind]
        _checked(form, at, known.needs, {"type": str, **known.may})
        return known.write(self, form, at)

    def text(self, text: str, at: str) -> str:
        """An expression for just this text, its control tokens by their ids."""
        if re.search("[\ud800-\udfff]", text):
            raise ConstraintError("a string with half a surrogate pair cannot be written", pointer=at, hint="mend it")
        parts, end = [], 0
        for found in self._names.finditer(text) if self._names else ():
            token = self._control[found.group()]
            parts += [_quoted(text[end : found.start()]), "" if token is None else f"<[{token}]>"]
            end = found.end()
        return " ".join(part for part in [*parts, _quoted(text[end:])] if part) or '""'

    def rule(self, body: str, attributes: str = "") -> str:
        name = f"part_{len(self._rules)}"
        self._rules.append(f"{name}{attributes}: {body}")
        return name

    def until(self, end: str, at: str) -> str:
        """Free text up to the first `end`, that included."""
        if self._names is not None and (found := self._names.match(end)):
            return f"{self.rule(_ANY)} {self.text(found.group(), at)}"
        return self.rule(f"{_ANY} {self.text(end, at)}", "[lazy]")

    # -- formats

    def const_string(self, form: Mapping[str, Any], at: str) -> str:
        return self.text(form["value"], f"{at}/value")

    def any_text(self, form: Mapping[str, Any], at: str) -> str:
        return self.rule(_ANY)

    def json_schema(self, form: Mapping[str, Any], at: str) -> str:
        return f"%json {json.dumps(form['json_schema'], ensure_ascii=False)}"

    def regex(self, form: Mapping[str, Any], at: str) -> str:
        from palmette.runtime.constraints.regex_language import read_regex
        from palmette.runtime.constraints.regex_rust import rust_regex

        try:
            rust = rust_regex(read_regex(form["pattern"]))
        except ConstraintError as error:
            raise ConstraintError(
                f"{error.pointer}: {error.message}".removeprefix(": "), pointer=f"{at}/pattern", hint=error.hint
            ) from error
        if rust is None:
            raise ConstraintError(
                "a look-ahead or word boundary cannot be enforced inside a structural tag",
                pointer=f"{at}/pattern",
                hint="say it with the rest of the pattern",
            )
        return self.rule("/" + rust.replace("/", r"\/").replace("\n", r"\n") + "/")

    def nested(self, form: Mapping[str, Any], at: str) -> str:
        return self.rule("%lark {\n" + form["grammar"] + "\n}")

    def sequence(self, form: Mapping[str, Any], at: str) -> str:
        return " ".join(self._each(form["elements"], f"{at}/elements"))

    def either(self, form: Mapping[str, Any], at: str) -> str:
        return self.rule(" | ".join(self._each(form["elements"], f"{at}/elements")))

    def tag(self, form: Mapping[str, Any], at: str) -> str:
        return f"{self.text(form['begin'], f'{at}/begin')} {self._inside(form, at)}"

    def triggered_tags(self, form: Mapping[str, Any], at: str) -> str:
        """Free text, in which a trigger begins one of the tags that begin with it."""
        triggers = form["triggers"]
        if not triggers or not all(isinstance(trigger, str) and trigger for trigger in triggers):
            raise ConstraintError("triggers must be strings", pointer=f"{at}/triggers", hint="give at least one")
        calls: dict[str, list[str]] = {}
        for where, tag in self._tags(form, at):
            trigger = max((t for t in triggers if tag["begin"].startswith(t)), key=len, default=None)
            if trigger is None:
                raise ConstraintError(
                    f"{tag['begin']!r} begins with none of the triggers",
                    pointer=f"{where}/begin",
                    hint=f"begin it with one of {', '.join(map(repr, triggers))}",
                )
            rest = tag["begin"][len(trigger) :]
            calls.setdefault(trigger, []).append(f"{self.text(rest, where)} {self._inside(tag, where)}")
        call = self.rule(
            " | ".join(
                f"{self.until(trigger, f'{at}/triggers')} ({' | '.join(rests)})" for trigger, rests in calls.items()
            )
        )
        least, once = form.get("at_least_one", False), form.get("stop_after_first", False)
        many = call if least and once else f"{call}?" if once else f"{call}+" if least else f"{call}*"
        # Once a call has been made and no other may come, the text ends with it.
        if once:
            return call if least else self.rule(f"{call} | {self.rule(_ANY)}")
        return f"{many} {self.rule(_ANY)}"

    def tags_with_separator(self, form: Mapping[str, Any], at: str) -> str:
        one = self.rule(" | ".join(self.tag(tag, where) for where, tag in self._tags(form, at)))
        if form.get("stop_after_first", False):
            many = one
        else:
            many = self.rule(f"{one} ({self.text(form['separator'], f'{at}/separator')} {one})*")
        return many if form.get("at_least_one", False) else f"({many})?"

    def _inside(self, tag: Mapping[str, Any], at: str) -> str:
        """What comes behind a tag's begin."""
        content, end = tag["content"], tag["end"]
        if isinstance(content, dict) and content.get("type") == "any_text" and end:
            return self.until(end, f"{at}/end")
        return f"{self.expression(content, f'{at}/content')} {self.text(end, f'{at}/end')}"

    def _tags(self, form: Mapping[str, Any], at: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        if not form["tags"]:
            raise ConstraintError("there are no tags", pointer=f"{at}/tags", hint="give at least one")
        for i, tag in enumerate(form["tags"]):
            where = f"{at}/tags/{i}"
            if not isinstance(tag, dict):
                raise ConstraintError("a tag must be an object", pointer=where, hint='give "begin", "content", "end"')
            _checked(tag, where, _FORMATS["tag"].needs, {"type": str})
            yield where, tag

    def _each(self, forms: Sequence[Any], at: str) -> list[str]:
        if not forms:
            raise ConstraintError("there are no elements", pointer=at, hint="give at least one")
        return [self.expression(form, f"{at}/{i}") for i, form in enumerate(forms)]


_FORMATS = {
    "const_string": _Format(_Writer.const_string, {"value": str}, {}),
    "any_text": _Format(_Writer.any_text, {}, {}),
    "json_schema": _Format(_Writer.json_schema, {"json_schema": (dict, bool)}, {}),
    "regex": _Format(_Writer.regex, {"pattern": str}, {}),
    "grammar": _Format(_Writer.nested, {"grammar": str}, {}),
    "sequence": _Format(_Writer.sequence, {"elements": list}, {}),
    "or": _Format(_Writer.either, {"elements": list}, {}),
    "tag": _Format(_Writer.tag, {"begin": str, "content": dict, "end": str}, {}),
    "triggered_tags": _Format(
        _Writer.triggered_tags, {"triggers": list, "tags": list}, {"at_least_one": bool, "stop_after_first": bool}
    ),
    "tags_with_separator": _Format(
        _Writer.tags_with_separator,
        {"tags": list, "separator": str},
        {"at_least_one": bool, "stop_after_first": bool},
    ),
}


def _checked(
    form: Mapping[str, Any],
    at: str,
    needs: Mapping[str, type | tuple[type, ...]],
    may: Mapping[str, type | tuple[type, ...]],
) -> None:
    """All keys known, all that are needed there, each of its kind."""
    for key, value in form.items():
        kind = needs.get(key) or may.get(key)
        if kind is None:
            raise ConstraintError(f"unknown key {key!r}", pointer=f"{at}/{key}", hint=suggestion(key, [*needs, *may]))
        if not isinstance(value, kind):
            names = " or ".join(each.__name__ for each in (kind if isinstance(kind, tuple) else (kind,)))
            raise ConstraintError(
                f"{key!r} must be {names}, not {type(value).__name__}", pointer=f"{at}/{key}", hint="write it so"
            )
    for key in needs:
        if key not in form:
            raise ConstraintError(f"{key!r} is missing", pointer=at, hint=f"give it beside {', '.join(needs)}")


def _quoted(text: str) -> str:
    """A string of Lark; the empty text is no part of a sequence."""
    return json.dumps(text, ensure_ascii=True) if text else ""
