"""W7, a model as judge: an article is judged in six respects side by side, and then as a whole."""

from __future__ import annotations

import palmette as pt
from palmette.benchmarks.workload import Manner, Round, Setup, Workload

_SYSTEM = "You judge articles fairly and in detail, and give each respect its own due.\n"

# What is looked at, and for what.
_RESPECTS = {
    "content": (
        "Judge the content of the article. Does it keep to its subject, and does it say something about it that is "
        "worth knowing? Look at whether what it states is right, whether important sides are missing, and whether "
        "the reader knows more at the end than at the beginning."
    ),
    "structure": (
        "Judge how the article is built. Is there an opening that says what it is about, a body whose parts follow "
        "from each other, and an end that closes it? Look at the paragraphs: has each of them one thought, and do "
        "they lead from one to the next?"
    ),
    "argument": (
        "Judge the argument of the article. Does it take a side, and does it give grounds for it that hold? Look at"
        " whether the other side is heard and answered, whether examples are to the point, and whether anything is "
        "claimed that does not follow from what was said."
    ),
    "clarity": (
        "Judge how clear the article is. Would a reader who does not know the subject understand it at the first "
        "reading? Look for sentences that are too long, words that are not explained, and places where it stays "
        "open what or whom a sentence is about."
    ),
    "grammar": (
        "Judge the grammar and the spelling of the article. Are the sentences complete, do verbs agree with their "
        "subjects, are tenses kept, and is punctuation used as it should be? Say how many faults there are, which "
        "kind is the most frequent, and whether they disturb the reading."
    ),
    "citation": (
        "Judge how the article deals with its sources. Is it said where facts and figures come from, and could a "
        "reader find them there? Look at whether quotations are marked, whether the sources are to be trusted, and "
        "whether anything is borrowed without a word."
    ),
}


@pt.function
def judge(s: pt.State, manner: Manner, article: str, max_tokens: int) -> None:
    s += _SYSTEM
    s += f"Here is an article.\n\n{article}\n\n"
    with s.fork(len(_RESPECTS)) as branches:
        for branch, question in zip(branches, _RESPECTS.values(), strict=True):
            branch += f"USER: {question}\nASSISTANT:"
            branch += pt.gen("judgement", max_tokens=max_tokens, ignore_eos=True)
            manner.branched(branch)
    s += "These are the judgements, respect by respect.\n"
    for respect, judgement in zip(_RESPECTS, s["judgement"], strict=True):
        s += f"{respect}: {judgement}\n"
    s += "In all, of 10 points the article gets" + pt.gen("score", max_tokens=2, ignore_eos=True)


def rounds(setup: Setup) -> list[Round]:
    return [
        [
            {"article": setup.text("article", index, tokens=1100), "max_tokens": setup.tokens(256)}
            for index in range(setup.items)
        ]
    ]


WORKLOAD = Workload(
    name="W7",
    title="LLM judge",
    about="an article is judged in six respects by a fork of six, then as a whole; the article is shared by them",
    program=judge,
    rounds=rounds,
    items=5,
    scale=0.15,
    forks=True,
)
