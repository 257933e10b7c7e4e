"""Generated experiment files: accepted by all who read them, or refused in words."""

import copy
import json
import random
import time
from typing import Any, Final

import msgspec
import pytest
import yaml

from attacks.conftest import Attack
from gateway.conftest import World
from rung.config import ExperimentConfig, load
from rung.config.secret import hide, text_without
from rung.events.errors import InvalidConfig
from rung.ledger import MemoryLedger
from rung.searcher.state import read_settings
from rung.storage import FolderStore

pytestmark = pytest.mark.attacks

ROUND_S_MAX: Final = 10.0
SEED: Final = 7

WHOLE: Final[dict[str, Any]] = {
    "name": "digits",
    "labels": ["small"],
    "entrypoint": "python3 -m train",
    "max_restarts": 2,
    "searcher": {
        "name": "adaptive_asha",
        "metric": "error",
        "max_trials": 4,
        "time_metric": "epochs",
        "max_time": 9,
        "divisor": 3,
    },
    "hyperparameters": {
        "lr": {"type": "log", "base": 10, "minval": -3, "maxval": -1},
        "n": {"type": "int", "minval": 1, "maxval": 8},
        "kind": {"type": "categorical", "vals": ["a", 1, None, {"b": [1]}]},
        "fixed": 3,
        "group": {"x": {"type": "double", "minval": 0.0, "maxval": 1.0, "count": 3}},
    },
    "resources": {"slots_per_trial": 1, "resource_pool": "default", "priority": 50},
    "environment": {"environment_variables": ["A=b", "HF_TOKEN=hush"]},
    "checkpoint_storage": {"save_trial_best": 1, "save_trial_latest": 2},
    "data": {"sources": {"train": "s3://bucket/train"}, "secrets": {"token": "hush"}},
    "reproducibility": {"experiment_seed": 5},
}
METHODS: Final = ("single", "random", "grid", "hyperband", "async_halving", "adaptive_asha", "pbt")
ODD: Final[tuple[Any, ...]] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, 10**400, -(10**400), 0.5, -0.0, 1e308,
    5e-324, float("nan"), float("inf"), "", " ", "x", "0", "1e3", "null", "~", "on", "0x10", "1_0",
    "12:30:45", "2026-01-31", "\x00", "\x1b[2J\x07", "\u202egnp.exe", "\ufeffx", "\u2028",
    "\N{ZERO WIDTH SPACE}", "e\N{COMBINING ACUTE ACCENT}", "\U0001f600" * 50, "\ud800", "x" * 5000,
    "../" * 50, "/etc/passwd", "a/b", "${HOME}", "{{x}}", "%s%n", "'; DROP TABLE x; --",
    "__proto__", "constructor", "RUNG_X=1", "=", "A=\x00", [], [[]], [None], {}, {"": ""},
    {"type": "int"}, {"type": {}}, {"type": "const"}, {"__proto__": {}}, ["A=b"] * 50,
    {"type": "int", "minval": 10, "maxval": 1}, {"type": "categorical", "vals": []},
    {"type": "double", "minval": 0, "maxval": 1, "count": 10**9},
)  # fmt: skip


