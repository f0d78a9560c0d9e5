"""W8b, a whole object by one regex: fixed keys in a fixed order, so that most of its text has only one continuation."""

from __future__ import annotations

import palmette as pt
from palmette.benchmarks.workload import Manner, Round, Setup, Workload

_WORD = r'"[\w\d\s]{1,16}"'
REGEX = (
    r'\{\n    "name": ' + _WORD + r",\n"
    r'    "house": "(Gryffindor|Slytherin|Ravenclaw|Hufflepuff)",\n'
    r'    "blood status": "(Pure-blood|Half-blood|Muggle-born)",\n'
    r'    "occupation": "(student|teacher|auror|ministry of magic|death eater|order of the phoenix)",\n'
    r'    "wand": \{\n        "wood": ' + _WORD + r",\n"
    r'        "core": ' + _WORD + r",\n"
    r'        "length": [0-9]{1,2}\.[0-9]{0,2}\n    \},\n'
    r'    "alive": "(Alive|Deceased)",\n    "patronus": ' + _WORD + r",\n"
    r'    "bogart": ' + _WORD + r"\n\}"
)


@pt.function
def whole_object(s: pt.State, manner: Manner, name: str, max_tokens: int) -> None:
    s += f"{name} is a character of a book. Please fill in the following information about them.\n"
    manner.bound(s, name, "object", REGEX, max_tokens)


def rounds(setup: Setup) -> list[Round]:
    names = [f"{setup.text('name', number, tokens=6)} {number}" for number in range(setup.items)]
    return [[{"name": name, "max_tokens": 256} for name in names]]


WORKLOAD = Workload(
    name="W8b",
    title="JSON object by regex",
    about="one regex for a nested object with fixed keys: most of the text is forced, and is computed in one step",
    program=whole_object,
    rounds=rounds,
    items=24,
    scale=1.0,
    constrained=True,
)
