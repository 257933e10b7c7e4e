"""What the documents name is there: commands and options, modules, files, fields, links."""

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click
import pytest
import yaml

from rung.cli.group import rung
from rung.config import Experiment, load
from rung.config.docs.examples import in_file
from rung.events.codec import PAYLOADS
from rung.webhooks.message import LINE, METRIC
from support.code_blocks import PAGES, ROOT, blocks, indented

_NAMES: Final = {str(path.relative_to(ROOT)): path for path in PAGES}
_INLINE: Final = re.compile(r"(?<!`)`(rung [^`]+)`(?!`)")
_SPLIT: Final = re.compile(r"\s(?:·|\||\|\||&&|>|<|;|\\)(?:\s|$)|\s#.*")


@pytest.fixture(params=_NAMES)
def page(request: pytest.FixtureRequest) -> Path:
    """Return each document in turn."""
    return _NAMES[request.param]


def test_commands_and_options_exist(page: Path) -> None:
    """Each `rung …` names a command, and options that it has."""
    wrong = {line: problem for line in _commands(page) if (problem := _problem(line))}
    assert {line: wrong[line] for line in wrong if line not in _INVENTED} == {}


_INVENTED: Final = {"rung service webhook"}
"""Of docs/EXTENDING.md, which adds this service."""


def test_the_documents_are_searched() -> None:
    """Commands, modules and files are found in them, so that the other tests test something."""
    assert sum(len(list(_commands(page))) for page in PAGES) > 200
    assert sum(len(_named(page)) for page in PAGES) > 200


