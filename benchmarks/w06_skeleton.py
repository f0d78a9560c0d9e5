"""W6, skeleton of thought: five short tips, then each is written out by a program of its own, all at once. Those
programs share their preamble with those of all other topics."""

from __future__ import annotations

import palmette as pt
from palmette.benchmarks.workload import Manner, Round, Setup, Workload

_TIPS = 5
_TOPICS = (
    "learning a musical instrument", "repairing a bicycle", "keeping bees", "speaking in public", "growing tomatoes",
    "sleeping well", "writing a novel", "hiking in winter", "saving money", "baking bread", "raising a puppy",
    "learning a language", "moving house", "taking photographs at night", "running a first marathon", "reading more",
)  # fmt: skip

EXPAND = """\
A short tip is written out as a paragraph.

Topic: cooking rice
Tip: rinse the rice first
Paragraph: Put the rice into a sieve and let cold water run through it until the water stays clear. That takes \
the loose starch away, which would glue the grains together. Let it drip off well, since every spoonful of water \
that stays counts when you measure the rest.

Topic: planting a tree
Tip: dig a wide hole
Paragraph: Roots grow sideways long before they grow down. A hole three times as wide as the root ball gives \
them loose soil to start in, and it need not be any deeper than the ball is high. Set the tree so that its \
collar is just above the ground, and fill the hole with what you dug out.

Topic: packing a suitcase
Tip: roll soft clothes
Paragraph: What is rolled has no sharp folds and fills the corners that folded stacks leave empty. Roll shirts \
and trousers tightly from the hem up, put heavy things at the side of the wheels, and keep what you will need \
first on top, so that you need not unpack in the hall of the hotel.

"""


@pt.function
def expand(s: pt.State, topic: str, tip: str, max_tokens: int) -> None:
    s += EXPAND
    s += f"Topic: {topic}\nTip: {tip}\nParagraph:"
    s += pt.gen("paragraph", max_tokens=max_tokens, temperature=0, ignore_eos=True)


@pt.function
def suggest(s: pt.State, manner: Manner, topic: str, tip_tokens: int, paragraph_tokens: int) -> None:
    s += "You give useful tips on any subject, short ones first.\n"
    s += f"USER: Give me tips for {topic}.\nASSISTANT: Here are {_TIPS} tips, each in a few words:\n"
    for number in range(1, _TIPS + 1):
        s += f"{number}." + pt.gen(f"tip{number}", max_tokens=tip_tokens, ignore_eos=True) + ".\n"
    asked = [
        {"topic": topic, "tip": s[f"tip{number}"], "max_tokens": paragraph_tokens} for number in range(1, _TIPS + 1)
    ]
    limit = 1 if manner.sequential else _TIPS
    details = expand.run_batch(asked, backend=manner.backend, num_threads=limit)
    for number, detail in enumerate(details, 1):
        s += f"Tip {number}: {detail['paragraph']}\n"


def rounds(setup: Setup) -> list[Round]:
    return [
        [
            {
                # The list goes round, as the published one does; a second time round everything is in the cache.
                "topic": _TOPICS[index % len(_TOPICS)],
                "tip_tokens": setup.tokens(24),
                "paragraph_tokens": setup.tokens(128),
            }
            for index in range(setup.items)
        ]
    ]


WORKLOAD = Workload(
    name="W6",
    title="Skeleton of thought",
    about="five tips, each written out by a program of its own side by side; their preamble is shared",
    program=suggest,
    rounds=rounds,
    items=8,
    scale=0.2,
    forks=True,
)
