"""The `checkpoint_storage` section: where checkpoints are stored, and which are kept."""

from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Discriminator, Tag, model_validator
from pydantic_core import PydanticCustomError

from rung.config.sections.section import Natural, Section, Text


def _prefix(value: str) -> str:
    if ".." in PurePosixPath(value).parts:
        raise PydanticCustomError("prefix", "must not contain `..`")
    return value


Prefix = Annotated[str, AfterValidator(_prefix)]


class Retention(Section):
    """Which checkpoints are kept when others are deleted."""

    save_experiment_best: Natural = 0
    """How many of the experiment's best checkpoints to keep."""
    save_trial_best: Natural = 1
    """How many of each trial's best checkpoints to keep."""
    save_trial_latest: Natural = 1
    """How many of each trial's latest checkpoints to keep."""


class OwnStorage(Retention):
    """The platform's own object store."""

    type: Literal["default"] = "default"
    """The platform's own object store."""


class SharedFs(Retention):
    """A folder that all machines share."""

    type: Literal["shared_fs"]
    host_path: Text
    """The folder on every host."""
    storage_path: str | None = None
    """A folder inside host_path."""
    propagation: str = "rprivate"
    """Propagation mode of the mount."""
    container_path: str | None = None
    """A field of older files."""
    checkpoint_path: str | None = None
    """A field of older files."""
    tensorboard_path: str | None = None
    """A field of older files."""

    @model_validator(mode="after")
    def _inside(self) -> Self:
        if self.storage_path is None:
            return self
        path = PurePosixPath(self.storage_path)
        climbs = ".." in path.parts
        outside = path.is_absolute() and not path.is_relative_to(self.host_path)
        if climbs or outside:
            raise PydanticCustomError(
                "storage_path", "storage_path must be a relative folder, or one below host_path"
            )
        return self


class Directory(Retention):
    """A folder inside the trial's container."""

    type: Literal["directory"]
    container_path: Text
    """The folder as the trial sees it."""


class S3(Retention):
    """A bucket of S3 or of a compatible service."""

    type: Literal["s3"]
    bucket: Text
    """Name of the bucket."""
    access_key: str | None = None
    """Access key."""
    secret_key: str | None = None
    """Secret key."""
    endpoint_url: str | None = None
    """Address of the service, if it is not Amazon's."""
    prefix: Prefix | None = None
    """Prefix of the names of all objects."""


class Gcs(Retention):
    """A bucket of Google Cloud Storage."""

    type: Literal["gcs"]
    bucket: Text
    """Name of the bucket."""
    prefix: Prefix | None = None
    """Prefix of the names of all objects."""


class Azure(Retention):
    """A container of Azure Blob Storage."""

    type: Literal["azure"]
    container: Text
    """Name of the container."""
    connection_string: str | None = None
    """Connection string of the account."""
    account_url: str | None = None
    """The account's address, in place of connection_string."""
    credential: str | None = None
    """Credential for account_url."""

    @model_validator(mode="after")
    def _one_login(self) -> Self:
        if self.connection_string is None and self.account_url is None:
            raise PydanticCustomError(
                "azure", "needs connection_string, or account_url with its credential"
            )
        if self.connection_string is None:
            return self
        for name in ("account_url", "credential"):
            if getattr(self, name) is not None:
                raise PydanticCustomError(
                    "azure",
                    "connection_string and {name} must not both be set; give connection_string"
                    " alone, or account_url with its credential",
                    {"name": name},
                )
        return self


def _tag(value: Any) -> str:
    if isinstance(value, dict):
        kind = value.get("type")
        return "<default>" if kind is None else f"<{kind}>"
    if isinstance(value, Section):
        return f"<{getattr(value, 'type', '')}>"
    return "<default>"


CheckpointStorage = Annotated[
    Annotated[OwnStorage, Tag("<default>")]
    | Annotated[SharedFs, Tag("<shared_fs>")]
    | Annotated[Directory, Tag("<directory>")]
    | Annotated[S3, Tag("<s3>")]
    | Annotated[Gcs, Tag("<gcs>")]
    | Annotated[Azure, Tag("<azure>")],
    Discriminator(
        _tag,
        custom_error_type="storage_type",
        custom_error_message="`type` must be one of shared_fs, directory, s3, gcs, azure",
    ),
]
