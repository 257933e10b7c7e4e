"""Which code is forked from the parent that has the frameworks."""

from pathlib import Path

import pytest

from rung.agent.forkserver.framework_imports import wants_frameworks


def _folder(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    "files",
    [
        {"train.py": "import json, os.path\nfrom rung import core\n"},
        {"train.py": "import rung.core\nfrom rung.core import init\n"},
        {"train.py": "from model import net\n", "model.py": "import math\n"},
        {"train.py": "from model.net import Net\n", "model/net.py": "from . import other\n"},
        {"a/train.py": "import model\n", "a/model.py": "", "b.py": "this does not parse"},
    ],
    ids=["core", "core-as-module", "own-module", "own-package", "own-sibling"],
)
def test_needs_nothing(tmp_path: Path, files: dict[str, str]) -> None:
    """The standard library, `rung.core` and the code's own modules are no framework."""
    assert not wants_frameworks(_folder(tmp_path, files))


@pytest.mark.parametrize(
    "files",
    [
        {"train.py": "import torch.nn as nn\n"},
        {"train.py": "from rung import torch\n"},
        {"train.py": "from rung.torch import Trainer\n"},
        {"train.py": "def main():\n    import sklearn.datasets\n"},
        {"train.py": "import model\n", "lib/deep/model.py": "import numpy\n"},
        {"models/torch/net.py": "", "train.py": "import torch\n"},
        {"run.sh": "echo\n"},
    ],
    ids=["torch", "trainer", "trainer-from", "late", "elsewhere", "same-name", "no-python"],
)
def test_may_need_one(tmp_path: Path, files: dict[str, str]) -> None:
    """Whatever else is imported anywhere may bring a framework along."""
    assert wants_frameworks(_folder(tmp_path, files))