class Author:
    """Draws experiment files."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance

    def file(self) -> bytes:
        """Return a file."""
        chance = self.chance
        tree = json.loads(json.dumps(WHOLE))
        tree["searcher"]["name"] = chance.choice(METHODS)
        for _ in range(chance.choice([0, 1, 1, 2, 4])):
            self.spoil(tree)
        text = self.written(tree)
        for _ in range(chance.choice([0, 0, 0, 1, 3])):
            text = self.twisted(text)
        data = text.encode(errors="surrogatepass")
        if chance.random() < 0.1:
            at = chance.randrange(len(data) + 1)
            data = data[:at] + chance.randbytes(3) + data[at:]
        return data

    def spoil(self, tree: dict[str, Any]) -> None:
        """Put something else somewhere in a tree, take it away, or add to it."""
        chance, here = self.chance, tree
        while True:
            place = chance.choice(sorted(here)) if here else "x"
            below = here.get(place)
            if not isinstance(below, dict) or chance.random() < 0.3:
                break
            here = below
        match chance.randrange(5):
            case 0:
                here.pop(place, None)
            case 1:
                here[chance.choice(["x", "type", "", "name", "<<", "secrets"])] = self.value()
            case 2:
                here[place] = self.nested(chance.choice([3, 48, 52, 300]))
            case _:
                here[place] = self.value()

    def value(self) -> Any:
        """Return something that hardly anything is."""
        chance = self.chance
        if chance.random() < 0.1:
            return {
                str(n): copy.deepcopy(chance.choice(ODD))
                for n in range(chance.choice([1, 20, 3000]))
            }
        return copy.deepcopy(chance.choice(ODD))  # what is drawn may be spoiled further

    def nested(self, depth: int) -> Any:
        """Return what is nested so deep."""
        value: Any = copy.deepcopy(self.chance.choice(ODD))
        for _ in range(depth):
            value = [value] if self.chance.random() < 0.5 else {"a": value}
        return value

    def written(self, tree: dict[str, Any]) -> str:
        """Return a tree as YAML, block or flow, or as JSON."""
        chance = self.chance
        if chance.random() < 0.5:
            return json.dumps(tree, ensure_ascii=chance.random() < 0.5)
        try:
            return yaml.safe_dump(
                tree,
                allow_unicode=chance.random() < 0.5,
                default_flow_style=chance.random() < 0.3,
                sort_keys=False,
            )
        except (RecursionError, UnicodeEncodeError, ValueError):
            return json.dumps(tree)

    def twisted(self, text: str) -> str:
        """Return a text with something of YAML's own in it."""
        chance = self.chance
        at = chance.randrange(len(text) + 1)
        laughs = "".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]\n" for n in range(1, 12))
        odd = chance.choice(
            (
                "&a ", "*a ", "!!python/object:os.system ", "!!binary ", "!!float ", "!x ", "<<: ",
                "? ", "- ", "---\n", "...\n", "\t", "\r", "\x85", "\u2028", "'", '"', "|\n",
                ">-\n", "{", "}", "[", "]", ":", "#", "%YAML 9.9\n", "\x00", "\ufeff",
                "[" * 20_000, "{a: " * 2000, "9" * 20_000, "x" * 20_000, "&" * 100, "\\x41",
            )
        )  # fmt: skip
        match chance.randrange(4):
            case 0:
                return f"l0: &l0 [x, x]\n{laughs}{text}"
            case 1:
                return text[:at] + text[at + chance.randrange(50) :]
            case _:
                return text[:at] + odd + text[at:]


def judged(data: bytes) -> ExperimentConfig | InvalidConfig:
    """Return what a file says, or why it is refused, in words that can be shown."""
    began = time.process_time()
    try:
        found: ExperimentConfig | InvalidConfig = load(data, today_seed=SEED)
    except InvalidConfig as error:
        found = error
    assert time.process_time() - began < ROUND_S_MAX
    if isinstance(found, InvalidConfig):
        assert found.problems
        for path, message in found.problems:
            assert (path + message).isprintable(), (path, message)
            assert len(path + message) < 5000
    return found


def test_a_file_is_refused_in_words_or_read_by_all(attack: Attack) -> None:
    """What is accepted the searcher plans and everybody shows, secrets hidden; and in time."""
    accepted = refused = 0
    for chance in attack.rounds(0.6, least=100):
        data = Author(chance).file()
        found = judged(data)
        if isinstance(found, InvalidConfig):
            refused += 1
            assert text_without(data.decode(errors="replace"))
            continue
        accepted += 1
        fields = found.expanded()
        kept = msgspec.json.decode(msgspec.json.encode(fields))
        assert json.loads(json.dumps(kept)) == kept
        again = judged(json.dumps(kept).encode())
        assert isinstance(again, ExperimentConfig), again
        assert again.expanded() == fields
        read_settings(kept)
        shown = json.dumps(hide(kept)) + text_without(data.decode())
        assert "hush" not in shown
        assert all(warning.isprintable() for warning in found.warnings)
    assert accepted
    assert refused


async def test_the_gateway_answers_with_a_problem(attack: Attack, tmp_path: Any) -> None:
    """Validating and submitting agree, whatever is sent, and no answer is the server's fault."""
    world = World(MemoryLedger(), FolderStore(tmp_path / "objects"))
    async with world.gateway() as client, world.searcher():
        for chance in attack.rounds(0.4, least=30):
            data = Author(chance).file()
            found = judged(data)
            answer = await client.call("POST", "/experiments/validate", data=data)
            text = data.decode(errors="replace")
            submitted = await client.submit(text) if text.encode() == data else None
            if isinstance(found, InvalidConfig):
                assert (answer.status, answer.kind) == (422, "invalid-experiment"), answer
                assert submitted is None or submitted.status == 422, submitted
                assert answer.json["errors"]
            else:
                assert answer.status == 200, answer
        assert (await client.get("/deadletters"))["items"] == []
