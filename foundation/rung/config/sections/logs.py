"""How much of what trials print is kept, and for how long."""

from typing import Annotated, Final

from pydantic import Field

from rung.config.sections.section import AS_WHOLE, Section

DAYS_MAX: Final = 36_500
BYTES_MIN: Final = 4096


class Logs(Section):
    """How much of what trials print is kept, and for how long; the installation may keep less."""

    keep_days: Annotated[int, Field(ge=1, le=DAYS_MAX), AS_WHOLE] | None = None
    """Days after which printed lines are deleted; absent: as long as the installation keeps
    them."""
    max_bytes: Annotated[int, Field(ge=BYTES_MIN), AS_WHOLE] | None = None
    """Bytes of a run's log as it is stored: its beginning and its last part are kept, and a mark
    says how many lines are missing between; absent: the installation's limit, 64 MiB."""
