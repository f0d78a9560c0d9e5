"""A normal form as a Lark grammar in llguidance's dialect: a rule for each node, large terminals, no two that part
where one goes on.

The lexer takes the longest match, so every terminal ends where all others at its place end: a name with the comma
before it and the colon behind it is one.
"""

from __future__ import annotations

import json
from fractions import Fraction

import llguidance

from palmette.runtime.constraints.schema.loosen import counts
from palmette.runtime.constraints.schema.lower_json import WHITESPACE, number_keywords
from palmette.runtime.constraints.schema.number_regex import (
    ANY_NUMBER,
    INTEGER,
    NEVER,
    PLAIN_NUMBER,
    multiples_of_power,
    spelling,
    spellings,
    step,
    within,
)
from palmette.runtime.constraints.schema.reach import uses
from palmette.runtime.constraints.schema.shapes import (
    ANY_TEXT,
    NOTHING_NODE,
    Anything,
    Arrays,
    Fixed,
    Member,
    Node,
    Normal,
    Numbers,
    Objects,
    Shape,
    Strings,
    Text,
)
from palmette.runtime.constraints.schema.text_terminals import ANY_STRING, literal, terminal, written


def lark_form(normal: Normal, *, whitespace: bool) -> str:
    """llguidance's grammar of it."""
    return llguidance.LLMatcher.grammar_from_lark(lark_text(normal, whitespace=whitespace))


def lark_text(normal: Normal, *, whitespace: bool, prefix: str = "", start: str = "start") -> str:
    """The grammar's text; `prefix` stands before all its names but `start`."""
    writer = _Writer(normal, whitespace, prefix)
    for node in uses(normal):
        writer.node(node)
    return f"{start}: {writer.value(normal.root)}\n" + "\n".join(writer.lines) + "\n"


def number_terminal(shape: Numbers) -> str:
    """A Lark expression of the numbers, but for steps other than 1 and powers of ten in not_multiple_of."""
    if shape.only is not None:
        options = []
        for value in sorted(shape.only):
            options += [literal(spelling(value)), *map(literal, _short(value))]
        return "(" + " | ".join(options) + ")"
    integers = step(shape) == 1
    denied = [f"/{spellings(value)}/" for value in sorted(shape.without)]
    denied += [f"/{multiples_of_power(value)}/" for value in shape.not_multiple_of]
    if shape.low is None and shape.high is None:
        base = f"/{INTEGER}/" if integers else f"/{PLAIN_NUMBER if denied else ANY_NUMBER}/"
    else:
        options = []
        for sign, asked in within(shape, integers=integers):
            body = " & ".join(f"/{rx}/" for rx in asked)
            body = f"({body})" if len(asked) > 1 else body
            options.append(f'"{sign}" {body}' if sign else body)
        base = "(" + " | ".join(options) + ")"
    return " & ".join([base, *(f"~{d}" for d in denied)])


def _short(value: Fraction) -> list[str]:
    """A long number's spellings with an exponent, where those are of the very same number."""
    if len(spelling(value)) <= 16:
        return []
    try:
        short = json.dumps(float(value))
    except OverflowError:
        return []
    if "e" not in short or Fraction(short) != value:
        return []
    return list(dict.fromkeys([short, short.replace("e+", "e")]))


_WORDS = (Fixed, Strings)


