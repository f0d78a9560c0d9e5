"""Batch labelling with progress: many rows at once, results in order, and a bad row spoils nothing but itself.

    python examples/label_batch.py > labels.jsonl
"""

import json
import sys

import palmette as pt

REVIEWS = [
    "The soup was cold and the waiter was rude.",
    "Lovely place, we will come again!",
    "It was fine. Nothing special.",
    "",  # a broken row
    "Best pizza in town.",
    "We waited an hour and then left.",
    "The room was clean and quiet.",
    "Too expensive for what you get.",
]


@pt.function
def label(s, review: str = REVIEWS[0]):
    # The body runs exactly once per row, so it may do anything that Python can, errors included.
    if not review.strip():
        raise ValueError("the review is empty")
    s += "Reviews of restaurants and hotels, each with its mood and one word on why.\n\n"
    s += "Review: The staff was so kind.\nMood: good\nWhy: staff\n\n"
    s += "Review: My bed was broken.\nMood: bad\nWhy: bed\n\n"
    s += f"Review: {review}\nMood: " + pt.select("mood", ["good", "bad", "mixed"])
    # The line's end is part of the pattern: the model says itself when the word is over.
    s += "\nWhy:" + pt.gen("why", regex=r" [a-z]{3,12}\n", temperature=0)


def main() -> None:
    engine = pt.Engine("smollm2-135m")
    rows = [{"review": review} for review in REVIEWS]
    # on_error="keep": a row that fails keeps its error; with "raise" the first error would end the batch.
    states = label.run_batch(rows, backend=engine, progress_bar=True, on_error="keep")
    for review, state in zip(REVIEWS, states, strict=True):
        row = {"review": review}
        if state.error:
            row["error"] = str(state.error)
        else:
            p = state.result("mood").probabilities[state["mood"]]
            row |= {"mood": state["mood"], "p": round(p, 3), "why": state["why"].strip()}
        print(json.dumps(row))
    failed = sum(state.error is not None for state in states)
    print(f"{len(states) - failed} labelled, {failed} failed", file=sys.stderr)


if __name__ == "__main__":
    main()
