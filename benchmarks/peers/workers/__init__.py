"""What runs in the environment of each engine. These files import each other only, relatively, and nothing of palmette
but in its own worker: an engine's environment need not have it."""
