"""How a write route says that it takes an `Idempotency-Key`."""

from typing import Annotated

from litestar.params import HeaderParameter

from memplane_core.clients.retrieval import IDEMPOTENCY_KEY

IdempotencyKey = Annotated[
    str | None,
    HeaderParameter(
        name=IDEMPOTENCY_KEY,
        pattern=r"^[\x20-\x7e]{1,255}$",
        description="A name of your own for this write, 1 to 255 printable ASCII characters. Repeating the request "
        "with it within 24 hours does nothing twice: it is answered by what the first one did. With another body or on "
        "another route it is a 422.",
    ),
]
