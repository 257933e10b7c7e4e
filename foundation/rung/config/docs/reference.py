"""The reference of the experiment file, in Markdown: a table of fields for each section."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from rung.config.docs.examples import EXAMPLES, flow
from rung.config.sections import hyperparameter, storage
from rung.config.sections.environment import Environment, EnvironmentVariables
from rung.config.sections.experiment import Distributed, Experiment, Logs, Reproducibility
from rung.config.sections.log_policy import LogPolicy
from rung.config.sections.resources import Resources
from rung.config.sections.searcher import SECTIONS, Searching
from rung.config.sections.secrets import Secrets
from rung.config.sections.section import Section
from rung.config.unsupported import Optimizations
from rung.config.warning import CONDITIONAL, INERT
from rung.methods.table import METHODS

Path = tuple[str, ...]

OWN: Final = frozenset(
    {
        "data.sources",
        "distributed",
        "secrets",
        "hang_timeout",
        "logs",
        "resources.max_slot_hours",
        "reproducibility.deterministic",
        "reproducibility.exact",
        "reproducibility.first_trial",
        "reproducibility.continue_source",
    }
)
"""Fields of sections that Determined has, too, which it does not have."""

OWN_METHODS: Final = frozenset({"hyperband"})
"""Search methods that Determined does not have."""

_OWN: Final = " *Rung's own.*"

_SPLIT: Final[dict[type[Section], Path]] = {
    Environment: ("environment",),
    EnvironmentVariables: ("environment", "environment_variables"),
    Distributed: ("distributed",),
    Logs: ("logs",),
    Optimizations: ("optimizations",),
    Reproducibility: ("reproducibility",),
    Resources: ("resources",),
    Secrets: ("secrets",),
}
"""Sections whose fields have tables of their own."""

_LENGTH_MAX: Final = 70
"""Letters of an example that is shown as a whole."""


@dataclass(frozen=True, slots=True)
class Field:
    """A field of the experiment file; one of a union of sections names its kind."""

    path: Path
    """From the top; `[]`: of each item of the list, `*`: of any name."""
    type: str
    default: str
    about: str
    kind: tuple[str, str] | None = None
    """A field beside it and its value, which tell the sections of a union apart."""

    @property
    def name(self) -> str:
        """The path as the page has it."""
        return ".".join(self.path).replace(".[]", "[]").replace("*", "NAME")

    @property
    def inert(self) -> str | None:
        """Why it has no effect, None where it has one."""
        if self.kind is not None and self.path[0] == "checkpoint_storage":
            return INERT["checkpoint_storage", "type"]
        return next((why for path, why in INERT.items() if self.path[: len(path)] == path), None)

    @property
    def own(self) -> bool:
        """Whether Determined does not have it, in a section that it has."""
        return any(f"{self.name}.".startswith(f"{own}.") for own in OWN)

    def set_in(self, tree: Any) -> list[Any]:
        """Return the values that a file gives it."""
        return self._below(tree, self.path)

    def _below(self, tree: Any, path: Path) -> list[Any]:
        head, rest = path[0], path[1:]
        if head == "[]":
            return [found for it in tree for found in self._below(it, rest)]
        if not isinstance(tree, dict):
            return []
        if not rest:
            known = self.kind is None or tree.get(self.kind[0]) == self.kind[1]
            return [tree[head]] if known and head in tree else []
        below = list(tree.values()) if head == "*" else [tree[head]] if head in tree else []
        return [found for it in below for found in self._below(it, rest)]

    def example(self) -> str:
        """Return the shortest example that sets it; of a long one this field alone.

        Raises:
            LookupError: there is none.
        """
        found = [it for it in EXAMPLES if self.set_in(it)]
        if not found:
            raise LookupError(f"{self.name} {self.kind or ''} has no example")
        shortest = min(found, key=lambda it: len(flow(it)))
        whole = flow(shortest)
        if len(whole) <= _LENGTH_MAX:
            return whole
        return flow({self.path[-1]: self.set_in(shortest)[0]})


@dataclass(frozen=True, slots=True)
class Table:
    """A heading, what it says, and the fields below it."""

    title: str
    about: str
    fields: list[Field]


def tables() -> list[Table]:
    """Return all fields of the experiment file, in the page's order."""
    top = [it for it in _fields(Experiment, ()) if it.path not in _SPLIT.values()]
    found = [
        Table("The experiment", "", [it for it in top if len(it.path) == 1]),
        Table("hyperparameters", _HYPERPARAMETERS, list(_hyperparameters())),
        Table("searcher", _SEARCHER, list(_fields(Searching, ("searcher",)))),
        *_methods(),
        *(
            Table(".".join(path), _about(kind), list(_fields(kind, path)))
            for kind, path in _SPLIT.items()
        ),
        Table("checkpoint_storage", _STORAGE, list(_fields(storage.Retention, _PLACE))),
        Table("data", _DATA, [_sources()]),
        Table("log_policies", _about(LogPolicy), list(_deep(LogPolicy, ("log_policies", "[]")))),
    ]
    known = {(it.path, it.kind) for table in found for it in table.fields}
    rest = [it for it in _deep(Experiment, ()) if (it.path, it.kind) not in known]
    rest += _storages()
    return [
        *(Table(it.title, it.about, [f for f in it.fields if f.inert is None]) for it in found),
        Table(
            "Fields without effect",
            _WITHOUT_EFFECT,
            [it for table in found for it in table.fields if it.inert is not None]
            + [it for it in rest if it.inert is not None],
        ),
    ]


