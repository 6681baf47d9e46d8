"""Seed and folder of the run that a command starts or resumes, and the query of ``--query``."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from netarena.cli.option import RUNS
from netarena.config import SEED_BITS, Config
from netarena.errors import ConfigError
from netarena.file import read_text
from netarena.run.assessment import CONFIG_NAME, MOST_QUERIES, read_queries
from netarena.run.shard import Shard
from netarena.task.application import Application, configured, explain_version, forwarded
from netarena.task.identity import MOST_TRIED, Secrecy, find_index, read_id


def place(
    application: Application, config: Config, shard: Shard | None = None
) -> tuple[Config, Path]:
    """Return the config with its seed, and the folder of the run or of its ``shard``.

    The seed comes from the config, the run to resume or the query file; otherwise it is 64 random
    bits. Raises ConfigError if the run to resume is ambiguous or missing, or if a new shard has no
    seed.
    """
    folder = None if config.output_dir is None else Path(config.output_dir)
    seed = config.seed
    if seed is None and config.resume:
        if folder is None:
            raise ConfigError("--resume", "needs --out DIR or --seed S to identify the run")
        seed = _stored_seed(folder)
    if config.resume:
        run = folder or _default_folder(application, seed, shard)
        if not (run / CONFIG_NAME).is_file():
            raise ConfigError("--resume", f"there is no run in {run}")
    if seed is None and shard is not None:
        raise ConfigError("--shard", "needs --seed S with the same S for all shards of a run")
    if seed is None and config.benchmark_path is not None and not config.regenerate:
        path = Path(config.benchmark_path)
        first = next(read_queries(path), None) if path.exists() else None
        seed = first.seed if first else None
    if seed is None:
        seed = secrets.randbits(SEED_BITS)
    if folder is None:
        folder = _default_folder(application, seed, shard)
    return config.model_copy(update={"seed": seed}), folder


def _default_folder(application: Application, seed: int | None, shard: Shard | None) -> Path:
    run = f"{application.name}-{seed}"
    return Path(RUNS) / (run if shard is None else shard.folder_name(run))


def shaping_keys(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config keys that determine a stored run's queries, from its ``config.json``.

    The result includes the briefing, because the defaults of other keys depend on the briefing.
    """
    told = stored["config"]
    return {**stored["shape"], **{key: told[key] for key in ("briefing",) if key in told}}


def with_stored_shape(
    application: Application, values: Mapping[str, Any], shard: Shard | None
) -> dict[str, Any]:
    """Return ``values``, completed with the run's keys if they select another application.

    The keys that determine the queries of the run to resume may select another application
    (``forwarded``). They are then added, so that users need not repeat them. If the run cannot be
    read, ``values`` is returned and ``conduct`` reports the reason.
    """
    if values.get("resume") is not True:
        return dict(values)
    folder = values.get("output_dir") or _default_folder(application, values.get("seed"), shard)
    try:
        stored = json.loads(read_text(Path(str(folder)) / CONFIG_NAME))
        shape = shaping_keys(stored)
    except (OSError, ValueError, KeyError, TypeError):
        return dict(values)
    elsewhere = forwarded(application, shape) is not application
    return {**shape, **values} if elsewhere else dict(values)


