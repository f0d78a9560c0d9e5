"""What a normal form's nodes lead to."""

from __future__ import annotations

from palmette.runtime.constraints.schema.shapes import Arrays, Node, Normal, Objects, Shape


def parts(shape: Shape) -> list[Node]:
    """The nodes that a grammar of the shape speaks of, in order."""
    if isinstance(shape, Arrays):
        return [*shape.prefix, shape.rest, *(c.node for c in shape.contains)]
    if isinstance(shape, Objects):
        return [*(m.node for m in shape.members), *(o.node for o in shape.others)]
    return []


def uses(normal: Normal) -> dict[Node, int]:
    """The nodes that can be reached from the root, and how many places lead to each (one more for the root): of every
    circle, the node that is entered first has two at least."""
    found = {normal.root: 1}
    todo = [normal.root]
    while todo:
        for shape in normal.nodes[todo.pop()]:
            for part in parts(shape):
                if part in found:
                    found[part] += 1
                else:
                    todo.append(part)
                    found[part] = 1
    return found