def every_field() -> list[Field]:
    """Return all fields that the sections have, but for those of unions of sections."""
    return list(_deep(Experiment, ()))


def reference() -> str:
    """Return the page."""
    lines = [_TITLE]
    for table in tables():
        level = "###" if table.title.startswith("searcher:") else "##"
        lines += [f"{level} {_heading(table.title)}", ""]
        lines += [table.about, ""] if table.about else []
        if not table.fields:
            continue
        lines += [
            "| field | type | default | meaning | example |",
            "| --- | --- | --- | --- | --- |",
        ]
        lines += [_row(it) for it in table.fields]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


_HEAD: Final = "| field | type | default | meaning | example |"


def _heading(title: str) -> str:
    return title if " " in title and ":" not in title else f"`{title}`"


def _row(field: Field) -> str:
    about = field.about
    if field.inert is not None:
        about = f"{about} No effect: {field.inert}."
    if field.path in CONDITIONAL:
        about = f"{about} {CONDITIONAL[field.path].capitalize()}."
    if field.own:
        about += _OWN
    kind = f" ({field.kind[1]})" if field.kind is not None and field.inert is not None else ""
    cells = [f"`{field.name}`{kind}", field.type, field.default, about, f"`{field.example()}`"]
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _about(kind: type[BaseModel]) -> str:
    return " ".join((kind.__doc__ or "").split())


def _fields(
    model: type[Section], path: Path, kind: tuple[str, str] | None = None
) -> Iterator[Field]:
    """Return the fields of a section, without those of the sections below."""
    schema = model.model_json_schema()
    for name, info in model.model_fields.items():
        shown = _type(schema["properties"][name], schema.get("$defs", {}))
        about = " ".join((info.description or "").split())
        yield Field((*path, name), shown, _default(info), about, kind)


def _deep(model: type[Section], path: Path) -> Iterator[Field]:
    """Return the fields of a section and of those below, but for unions of sections."""
    for field in _fields(model, path):
        yield field
        listed, below = _sections(model.model_fields[field.path[-1]].annotation)
        if len(below) == 1:
            yield from _deep(below[0], (*field.path, *(["[]"] if listed else [])))


def _sections(annotation: Any) -> tuple[bool, list[type[Section]]]:
    """Return the sections that a type has, and whether it is a list of them."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return False, [annotation]
    found = [_sections(it) for it in get_args(annotation)]
    listed = getattr(annotation, "__origin__", None) is list or any(it for it, _ in found)
    return listed, [kind for _, kinds in found for kind in kinds]


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "required"
    value = info.get_default(call_default_factory=True)
    if isinstance(value, BaseModel) or value in (None, "", [], {}):
        return ""
    return f"`{value if isinstance(value, str) else json.dumps(value)}`".replace('"', "")


_LIMITS: Final = {
    "minimum": "≥ {}",
    "exclusiveMinimum": "> {}",
    "maximum": "≤ {:,}",
}


def _type(schema: Mapping[str, Any], defs: Mapping[str, Any]) -> str:
    """Return a JSON Schema in words."""
    options = schema.get("anyOf") or schema.get("oneOf") or [schema]
    words = [_one_type(it, defs) for it in options if it != {"type": "null"}]
    return " or ".join(dict.fromkeys(words)) or "absent"


def _one_type(schema: Mapping[str, Any], defs: Mapping[str, Any]) -> str:
    """Return a JSON Schema that is no choice at its top."""
    match schema:
        case {"anyOf": _} | {"oneOf": _}:
            words = _type(schema, defs)
        case {"$ref": place}:
            words = _type(defs[place.rpartition("/")[2]], defs)
        case {"enum": [*values]}:
            words = " or ".join(f"`{it}`" for it in values)
        case {"const": value}:
            words = f"`{value}`"
        case {"type": "object", "properties": {"epochs": _}}:
            words = "map: batches, records or epochs"
        case {"type": "array"}:
            words = f"list of {_type(schema.get('items', {}), defs)}"
        case {"type": [*kinds]}:
            words = " or ".join(_WORDS[it] for it in kinds)
        case {"type": kind}:
            limits = [text.format(schema[it]) for it, text in _LIMITS.items() if it in schema]
            words = ", ".join([_WORDS[kind], *limits])
        case _:
            words = "anything"
    return words


_WORDS: Final = {
    "string": "text",
    "integer": "integer",
    "number": "number",
    "boolean": "true or false",
    "object": "map",
    "array": "list",
}


def _hyperparameters() -> Iterator[Field]:
    for name, kind in hyperparameter.KINDS.items():
        for field in _fields(kind, ("hyperparameters", "*"), ("type", name)):
            if field.path[-1] == "type":
                yield Field(field.path, f"`{name}`", "required", _about(kind), field.kind)
            else:
                yield field


def _methods() -> list[Table]:
    common = set(Searching.model_fields)
    return [
        Table(
            f"searcher: {{name: {name}}}",
            f"{_about(kind)}{_aliases(name)}{_OWN if name in OWN_METHODS else ''}",
            [
                it
                for it in _fields(kind, ("searcher",), ("name", name))
                if it.path[-1] not in common and it.path[-1] != "name"
            ],
        )
        for name, kind in SECTIONS.items()
    ]


def _aliases(name: str) -> str:
    others = " or ".join(f"`{it}`" for it in METHODS[name].ALIASES)
    return f" Also called {others}." if others else ""


def _sources() -> Field:
    return Field(
        ("data", "sources"),
        "map of places",
        "",
        "By name: a folder, a file, `s3://bucket/prefix`, or a map with `location`, `cache`,"
        " `stream`.",
    )


def _storages() -> Iterator[Field]:
    kinds = (storage.SharedFs, storage.Directory, storage.S3, storage.Gcs, storage.Azure)
    for kind in kinds:
        [name] = get_args(kind.model_fields["type"].annotation)
        for field in _fields(kind, _PLACE, ("type", name)):
            if field.path[-1] not in storage.Retention.model_fields and field.path[-1] != "type":
                yield field


_PLACE: Final = ("checkpoint_storage",)

_TITLE: Final = """\
# The experiment file

