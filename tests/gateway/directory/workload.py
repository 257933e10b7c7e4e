"""A company's requests and their decisions, printed as a digest: `python -m … SEED`."""

import hashlib
import sys

import msgspec

from gateway.directory.scenario import Office
from rung.sim.company import Company


def main() -> None:
    """Print the digest of 2,000 requests and their decisions."""
    office, company = Office(), Company(int(sys.argv[1]))
    history = [decided for _ in range(2_000) for decided in office.tell(company.next())]
    text = msgspec.json.encode([(it.TYPE, it) for it in history])
    text += msgspec.json.encode(office.state)
    sys.stdout.write(hashlib.sha256(text).hexdigest())


if __name__ == "__main__":
    main()
