"""Settings in layers: defaults, a run, a preset, a file and the flags given, where later ones win."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypedDict, get_args, get_origin, get_type_hints

import tyro
from tyro.conf import OmitArgPrefixes

from tinygpt_jax.cli.common import parse
from tinygpt_jax.config import TrainConfig
from tinygpt_jax.files import user_path
from tinygpt_jax.presets import override, preset, read_settings

HELP = {"-h", "--help"}


def parse_given(verb: str, flags: type, args: Sequence[str]) -> dict[str, Any]:
    """The flags that are in `args`, by name, without defaults; those of a nested dataclass are in a dict of their own.

    Switches are always there, since tyro needs their default. A request for help is left to `show_help`, since the
    defaults that the help shows depend on which preset, file or run was given.
    """
    words = [word for word in args if word not in HELP]
    switches = {f.name: False for f in dataclasses.fields(flags) if f.default is False}
    config = (OmitArgPrefixes,)
    try:
        found: Any = tyro.cli(_optional(flags), args=words, default=switches, config=config, console_outputs=False)
    except SystemExit:  # wrong usage: parse again with the flags that have help texts, for the help or a better message
        parse(verb, flags, args)
        raise
    return dict(found)


def show_help(verb: str, flags: Any, args: Sequence[str]) -> None:
    """Prints the help and exits, if `args` ask for it; `flags` are the defaults that it shows."""
    if HELP & set(args):
        parse(verb, type(flags), ["--help"], default=flags)


def layered(
    given: Mapping[str, Any],
    *,
    base: TrainConfig | None = None,
    run: str = "",
    preset_name: str = "",
    file: str = "",
) -> TrainConfig:
    """The settings that all layers come to, unchecked; `given` are those from flags, which win over all others.

    Raises:
        UserError: a run, preset or file does not exist, or names an unknown setting.
    """
    config = base or TrainConfig()
    if run:
        from tinygpt_jax.runs import read_config

        config = read_config(run)
    named = preset(preset_name) if preset_name else {}
    config = override(config, named, f"preset {preset_name}")
    settings = read_settings(user_path(file)) if file else {}
    config = override(override(config, settings, file), given, "flags")
    asked = "warmup_steps" in settings or "warmup_steps" in given
    if preset_name and not asked and config.steps < config.warmup:  # a preset's warm-up gives way to fewer steps
        config = override(config, {"warmup_steps": None}, f"preset {preset_name}")
    return config


def _optional(kind: type) -> Any:
    """A dataclass as a TypedDict of optional keys: tyro leaves out what is not given."""
    fields = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        inner, *extras = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        if dataclasses.is_dataclass(inner):
            hint = Annotated[_optional(inner), *extras] if extras else _optional(inner)  # type: ignore[arg-type]
        fields[name] = hint
    return TypedDict(kind.__name__, fields, total=False)  # type: ignore[operator]