class _Writer:
    def __init__(self, normal: Normal, whitespace: bool, prefix: str) -> None:
        self.normal = normal
        self.lines: list[str] = []
        self._prefix = prefix
        self._terminals: dict[str, str] = {}
        self._values: dict[Node, str] = {}
        self._rules = 0
        self._space = [self.terminal(f"/{WHITESPACE}/")] if whitespace else []
        self._comma = self.lexeme(*self._space, '","', *self._space)
        self._any = ""

    # -- names

    def terminal(self, expression: str) -> str:
        name = self._terminals.get(expression)
        if name is None:
            name = self._terminals[expression] = f"{self._prefix.upper()}T{len(self._terminals)}"
            self.lines.append(f"{name}: {expression}")
        return name

    def lexeme(self, *items: str) -> str:
        return self.terminal(" ".join(items))

    def rule(self, body: str) -> str:
        name = f"{self._prefix}r{self._rules}"
        self._rules += 1
        self.lines.append(f"{name}: {body}")
        return name

    # -- values

    def value(self, node: Node) -> str:
        """The symbol that stands for a node's values."""
        if node not in self._values:
            shapes = self.normal.nodes[node]
            if any(isinstance(shape, Anything) for shape in shapes):
                self._values[node] = self.anything()
            elif all(self.is_scalar(shape) for shape in shapes):
                self._values[node] = self.terminal(self.scalars(shapes))
            else:
                self._values[node] = f"{self._prefix}n{node}"
        return self._values[node]

    def node(self, node: Node) -> None:
        """Writes the rule of a node, if it has one."""
        if node == NOTHING_NODE or self.value(node) != f"{self._prefix}n{node}":
            return
        shapes = self.normal.nodes[node]
        options = []
        scalars = tuple(shape for shape in shapes if self.is_scalar(shape))
        if scalars:
            options.append(self.terminal(self.scalars(scalars)))
        for shape in shapes:
            if self.is_scalar(shape):
                continue
            if isinstance(shape, Numbers):
                keywords = {**(number_keywords(shape) or {}), "x-guidance": {"whitespace_flexible": False}}
                options.append(f"%json {json.dumps(keywords)}")
            elif isinstance(shape, Arrays):
                options.append(self.array(shape))
            elif isinstance(shape, Objects):
                options.append(self.object(shape))
        self.lines.append(f"{self._prefix}n{node}: " + " | ".join(options))

    @staticmethod
    def is_scalar(shape: Shape) -> bool:
        if isinstance(shape, Numbers):
            return shape.only is not None or step(shape) in (None, 1)
        return isinstance(shape, _WORDS)

    @staticmethod
    def scalars(shapes: tuple[Shape, ...]) -> str:
        options = []
        for shape in shapes:
            if isinstance(shape, Fixed):
                options.append(literal(shape.text))
            elif isinstance(shape, Numbers):
                options.append(number_terminal(shape))
            elif isinstance(shape, Strings):
                options.append(_quoted(shape.text))
        return " | ".join(options)

    def anything(self) -> str:
        if not self._any:
            name = self._any = f"{self._prefix}any"
            scalar = self.terminal(f"/null|true|false|{ANY_NUMBER}/ | {ANY_STRING}")
            key, more = (self.key(ANY_STRING, comma) for comma in (False, True))
            opened, closed = self.brackets("[", "]")
            begun, ended = self.brackets("{", "}")
            items = f"({name} ({self._comma} {name})*)?"
            self.lines.append(f"{name}: {scalar} | {opened} {items} {closed}")
            self.lines.append(f"{name}_o: {begun} ({key} {name} ({more} {name})*)? {ended}")
            self.lines[-2] += f" | {name}_o"
        return self._any

    def brackets(self, opening: str, closing: str) -> tuple[str, str]:
        return self.lexeme(literal(opening), *self._space), self.lexeme(*self._space, literal(closing))

    def key(self, name: str, comma: bool) -> str:
        """The lexeme of a name: what stands before it, and the colon."""
        before = [*self._space, '","', *self._space] if comma else []
        return self.lexeme(*before, name, *self._space, '":"', *self._space)

    # -- arrays

    def array(self, shape: Arrays) -> str:
        opened, closed = self.brackets("[", "]")
        if shape.contains:
            [contains] = shape.contains
            some, item = self.value(contains.node), self.value(shape.rest)
            before = f"({item} {self._comma})*"
            again = f"({self._comma} {before} {some}){{{contains.least - 1}}}" if contains.least > 1 else ""
            return f"{opened} {before} {some} {again} ({self._comma} {item})* {closed}"
        prefix = list(shape.prefix)
        most, rest = shape.most, shape.rest
        if NOTHING_NODE in prefix:
            end = prefix.index(NOTHING_NODE)
            most = end if most is None else min(most, end)
        if most is not None and most <= len(prefix):
            prefix, rest = prefix[:most], NOTHING_NODE
        if rest == NOTHING_NODE:
            body, least = "", 0
        else:
            least = max(shape.least - len(prefix), 0)
            body = self.repeat(self.value(rest), least, None if most is None else most - len(prefix), bool(prefix))
        for i in range(len(prefix) - 1, -1, -1):
            comma = self._comma if i else ""
            body = f"{comma} {self.value(prefix[i])} {body}"
            if i >= shape.least:
                body = f"({body})?"
        return f"{opened} {body} {closed}"

    def repeat(self, item: str, least: int, most: int | None, after: bool) -> str:
        """`item` so many times, with commas between and, if `after`, before."""
        again = f"{self._comma} {item}"
        if after:
            return _times(again, least, most)
        if most == 0:
            return ""
        body = f"{item} {_times(again, max(least - 1, 0), None if most is None else most - 1)}"
        return body if least else f"({body})?"

    # -- objects

    def object(self, shape: Objects) -> str:
        opened, closed = self.brackets("{", "}")
        least, most = counts(shape)
        members = [member for member in shape.members if member.node != NOTHING_NODE]
        others = [
            (_quoted(other.names), self.value(other.node)) for other in shape.others if other.node != NOTHING_NODE
        ]
        if least or most is not None:
            inner = self.counted(members, others, least, most)
        else:
            inner = self.uncounted(members, others)
        return f"{opened} {inner} {closed}"

    def pair(self, member: Member, comma: bool) -> str:
        return f"{self.key(literal(written(member.name)), comma)} {self.value(member.node)}"

    def further(self, others: list[tuple[str, str]], comma: bool) -> str:
        return "(" + " | ".join(f"{self.key(name, comma)} {value}" for name, value in others) + ")"

    def uncounted(self, members: list[Member], others: list[tuple[str, str]]) -> str:
        first = next((i for i, member in enumerate(members) if member.required), len(members))
        # tails[i]: what may follow when something has been written and member i is the next.
        tail = f"{self.further(others, True)}*" if others else ""
        for member in reversed(members[first + 1 :]):
            tail = f"({self.pair(member, True)}){'' if member.required else '?'} {tail}"
        if first < len(members):
            start = f"{self.pair(members[first], False)} {tail}"
            tail = f"{self.pair(members[first], True)} {tail}"
        else:
            start = f"({self.further(others, False)} {tail})?" if others else ""
        for member in reversed(members[:first]):
            tail = self.rule(tail) if tail.strip() else ""
            first_of_all = f"{self.pair(member, False)} {tail}"
            start = self.rule(f"{first_of_all} | {start}" if start else f"({first_of_all})?")
            tail = f"({self.pair(member, True)})? {tail}"
        return start

    def counted(self, members: list[Member], others: list[tuple[str, str]], least: int, most: int | None) -> str:
        top = max(least, most or 0)  # from here on, counts need not be told apart
        known: dict[tuple[int, int], str | None] = {}

        def after(i: int, written: int) -> str | None:
            """A rule for the members from i on and the others, `written` being there; None where there is no way."""
            key = (i, min(written, top + 1 if most is not None else top))
            if key not in known:
                body = build(i, key[1])
                known[key] = None if body is None else self.rule(body or '""')
            return known[key]

        def build(i: int, written: int) -> str | None:
            if most is not None and written > most:
                return None
            if i == len(members):
                low = max(least - written, 0)
                high = None if most is None else most - written
                if not others or high == 0:
                    return None if low else ""
                again = self.further(others, True)
                if written:
                    return _times(again, low, high)
                more = _times(again, max(low - 1, 0), None if high is None else high - 1)
                body = f"{self.further(others, False)} {more}"
                return body if low else f"({body})?"
            member = members[i]
            options = []
            if (then := after(i + 1, written + 1)) is not None:
                options.append(f"{self.pair(member, written > 0)} {then}")
            if not member.required and (then := after(i + 1, written)) is not None:
                options.append(then)
            return " | ".join(options) or None

        found = after(0, 0)
        return self.terminal(f"/{NEVER}/") if found is None else found


def _quoted(text: Text) -> str:
    if text == ANY_TEXT:
        return ANY_STRING
    if text.only is not None:
        return "(" + " | ".join(literal(written(s)) for s in sorted(text.only)) + ")"
    return rf'("\"" {terminal(text)} "\"")'


def _times(item: str, least: int, most: int | None) -> str:
    """`item` so many times; nothing where it may not be there."""
    if most is None:
        return f"({item})" + {0: "*", 1: "+"}.get(least, f"{{{least},}}")
    return f"({item}){{{least},{most}}}" if most else ""
