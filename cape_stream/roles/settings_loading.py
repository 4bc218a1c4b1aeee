"""Reads settings from a file, the environment and flags, and shows where each one comes from.

A name nobody knows is refused together with the names that are known: a setting that is misspelled
and silently ignored is found in production.
"""

import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields
from difflib import get_close_matches
from enum import StrEnum
from itertools import chain
from pathlib import Path
from types import UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from cape_stream.roles.settings import (
    SECTION_NAMES,
    Given,
    Settings,
    SettingsError,
    is_librdkafka,
    section_class,
)

FILE_DEFAULT = "cape.toml"
ENVIRONMENT_PREFIX = "CAPE_"
FILE_VARIABLE = "CAPE_CONFIG"
COMMAND_LINE = "command line"
HIDDEN = "<hidden>"

NO_SECRETS = frozenset(
    {
        *("bootstrap.servers", "client.id", "debug", "security.protocol"),
        *("sasl.mechanism", "sasl.mechanisms", "sasl.username", "sasl.kerberos.principal"),
        *("ssl.ca.location", "ssl.certificate.location", "ssl.key.location"),
        *("ssl.endpoint.identification.algorithm", "enable.ssl.certificate.verification"),
    }
)
"""Of the client's own settings, the ones that may be shown; whatever is not listed is hidden."""


class Shown(NamedTuple):
    """One effective setting, fit to be printed."""

    name: str
    value: Any
    origin: str


def load_settings(
    flags: Mapping[str, object], environment: Mapping[str, str], file: str | None = None
) -> Settings:
    """Everything in effect.

    Args:
        flags: ``section.field`` → value; the strongest.
        environment: ``CAPE_SECTION_FIELD``; stronger than the file.
        file: TOML with one table a section; None: what CAPE_CONFIG names, else ``cape.toml`` in
            the working directory if it is there.

    Raises:
        SettingsError: names the value, the place it stands at, and what may stand there.
    """
    given: dict[str, dict[str, Given]] = {}
    layers = (
        _from_file(file or environment.get(FILE_VARIABLE)),
        _from_environment(environment),
        _from_flags(flags),
    )
    for section, name, value, origin in chain(*layers):
        _check_section(section, origin)
        if section == "kafka" and name == "bootstrap.servers":
            name = "bootstrap_servers"
        given.setdefault(section, {})[name] = _given(section, name, value, origin)
    settings = Settings(given)
    settings.check()
    return settings


def shown_settings(settings: Settings) -> list[Shown]:
    """Every setting with its effective value and its origin; secrets are hidden."""
    shown = []
    for section in SECTION_NAMES:
        given = settings.given.get(section, {})
        if section == "kafka" and not given:
            continue
        for each in _scalar_fields(section):
            found = given.get(each.name)
            value = found.value if found else _default_of(section, each)
            if found and not each.repr:
                value = HIDDEN  # a field that is not printed holds a secret
            shown.append(
                Shown(f"{section}.{each.name}", value, found.origin if found else "default")
            )
        for name, found in given.items():
            if section == "kafka" and is_librdkafka(name):
                value = found.value if name in NO_SECRETS else HIDDEN
                shown.append(Shown(f"{section}.{name}", value, found.origin))
    return shown


# --- layers ------------------------------------------------------------------------------------

Layer = Iterator[tuple[str, str, object, str]]
"""Section, name, value and where it stands, as somebody wrote them."""