Every field, made from the schema by `make docs`; a test loads each example. The fields, names and
defaults are those of Determined's experiment configuration, but for those that are marked *Rung's
own*; [FROM_DETERMINED.md](FROM_DETERMINED.md) lists what else differs.

The file is YAML or JSON. Only `entrypoint` and `searcher` are required:

```yaml
name: digits
entrypoint: python3 train.py
hyperparameters:
  global_batch_size: 32                                # a constant
  layers: {type: int, minval: 1, maxval: 4}
  optimizer:                                           # a group; the script gets the same nesting
    lr: {type: log, base: 10, minval: -4, maxval: -1}  # 0.0001 to 0.1: the ends are exponents
    name: {type: categorical, vals: [sgd, adamw]}
searcher:
  name: adaptive_asha
  metric: error
  max_trials: 48
  max_time: 16
  time_metric: epochs
resources: {slots_per_trial: 1}
```

* `rung preview FILE` checks it, and shows which trials the search would start and what they would
  cost, without training. `rung submit FILE FOLDER` checks it, too. All problems are listed at
  once, each with its line.
* A field that does not exist is refused. `null` means "not given". `yes`, `no`, `on` and `off` are
  true and false; `1e5` is an integer. Text is not turned into a number.
* `rung schema` prints the JSON Schema, with which editors complete and check (`rung schema --help`
  tells how).

## The code folder

`rung submit FILE FOLDER` sends FOLDER's files, 95 MiB at most, and lists what it leaves out:

* what `.gitignore` files name: FOLDER's, those of its subfolders, and those above it in its git
  repository;
* what FOLDER's `.rungignore` names, in the same syntax (or `.detignore`, where there is none). It
  decides before `.gitignore`, so `!NAME` brings something back;
* virtual environments (folders with a `pyvenv.cfg`), `.git` and caches, unless `.rungignore` has
  `!` and their name.

Links within FOLDER stay links. Links that leave it are refused; with `--follow-links` what they
point to is sent in their place.
"""

_HYPERPARAMETERS: Final = """\
Constants, ranges, choices, and groups of these, at any depth: a map without `type` is a group. A
plain value is a constant. The script reads them with `context.get_hparam("optimizer.lr")`, or from
`ctx.hparams` of `rung.core`.

What looks like a search space in another tool's spelling, such as `{min: 0.1, max: 0.2}`,
`{values: [1, 2]}` or a `log` from 1e-4 to 1e-1, is refused with what to write. Nothing is drawn
inside lists and choices. A constant that looks like it is `{type: const, val: …}`.

Each kind has its own fields:"""

_SEARCHER: Final = """\
These fields are common to all methods; those of each method follow."""

_STORAGE: Final = """\
Which checkpoints of an ended trial are kept: all that one of these names. They are stored in the
platform's own object store, whatever `type` says ([CHECKPOINTS.md](CHECKPOINTS.md))."""

_DATA: Final = """\
A map for the script, which gets all of it. Two names have a meaning: `sources`
([DATA.md](DATA.md)), and `secrets`, whose values are hidden where the experiment is shown."""

_WITHOUT_EFFECT: Final = """\
Accepted and checked as Determined does, so that its files can be submitted as they are. `rung
submit` and `rung preview` warn of each that a file sets."""