def choose_query(
    application: Application, config: Config, query_id: str
) -> tuple[Application, Config, Secrecy]:
    """Return the application, config and secrecy of a run that asks only the query with this id.

    The folder in the config does not contain a run with other queries. The keys that determine
    queries, and the seed of a sealed id, come from one of these sources:

    - ``config``
    - a run below ``netarena-runs`` or ``output_dir`` that asked the query
    - a variant of ``config``

    Raises ConfigError if they do not produce the id.
    """
    asked = read_id(query_id)
    name, _, version = ("" if asked is None else asked.generator).rpartition("-")
    if asked is None or name != application.recorded_name:
        beginnings = " or ".join(
            f"{application.recorded_name}-{one}-" for one in application.versions()
        )
        raise ConfigError(
            "--query",
            f"{query_id!r} is not an id of {application.name}: its ids begin with {beginnings}",
        )
    shapes = [*_stored_runs(application, config, asked.shape_hash)]
    if config.shape_hash() == asked.shape_hash:
        shapes.insert(0, (config, config.seed))
    else:
        shapes += _variants(application, config, asked.shape_hash)
    if shapes:
        application = forwarded(application, shapes[0][0].model_dump(mode="json"))
    # configs that agree in all keys that determine queries have the same version
    has = {application.version_of(shapes[0][0])} if shapes else {*application.versions()}
    if version not in has:
        raise ConfigError(
            "--query",
            f"{query_id} {explain_version(application, version)}: use the release that drew it",
        )
    if not shapes:
        words = application.versions()[version]
        raise ConfigError(
            "--query",
            f"{query_id} was drawn with other keys, and no run below {RUNS} has this query: "
            "repeat the --set options with which it was drawn"
            + (f" (in this release, version {version} is for {words})" if words else ""),
        )
    if asked.seed is not None:
        secrecy, found, seed, index = Secrecy.OPEN, shapes[0][0], asked.seed, asked.index
        if seed != (seed if found.seed is None else found.seed):
            raise ConfigError(
                "--query", f"{query_id} has the seed {seed}, but the given seed is {found.seed}"
            )
    else:
        secrecy = Secrecy.SEALED
        found, seed, index = _unseal(query_id, shapes)
    assert index is not None
    number = index // len(application.labels(found)) + 1
    if number > MOST_QUERIES:
        raise ConfigError(
            "--query",
            f"{query_id} is query number {number:,} of its label; the maximum is {MOST_QUERIES:,}",
        )
    own: dict[str, Any] = {"seed": seed, "start_index": index, "end_index": index + 1}
    if found.output_dir is None or _asked_more(Path(found.output_dir), own):
        own["output_dir"] = str(Path(RUNS) / query_id)
    return application, found.model_copy(update={**own, "num_queries": number}), secrecy


def _asked_more(folder: Path, own: Mapping[str, Any]) -> bool:
    """Return whether ``folder`` contains a run with other values than ``own``, or an unreadable
    run."""
    try:
        told = json.loads(read_text(folder / CONFIG_NAME))["config"]
        return any(told.get(key) != value for key, value in own.items())
    except FileNotFoundError:
        return False
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return True


def _unseal(query_id: str, shapes: Sequence[tuple[Config, int | None]]) -> tuple[Config, int, int]:
    """Return the config, seed and index that produce a sealed id.

    ``shapes`` are the configs and seeds to try. Raises ConfigError if no seed produces the id.
    """
    for shape, seed in shapes:
        if seed is None:
            continue
        if (index := find_index(query_id, seed, MOST_TRIED)) is not None:
            return shape, seed, index
    raise ConfigError(
        "--query",
        f"{query_id} does not contain a seed, and no run below {RUNS} has this query: give "
        f"--seed, or --out with a folder whose {CONFIG_NAME} contains the seed",
    )


def _stored_runs(
    application: Application, config: Config, shape_hash: str
) -> Iterator[tuple[Config, int | None]]:
    """Yield ``config`` completed with the keys of each stored run, once for each seed of the run.

    All runs in folders below ``RUNS`` and ``output_dir`` are used, except runs that cannot be read
    and runs whose config has another hash than ``shape_hash``.
    """
    given = config.model_dump(mode="json", include=config.model_fields_set)
    for top in filter(None, (RUNS, config.output_dir)):
        for path in sorted(Path(top).rglob(CONFIG_NAME)):
            with suppress(OSError, ValueError, KeyError, TypeError, ConfigError):
                stored = json.loads(read_text(path))
                _, asked = configured(application, {**shaping_keys(stored), **given})
                held = stored["application"], asked.shape_hash()
                if held == (application.recorded_name, shape_hash):
                    for seed in (stored["seed"], *stored.get("replaced_seeds", ())):
                        yield asked, int(seed)


def _variants(
    application: Application, config: Config, shape_hash: str
) -> Iterator[tuple[Config, int | None]]:
    """Yield the variants of ``config`` (``Application.variants``) with the hash ``shape_hash``,
    each with the config's seed."""
    for variant in application.variants(config):
        with suppress(ConfigError):
            if variant.shape_hash() == shape_hash:
                yield variant, config.seed


def _stored_seed(folder: Path) -> int | None:
    """Return the seed of the run in ``folder``, or None (``conduct`` then reports the reason)."""
    try:
        stored = json.loads(read_text(folder / CONFIG_NAME))
    except (OSError, ValueError):
        return None
    seed = stored.get("seed") if isinstance(stored, dict) else None
    return seed if isinstance(seed, int) else None