def _from_file(file: str | None) -> Layer:
    path = Path(file or FILE_DEFAULT)
    if file is None and not path.exists():
        return
    try:
        tables = tomllib.loads(path.read_text())
    except OSError as error:
        raise SettingsError(f"settings file {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"settings file {path} is not TOML: {error}") from error
    for section, table in tables.items():
        if isinstance(table, dict):
            _check_section(section, str(path))
        if not isinstance(table, dict):
            raise SettingsError(f"{path}: {section} stands outside a table: write [{section}]")
        for name, value in _flat(table).items():
            yield section, name, value, str(path)


def _from_environment(environment: Mapping[str, str]) -> Layer:
    for variable in sorted(environment):
        section, _, name = variable.removeprefix(ENVIRONMENT_PREFIX).lower().partition("_")
        if not variable.startswith(ENVIRONMENT_PREFIX) or section not in SECTION_NAMES:
            continue
        if section == "kafka" and name not in _field_types(section):
            name = name.replace("_", ".")  # the client's own, such as CAPE_KAFKA_SASL_PASSWORD
        yield section, name, environment[variable], variable


def _from_flags(flags: Mapping[str, object]) -> Layer:
    for full_name, value in flags.items():
        section, _, name = full_name.partition(".")
        yield section, name, value, COMMAND_LINE


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Names with dots, whether the file spells them in quotes or as tables within tables."""
    flat: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, dict):
            flat.update(_flat(value, f"{prefix}{name}."))
        else:
            flat[prefix + name] = value
    return flat


# --- values ------------------------------------------------------------------------------------


def _given(section: str, name: str, value: object, origin: str) -> Given:
    """The value as its field wants it."""
    if section == "kafka" and is_librdkafka(name):
        return Given(_as_client_text(name, value, origin), origin)
    types = _field_types(section)
    if name not in types:
        raise SettingsError(f"{origin}: [{section}] has no {name!r}{_known(name, types)}")
    return Given(_converted(value, types[name], f"{section}.{name}", origin), origin)


def _as_client_text(name: str, value: object, origin: str) -> str:
    """As librdkafka wants it; the value may be a secret, so no message repeats it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    raise SettingsError(f"{origin}: kafka.{name} must be a text, a number or a truth value")


def _converted(value: object, wanted: Any, name: str, origin: str) -> Any:
    if get_origin(wanted) in (UnionType, Union):
        wanted = next(each for each in get_args(wanted) if each is not type(None))
    if wanted is bool:
        return _as_bool(value, name, origin)
    if wanted is int:
        return _as_int(value, name, origin)
    if get_origin(wanted) is tuple:
        return _as_names(value, name, origin)
    if not isinstance(value, str):
        raise SettingsError(f"{origin}: {name} must be a text, not {value!r}")
    if get_origin(wanted) is Literal:
        return _as_choice(value, get_args(wanted), name, origin)
    if isinstance(wanted, type) and issubclass(wanted, StrEnum):
        return wanted(_as_choice(value, [str(each) for each in wanted], name, origin))
    return value


def _as_bool(value: object, name: str, origin: str) -> bool:
    texts = {"true": True, "false": False}
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in texts:
        return texts[value.lower()]
    raise SettingsError(f"{origin}: {name} must be true or false, not {value!r}")


def _as_int(value: object, name: str, origin: str) -> int:
    try:
        number = int(value.replace("_", "")) if isinstance(value, str) else value
    except ValueError:
        number = value
    if isinstance(number, bool) or not isinstance(number, int):
        raise SettingsError(f"{origin}: {name} must be a whole number, not {value!r}")
    if number < 0:
        raise SettingsError(f"{origin}: {name} must be >= 0, not {number}")
    return number


def _as_names(value: object, name: str, origin: str) -> tuple[str, ...]:
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list | tuple) or not all(isinstance(each, str) for each in parts):
        raise SettingsError(f"{origin}: {name} must be a list of names, not {value!r}")
    names = tuple(part.strip() for part in parts if part.strip())
    if not names:
        raise SettingsError(f"{origin}: {name} is empty: name one at least, or leave it out")
    return names


def _as_choice(value: str, choices: Any, name: str, origin: str) -> str:
    if value in choices:
        return value
    raise SettingsError(f"{origin}: {name} must be {' or '.join(choices)}, not {value!r}")


# --- what is known -----------------------------------------------------------------------------


def _scalar_fields(section: str) -> list[Field[Any]]:
    """Fields a line of text can set; nested objects keep their defaults."""
    types = get_type_hints(section_class(section))
    return [each for each in fields(section_class(section)) if _is_scalar(types[each.name])]


def _is_scalar(wanted: Any) -> bool:
    parts = get_args(wanted) if get_origin(wanted) in (UnionType, Union) else (wanted,)
    return all(
        get_origin(part) in (Literal, tuple)
        or (isinstance(part, type) and issubclass(part, int | str | type(None)))
        for part in parts
    )


def _field_types(section: str) -> dict[str, Any]:
    types = get_type_hints(section_class(section))
    return {each.name: types[each.name] for each in _scalar_fields(section)}


def _default_of(section: str, each: Field[Any]) -> Any:
    if (section, each.name) == ("worker", "queues"):
        return "every queue of the App"
    if each.default is not MISSING:
        return each.default
    return each.default_factory() if each.default_factory is not MISSING else None


def _check_section(section: str, origin: str) -> None:
    if section not in SECTION_NAMES:
        known = _known(section, SECTION_NAMES)
        raise SettingsError(f"{origin}: there is no section {section!r}{known}")


def _known(name: str, names: Any) -> str:
    close = get_close_matches(name, list(names), n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ";"
    return f"{hint} it knows {', '.join(sorted(names))}"


def as_json(shown: list[Shown]) -> str:
    """One object: name → value and origin."""
    return json.dumps({each.name: {"value": each.value, "origin": each.origin} for each in shown})
