"""What every group of settings is."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A group of settings. Immutable; an unknown name is refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)
