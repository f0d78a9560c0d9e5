"""A tour of palmette in one program: gen, select, a regex, JSON and fork.

    python examples/tour.py
    palmette run examples/tour.py --arg animal=heron
"""

from typing import Annotated

from pydantic import BaseModel, Field

import palmette as pt


class Animal(BaseModel):
    """What the JSON answer must look like, with no keys beside these. Bounds keep a small model from rambling."""

    name: Annotated[str, Field(max_length=20)]
    legs: Annotated[int, Field(ge=0, le=8)]
    can_swim: bool


@pt.function
def tour(s, animal: str = "otter"):
    # `s` is the state: a growing text and the variables found in it. `s += ...` appends.
    s += pt.system("You answer briefly.")

    # gen: the model writes freely, here up to the end of the line.
    s += pt.user(f"In one short sentence: what kind of animal is the {animal}?")
    s += pt.assistant(pt.gen("sentence", max_tokens=32, stop="\n"))

    # select: the most probable of the given options. All are scored exactly, in one request.
    s += pt.user("Where does it live?")
    s += pt.assistant("It lives " + pt.select("home", ["in the water", "in trees", "under the ground"]))

    # regex: the text must match the whole pattern.
    s += pt.user("How heavy is it?")
    s += pt.assistant("About " + pt.gen("weight", regex=r"[1-9][0-9]{0,2} (kg|g)"))

    # JSON: the text must be valid for the type, and `state.value("record")` is an Animal. Tokens that the type leaves
    # no choice about are filled in without asking the model: they are the "forced" ones.
    s += pt.user("Describe it as JSON.")
    s += pt.assistant(pt.gen("record", type=Animal, max_tokens=64))

    # fork: two branches go on from here, side by side; the text so far is computed once for both.
    # After the block, each variable made in the branches is a list with one entry per branch.
    with s.fork(2) as branches:
        for branch, question in zip(branches, ["What does it eat?", "What hunts it?"], strict=True):
            branch += pt.user(question)
            branch += pt.assistant(pt.gen("food", max_tokens=16, stop="\n"))


def main() -> None:
    engine = pt.Engine("smollm2-135m")  # fetched once, then kept in your cache folder
    state = tour.run(backend=engine, temperature=0)

    print(f"{'answer':10} {'cached':>6} {'generated':>9} {'forced':>6}")
    for name in ("sentence", "home", "weight", "record", "food"):
        results = state.result(name)
        for result in results if isinstance(results, list) else [results]:
            # Cached: prompt tokens that an earlier step had computed. Generated: 0 for a select, which scores options
            # instead. Forced: those of the generated tokens that the model was not asked for.
            counts = f"{result.cached_tokens:6} {result.completion_tokens:9} {result.forced_tokens:6}"
            print(f"{name:10} {counts}   {result.text}")
    print("The record is a", repr(state.value("record")))


if __name__ == "__main__":
    main()
