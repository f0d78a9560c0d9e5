"""The texts of the workloads, made from seeds by the measure of the model's tokenizer.

No variant shares its texts with another: a run never finds in a prefix cache what an earlier one left there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, NamedTuple

from palmette.benchmarks.synthetic import Writer
from palmette.errors import ArgumentError, suggestion
from palmette.runtime.protocol import Codec

Data = dict[str, Any]

_NAMES = ("Alice", "Robert", "Maria", "James", "Linda", "David", "Susan", "Peter", "Karen", "Thomas", "Nancy", "Daniel")
_THINGS = ("apples", "books", "pencils", "coins", "cards", "stamps", "marbles", "flowers", "boxes", "tickets", "lamps")
_PLACES = ("market", "school", "library", "office", "farm", "station", "museum", "park", "factory", "hospital")
_STATES = ("pending", "paid", "shipped", "delivered", "cancelled", "returned", "lost", "new", "open", "closed")
_SYSTEM = "You write orders as JSON."

# A nested object, enums, an array, ranges of integers, lengths of strings.
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "order_id": {"type": "integer", "minimum": 1000, "maximum": 9999},
        "status": {"enum": list(_STATES[:5])},
        "customer": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "minLength": 1, "maxLength": 24},
                "age": {"type": "integer", "minimum": 18, "maximum": 99},
                "member": {"type": "boolean"},
            },
            "required": ["name", "age", "member"],
            "additionalProperties": False,
        },
        "items": {
            "type": "array",
            "minItems": 1,
            "maxItems": 3,
            "items": {
                "type": "object",
                "properties": {
                    "sku": {"enum": ["A-100", "B-200", "C-300", "D-400"]},
                    "quantity": {"type": "integer", "minimum": 1, "maximum": 20},
                    "note": {"type": "string", "maxLength": 16},
                },
                "required": ["sku", "quantity", "note"],
                "additionalProperties": False,
            },
        },
        "priority": {"type": "integer", "minimum": 1, "maximum": 5},
    },
    "required": ["order_id", "status", "customer", "items", "priority"],
    "additionalProperties": False,
}


class Author:
    """Texts for one variant of one workload. `size` is what must be known of the texts to say how much work they are
    (see roofline.py), in tokens."""

    def __init__(self, codec: Codec, label: str, variant: int) -> None:
        self._writer, self.random = Writer(codec), Random(f"{label}/{variant}")

    def count(self, text: str) -> int:
        return self._writer.count(text)

    def prose(self, tokens: int) -> str:
        """Text of just so many tokens."""
        text = self._writer.text(self.random, tokens)
        while self.count(text) < tokens:
            text += " a"
        return text

    def problem(self) -> tuple[str, str]:
        """A question and its answer, worked out."""
        a, b, c = self.random.randint(12, 90), self.random.randint(3, 11), self.random.randint(2, 9)
        name, things, place = (self.random.choice(words) for words in (_NAMES, _THINGS, _PLACES))
        question = (
            f"{name} has {a} {things} and goes to the {place} to buy {b} more boxes with {c} {things} in each box. "
            f"How many {things} does {name} have in the end?"
        )
        return question, f"{name} has {a} and {b} times {c}, which gives {a + b * c}. #### {a + b * c}"

    def choice(self) -> tuple[str, list[str], int]:
        """A question with four options, those as they follow it, and which is right."""
        a, b = self.random.randint(11, 60), self.random.randint(11, 60)
        things, place = self.random.choice(_THINGS), self.random.choice(_PLACES)
        wrong = self.random.sample([a + b + d for d in (-20, -10, -9, -2, -1, 1, 2, 9, 10, 20)], 3)
        sums = [*wrong, a + b]
        self.random.shuffle(sums)
        texts = [f" {letter}. {n} {things} in the {place}" for letter, n in zip("ABCD", sums, strict=True)]
        question = (
            f"Question: The {place} has {a} {things} in the first room and {b} {things} in the second room. "
            f"How many {things} are there in both rooms together?\n"
        )
        return question + "".join(f"{text[1:]}\n" for text in texts) + "Answer:", texts, sums.index(a + b)

    def schema(self) -> dict[str, Any]:
        """One of the shape of SCHEMA, with other names, enums and ranges, and a property more."""
        schema: dict[str, Any] = json.loads(json.dumps(SCHEMA))
        draw, properties = self.random, schema["properties"]
        least = 10 * draw.randint(100, 400)
        properties["order_id"].update(minimum=least, maximum=least + draw.randint(500, 5000))
        properties["status"]["enum"] = draw.sample(_STATES, 5)
        properties["customer"]["properties"]["age"].update(minimum=draw.randint(1, 30), maximum=draw.randint(60, 140))
        item = properties["items"]["items"]
        item["properties"]["sku"] = {"enum": [f"{word}-{draw.randint(100, 999)}" for word in draw.sample(_THINGS, 4)]}
        code = f"{draw.choice(_PLACES)}_code"
        item["properties"][code] = {"enum": draw.sample(_NAMES, 4)}
        item["required"].append(code)
        return schema


def _one_stream(author: Author) -> Data:
    lengths = (128, 512, 2048)
    prompt = author.prose(32)
    return {"prompt": prompt, "new": 256, "first": {str(n): author.prose(n) for n in lengths}, "size": {"prompt": 32}}


def _together(requests: int) -> Callable[[Author], Data]:
    def make(author: Author) -> Data:
        prompts = [author.prose(64) for _ in range(requests)]
        return {"prompts": prompts, "new": 128, "size": {"requests": requests, "prompt": 64}}

    return make


def _prefix(author: Author) -> Data:
    head = f"Exercise set {author.random.randint(1000, 9999)} of {author.random.choice(_NAMES)}.\n\n"
    shots = ["Question: {}\nAnswer: {}\n\n".format(*author.problem()) for _ in range(5)]
    left = 1500 - author.count(head + "".join(shots))
    prefix = head + "".join(f"Context: {author.prose(left // 5 - 3)}\n{shot}" for shot in shots)

    def questions() -> list[str]:
        return [f"Question: {author.problem()[0]}\nAnswer:" for _ in range(64)]

    cold, warm = questions(), questions()
    size = {"requests": 64, "prefix": author.count(prefix), "question": mean([author.count(text) for text in cold])}
    return {"prefix": prefix, "cold": cold, "warm": warm, "new": 16, "size": size}


def _chats(author: Author) -> Data:
    system = f"You are helper number {author.random.randint(100, 999)}. {author.prose(32)}"
    turns = [[author.prose(128) for _ in range(6)] for _ in range(8)]
    # Of a turn: its text, and what the template puts around it and around the answer.
    return {"system": system, "turns": turns, "new": 64, "size": {"requests": 8, "turns": 6, "turn": 128 + 10}}


def _schemas(distinct: bool) -> Callable[[Author], Data]:
    def make(author: Author) -> Data:
        talks = []
        for _ in range(32):
            draw = author.random
            name, things, place = (draw.choice(words) for words in (_NAMES, _THINGS, _PLACES))
            said = (
                f"Order {draw.randint(1000, 9999)}: {name}, aged {draw.randint(18, 80)}, bought {draw.randint(1, 9)} "
                f"{things} at the {place} and asked for delivery on day {draw.randint(1, 28)}. Write this order as one "
                f"JSON object with order_id, status, customer, items and priority."
            )
            talks.append([("system", _SYSTEM), ("user", said)])
        schemas = [author.schema() if distinct else SCHEMA for _ in talks]
        prompt = author.count(talks[0][0][1] + talks[0][1][1]) + 15
        return {"talks": talks, "schemas": schemas, "limit": 200, "size": {"requests": 32, "prompt": prompt}}

    return make


def _choices(author: Author) -> Data:
    prefix = f"The following are multiple choice questions, set {author.random.randint(1000, 9999)}.\n\n"
    while author.count(prefix) < 960:
        question, texts, right = author.choice()
        prefix += f"{question}{texts[right]}\n\n"
    items = [author.choice() for _ in range(64)]
    questions, options, gold = (list(part) for part in zip(*items, strict=True))
    size = {
        "requests": 64,
        "prefix": author.count(prefix),
        "question": mean([author.count(text) for text in questions]),
        "option": mean([author.count(text) for texts in options for text in texts]),
    }
    return {"prefix": prefix, "questions": questions, "options": options, "gold": gold, "size": size}


def mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers)


class Workload(NamedTuple):
    title: str
    make: Callable[[Author], Data]


WORKLOADS = {
    "A": Workload("one stream: 32 tokens of prompt, 256 new; first token after 128, 512, 2048", _one_stream),
    "B32": Workload("32 requests together, 64 tokens of prompt, 128 new", _together(32)),
    "B64": Workload("64 requests together, 64 tokens of prompt, 128 new", _together(64)),
    "C": Workload("64 questions of about 40 tokens behind one prefix of 1500, 16 new; then 64 others", _prefix),
    "D": Workload("8 conversations of 6 turns, 128 tokens said and 64 answered in each", _chats),
    "E": Workload("32 requests under one JSON schema, at most 200 new", _schemas(distinct=False)),
    "E2": Workload("the same with 32 schemas that were never seen before", _schemas(distinct=True)),
    "F1": Workload("64 four-way choices behind a prefix of 1000 tokens, by letter", _choices),
    "F2": Workload("the same, by the whole text of each option", _choices),
    "G": Workload("from the start of the process to its first token; memory", lambda author: {}),
}
_SHORT = {"B": ["B32", "B64"], "F": ["F1", "F2"], "all": list(WORKLOADS)}


def named(words: str) -> list[str]:
    """Workloads from a list with commas, in which "B", "F" and "all" stand for several. ArgumentError for others."""
    chosen: list[str] = []
    for word in words.split(","):
        names = _SHORT.get(word.strip(), [word.strip()])
        if names[0] not in WORKLOADS:
            raise ArgumentError(f"there is no workload {word!r}", hint=suggestion(word, [*WORKLOADS, *_SHORT]))
        chosen += [name for name in names if name not in chosen]
    return chosen


def made(codec: Codec, name: str, variant: int) -> Data:
    return WORKLOADS[name].make(Author(codec, name, variant))