def _commands(page: Path) -> Iterator[str]:
    """Return the command lines of a document: of its blocks, and in its sentences."""
    text = page.read_text()
    for block in [*blocks(page), *indented(page)]:
        if block.language in {"", "sh", "console"}:
            for line in block.text.replace("\\\n", " ").splitlines():
                command = line.strip().removeprefix("$ ")
                if command.startswith("rung "):
                    yield command
    for found in _INLINE.finditer(re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
        yield " ".join(found[1].split())


def _problem(line: str) -> str | None:
    """Return what is wrong with a command line of a document."""
    first, *others = [part for part in _SPLIT.split(line) if part.strip()]
    words = _words(first)
    command: click.Command = rung
    context = click.Context(rung, info_name="rung")
    known = _options(command)
    for position, word in enumerate(words[1:], start=1):
        if word.startswith("-") and len(word) > 1:
            if word.split("=")[0] not in known:
                return f"{context.command_path} has no option {word}"
        elif isinstance(command, click.Group) and re.fullmatch(r"[a-z-]+", word):
            below = command.get_command(context, word)
            if below is None:
                return f"{context.command_path} has no command {word}"
            command, context = below, click.Context(below, info_name=word, parent=context)
            known = known | _options(command)
        elif position == 1 and word not in {"…", "COMMAND", "..."}:
            return f"{word} is no command"
    for other in others if " · " in line else []:  # `rung list · show · logs`
        name = other.split()[0]
        if rung.get_command(context, name) is None:
            return f"there is no command {name}"
    return None


def _words(command: str) -> list[str]:
    try:
        words = shlex.split(command.replace("[", " ").replace("]", " "))
    except ValueError:
        words = command.split()
    return [word.rstrip(".,;:…") or word for text in words for word in text.split("|") if word]


def _options(command: click.Command) -> set[str]:
    found = {"-h", "--help"}
    for parameter in command.params:
        found |= {*parameter.opts, *parameter.secondary_opts}
    return found


def test_experiment_files_load(page: Path) -> None:
    """Each block of YAML whose fields are those of experiments is a part of one that loads.

    Other YAML has a name behind its language, such as that of the Helm chart.
    """
    for block in [it for it in blocks(page) if it.language == "yaml"]:
        tree = yaml.safe_load(block.text)
        if not block.name or block.name.endswith(".yaml"):
            unknown = set(tree) - set(Experiment.model_fields)
            assert not unknown, f"line {block.line}: {unknown}"
            load(yaml.safe_dump(in_file(tree)), today_seed=1)


def test_python_compiles(page: Path) -> None:
    """Each block of Python is a program or a line of a table; `…` stands for anything."""
    for block in [it for it in blocks(page) if it.language == "python"]:
        text = block.text.replace("…", "...")
        try:
            ast.parse(f"{{\n{text}\n}}" if re.match(r'"\w+": ', text) else text)
        except SyntaxError as error:
            pytest.fail(f"line {block.line + (error.lineno or 0)}: {error}")


def _named(page: Path) -> set[str]:
    """Return what looks like a module, one of its names, or a file, between backticks."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    return set(re.findall(r"`([\w./{},-]+)`", text))


def test_modules_and_files_exist(page: Path) -> None:
    """Each `rung.…` in a document can be imported, and each path of the repository is there."""
    wrong = []
    for name in sorted(_named(page)):
        if re.fullmatch(r"rung(\.\w+)+", name) and not _is_there(name):
            wrong.append(name)
        if re.match(r"(foundation|services|worker|cli|sim|deploy|tests|examples)/", name):
            pattern = name.replace("NAME", "*")
            wrong += [one for one in _expanded(pattern) if not list(ROOT.glob(one.rstrip("/")))]
        if re.fullmatch(r"test_\w+\.py", name) and name not in _TESTS:
            wrong.append(name)
    assert [name for name in wrong if name not in _VARIABLES] == []


_TESTS: Final = {path.name for path in (ROOT / "tests").rglob("test_*.py")}
_VARIABLES: Final = {"rung.train", "rung.resume", "rung.json"}
"""Of docs/FRAMEWORKS.md, where callbacks are called `rung`."""

_TOLD: Final = frozenset({METRIC, LINE})
"""Types that webhooks alone tell: they are no events of the ledger."""


def _is_there(name: str) -> bool:
    """Return whether a dotted name is a module, something in one, or an event's type.

    Nothing is imported: what the adapters of frameworks need may be missing.
    """
    if any(kind == name or kind.startswith(f"{name}.v") for kind in (*PAYLOADS, *_TOLD)):
        return True
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        path = "/".join(parts[:length])
        for root in _ROOTS:
            for file in (root / f"{path}.py", root / path / "__init__.py"):
                if file.exists():
                    text = file.read_text()
                    return all(re.search(rf"\b{it}\b", text) for it in parts[length:])
    return False


_ROOTS: Final = [path.parent for path in (*ROOT.glob("*/rung"), *ROOT.glob("services/*/rung"))]


def _expanded(name: str) -> list[str]:
    """Return the paths that `a/{b,c}` stands for."""
    found = re.search(r"\{([^{}]*)\}", name)
    if found is None:
        return [name]
    options = found[1].split(",")
    return [one for it in options for one in _expanded(name.replace(found[0], it, 1))]


def test_links_lead_somewhere(page: Path) -> None:
    """Each link to a file of the repository, and to a heading in it, has its target."""
    wrong = []
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        if not file.exists() or (anchor and anchor not in _anchors(file)):
            wrong.append(target)
    assert wrong == []


def test_the_readme_leads_to_every_document_once() -> None:
    """Its table has one line for each document of `docs/`, and the page is short."""
    text = (ROOT / "README.md").read_text()
    listed = [
        name
        for line in text.splitlines()
        if line.startswith("| [")
        for name in re.findall(r"\]\(docs/([A-Z_]+\.md)\)", line)
    ]
    assert sorted(listed) == sorted(it.name for it in (ROOT / "docs").glob("*.md"))
    assert len(text.splitlines()) <= 150


def _anchors(page: Path) -> set[str]:
    """Return the anchors that headings get."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", it.lower()).replace(" ", "-") for it in headings}
