"""The staged folder: shared with its agent by a run without credentials for the object store.

Below the folder that the agent creates for the run:

    checkpoints/<experiment>/<checkpoint>/…  complete ones with a manifest, and incomplete ones
    announced/<checkpoint>                   a file for each checkpoint that the run reported as
                                             stored, once all earlier reports are durable in the
                                             outbox: empty, or why it cannot be stored
    fetched/<number>                         objects that the agent downloaded for the run
    kept/checkpoints/…                       files of the last checkpoint that the next one may
                                             share

The run writes `checkpoints` and `kept`, the agent `announced` and `fetched`.
"""

from typing import Final

CHECKPOINTS: Final = "checkpoints"
ANNOUNCED: Final = "announced"
FETCHED: Final = "fetched"
KEPT: Final = "kept"
