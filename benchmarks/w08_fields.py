"""W8, fields of a document: an article on a city, and of a literal JSON skeleton the model writes five values, each
under a regex of its own."""

from __future__ import annotations

from collections.abc import Mapping

import palmette as pt
from palmette.benchmarks.workload import Manner, Round, Setup, Workload

# What is asked for, under which regex, in how many tokens at most.
FIELDS: Mapping[str, tuple[str, int]] = {
    "name": (r'"[\w\d ]{1,16}"', 8),
    "country": (r'"[\w\d ]{1,16}"', 8),
    "latitude": (r"-?[0-9]{1,2}\.[0-9]{1,4}", 8),
    "population": (r"[1-9][0-9]{2,7}", 8),
    "top 3 landmarks": (r'\["[\w\d ]{1,20}", "[\w\d ]{1,20}", "[\w\d ]{1,20}"\]', 24),
}


@pt.function
def fields(s: pt.State, manner: Manner, article: str, number: int) -> None:
    s += f"{article}\n\nPlease extract the facts of this city as JSON.\n" + "{\n"
    for place, (name, (regex, max_tokens)) in enumerate(FIELDS.items()):
        s += f'  "{name}": '
        manner.bound(s, (number, name), name, regex, max_tokens)
        s += "\n}" if place + 1 == len(FIELDS) else ",\n"


def article(setup: Setup, number: int, tokens: int) -> str:
    """A made-up page in which all that is asked for occurs."""
    random = setup.random("city", number)
    name, country = (setup.text(word, number, tokens=4).split()[0] for word in ("name", "country"))
    facts = (
        f"{name} is a city in {country}. It lies at {random.uniform(-60, 60):.4f} degrees of latitude and has "
        f"{random.randint(1000, 9_000_000)} inhabitants. Visitors see the {name} tower, the old bridge and the "
        f"museum of {country}."
    )
    return f"{name}\n\n{facts} {setup.text('page', number, tokens=tokens)}"


def rounds(setup: Setup) -> list[Round]:
    return [[{"article": article(setup, number, 3000), "number": number} for number in range(setup.items)]]


WORKLOAD = Workload(
    name="W8",
    title="JSON fields by regex",
    about="an article, then five values of a JSON skeleton, each under its own regex; the article is shared by them",
    program=fields,
    rounds=rounds,
    items=16,
    scale=0.2,
    constrained=True,
)
