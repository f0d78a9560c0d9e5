"""ReAct: the model thinks, asks a Python tool, reads the answer, and goes on until it finishes.

    python examples/react.py
    palmette run examples/react.py --arg question="What is 12 * 12 + 6?"
"""

import ast
import operator

import palmette as pt

EXAMPLE = """\
Question: A box holds 12 eggs. How many eggs are in 7 boxes?
Thought: I must multiply 12 by 7.
Action: calculate
Input: 12 * 7
Observation: 84
Thought: I know the answer now.
Action: finish
Input: 84

Question: Ann has 50 coins and gives away 18. How many are left?
Thought: I must take 18 from 50.
Action: calculate
Input: 50 - 18
Observation: 32
Thought: I know the answer now.
Action: finish
Input: 32

"""

OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


def calculate(text: str) -> str:
    """The tool: arithmetic. What goes wrong is told to the model as an observation."""

    def value(node):
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            return OPERATORS[type(node.op)](value(node.left), value(node.right))
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            return node.value
        raise ValueError(f"cannot compute {ast.unparse(node)}")

    try:
        return f"{value(ast.parse(text.strip(), mode='eval').body):g}"
    except (ValueError, SyntaxError, ZeroDivisionError) as error:
        return f"error: {error}"


@pt.function
def react(s, question: str = "A bus has 64 seats and 19 are taken. How many are free?", max_steps: int = 3):
    s += EXAMPLE
    s += f"Question: {question}\n"
    # An ordinary Python loop around the model's text: reading s["..."] waits until the model has written it.
    for step in range(1, max_steps + 1):
        s += "Thought:" + pt.gen(f"thought{step}", max_tokens=24, stop="\n")
        # On the last step there is nothing to choose.
        tools = ["calculate", "finish"] if step < max_steps else ["finish"]
        s += "\nAction: " + pt.select(f"action{step}", tools)
        if s[f"action{step}"] == "finish":
            s += "\nInput: " + pt.gen("answer", max_tokens=12, stop="\n")
            break
        # The tool reads sums only, so the model may write sums only. The line's end belongs to the pattern: else the
        # model might go on with digits.
        s += "\nInput: " + pt.gen(f"input{step}", regex=r"[0-9]{1,4} [-+*/] [0-9]{1,4}\n")
        s += f"Observation: {calculate(s[f'input{step}'])}\n"


def main() -> None:
    state = react.run(backend=pt.Engine("smollm2-135m"), temperature=0)
    print(state.text().removeprefix(EXAMPLE))
    print("\nAnswer:", state["answer"].strip())


if __name__ == "__main__":
    main()
