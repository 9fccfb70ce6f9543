"""Errors as they may be logged: a driver's message can quote a memory's text, so it is left out."""

import traceback


def origin(error: BaseException) -> str:
    """Where an error was raised, as `file:line function`, innermost last, at most five."""
    frames = traceback.extract_tb(error.__traceback__)[-5:]
    return " > ".join(f"{frame.filename.rsplit('/', 1)[-1]}:{frame.lineno} {frame.name}" for frame in frames)
