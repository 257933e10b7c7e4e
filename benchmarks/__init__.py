"""Speeds, each beside a peer or a limit in the same run: `python -m benchmarks.record.ledger`.

Run from the repository's root. They use the servers and the rigs that the tests start, too.
"""

import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path += [str(ROOT / "deploy" / "local"), str(ROOT / "tests")]
