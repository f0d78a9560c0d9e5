"""Few-shot classification with `select`: the label, its probability, the runner-up, and "unclear".

    python examples/classify.py
    palmette run examples/classify.py --arg message="My parcel is broken"
"""

import palmette as pt

LABELS = ["Billing", "Billing - refund", "Delivery", "Account", "Praise"]
EXAMPLES = [
    ("I was charged twice this month.", "Billing"),
    ("I sent it back. When do I get my money?", "Billing - refund"),
    ("The package still has not arrived.", "Delivery"),
    ("I cannot log in any more.", "Account"),
    ("Great service, thank you!", "Praise"),
]
MESSAGES = [
    "Where is my order? I have waited two weeks.",
    "I forgot my password.",
    "You people are wonderful.",
    "Please pay me back for the broken lamp.",
]


@pt.function
def classify(s, message: str = MESSAGES[0]):
    # The same examples stand before every message: from the second message on they come from the cache.
    for text, label in EXAMPLES:
        s += f"Message: {text}\nLabel: {label}\n\n"
    s += f"Message: {message}\nLabel: "
    # One request scores all labels. "Billing" and "Billing - refund" share their beginning; each gets its exact share.
    s += pt.select("label", LABELS)


def main() -> None:
    engine = pt.Engine("smollm2-135m")
    states = classify.run_batch([{"message": message} for message in MESSAGES], backend=engine)
    for message, state in zip(MESSAGES, states, strict=True):
        result = state.result("label")
        best, second = sorted(LABELS, key=result.probabilities.get, reverse=True)[:2]
        # label_mass: how much of all that the model might write the labels hold. Little: it would say something else.
        verdict = best if result.label_mass > 0.05 else "unclear"
        print(
            f"{verdict:17} {result.probabilities[best]:4.0%}, then {second} {result.probabilities[second]:.0%}; "
            f"labels hold {result.label_mass:.0%}; "
            f"{result.cached_tokens} of {result.prompt_tokens} prompt tokens cached   {message}"
        )


if __name__ == "__main__":
    main()
