"""Streaming chat: the text appears as the model writes it.

    python examples/chat_stream.py            (for a conversation of your own: palmette chat)
"""

import palmette as pt

QUESTIONS = ["Hello! Who are you?", "Name three colours.", "Which of them is the warmest?"]


@pt.function
def chat(s, questions: list[str] = QUESTIONS):
    s += pt.system("You are a friendly assistant. You answer in one sentence.")
    # Each turn goes on from the one before, so only its new words are computed.
    for turn, question in enumerate(questions, start=1):
        s += pt.user(question)
        s += pt.assistant(pt.gen(f"answer{turn}", max_tokens=32))


def main() -> None:
    engine = pt.Engine("smollm2-135m")
    speaking = None
    for event in chat.stream(backend=engine, temperature=0):
        # Events: a TextEvent for each piece of new text (`generated`: the model's, not the program's), a VariableEvent
        # when a variable is complete.
        if isinstance(event, pt.TextEvent) and event.generated:
            if event.name != speaking:  # a new answer begins
                speaking = event.name
                print(f"\n> {QUESTIONS[int(speaking.removeprefix('answer')) - 1]}")
            print(event.text, end="", flush=True)
    print()


if __name__ == "__main__":
    main()
