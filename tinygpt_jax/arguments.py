"""Whether arguments of the package's functions have the types that their annotations say; one line for what has not.

A function of the package's face is decorated by `checked`, by `takes` where its arguments are the fields of an options
class, or by `params.of_model` where it measures a model. Nothing heavy is imported, so that the help needs no JAX.
"""

import functools
import inspect
import numbers
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from tinygpt_jax.errors import UserError, shown

P = ParamSpec("P")
Asked = TypeVar("Asked")
Given = TypeVar("Given")


def takes(options: Callable[P, Asked]) -> Callable[[Callable[[Asked], Given]], Callable[P, Given]]:
    """A decorator: a function of one object of class `options` takes that class's fields as its arguments instead, so
    that names, types and defaults are said once; editors and `help` show them. Raises UserError as `fit`."""

    def decorate(function: Callable[[Asked], Given]) -> Callable[P, Given]:
        hints, signature = get_type_hints(options), inspect.signature(options)  # hints without what tyro reads

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> Given:
            asked: Any = options(*args, **kwargs)
            fitted = {name: fit(name, getattr(asked, name), hints[name]) for name in signature.parameters}
            return function(replace(asked, **fitted))

        parameters = [p.replace(annotation=hints[name]) for name, p in signature.parameters.items()]
        returned = inspect.signature(function).return_annotation
        call.__signature__ = inspect.Signature(parameters, return_annotation=returned)  # type: ignore[attr-defined]
        return call

    return decorate


def checked(function: Callable[P, Given]) -> Callable[P, Given]:
    """A decorator: the function gets its arguments as `fit` gives them, by its annotations. Raises UserError as `fit`,
    and TypeError for an argument that it does not have."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> Given:
        given = bound(function, *args, **kwargs)
        return function(*given.args, **given.kwargs)

    return call


def bound(function: Callable[P, Any], *args: P.args, **kwargs: P.kwargs) -> inspect.BoundArguments:
    """The arguments of a call by name, as `fit` gives them; of `**choices: Unpack[Kind]` each by its own type."""
    given, hints = inspect.signature(function).bind(*args, **kwargs), _hints(function)
    for name, value in given.arguments.items():
        if given.signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
            of = get_type_hints(get_args(hints[name])[0], include_extras=True)
            given.arguments[name] = {key: fit(key, one, of.get(key, Any)) for key, one in value.items()}
        else:
            given.arguments[name] = fit(name, value, hints.get(name, Any))
    return given


@functools.cache  # and not before the first call: some names are there only then
def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    return get_type_hints(function, include_extras=True)


def fit(name: str, value: Any, hint: Any) -> Any:
    """The value of an argument as its type has it: numbers of NumPy are Python's, and one string or path stands for a
    list of one, an empty one for none. Which of its type's values make sense is for the function to say.

    Raises:
        UserError: it is not of that type; it says which argument, and what it must be.
    """
    try:
        return _fitted(value, hint)
    except TypeError:
        shape = getattr(value, "shape", ())
        given = f"an array of shape {shape}" if shape else shown(value)
        raise UserError(f"{name} is {given}: must be {_words(hint)}") from None


CALLABLE = get_origin(Callable[[], None])
ARRAYS = ("ndarray", "Array")
"""What the classes of NumPy's and JAX's arrays are called; neither library is loaded here."""
_NAMES = {
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    str: "text",
    NoneType: "None",
    dict: "a dict",
    os.PathLike: "a path",
}


MOST = 2**31 - 1
"""The largest count: what is done so often never ends."""


def whole(name: str, value: int, least: int, most: int, unit: str = "") -> None:
    """Raises UserError where a whole number is not from `least` to `most`."""
    if not least <= value <= most:
        raise UserError(f"{name} is {shown(value)}: must be a whole number{unit} from {least:,} to {most:,}")


def _fitted(value: Any, hint: Any) -> Any:
    """Raises TypeError where the value is not of the type; a type that is not known here takes any value."""
    origin, inside = get_origin(hint), get_args(hint)
    kind = origin or hint
    if origin is Annotated:
        return _fitted(value, inside[0])
    if origin in (Union, UnionType):
        return _first_fit(value, inside)
    if origin is Literal:
        return _fitted(value, type(inside[0]))
    if kind in (Sequence, Iterable, tuple, list) and inside:
        return _fitted_list(value, kind, inside)
    value = plain(value) if kind in (int, float, bool, str) else value
    if kind is str and isinstance(value, os.PathLike):
        value = os.fspath(value)
    if kind in (int, float):  # True is an int, but nobody means it
        ok = isinstance(value, numbers.Integral if kind is int else numbers.Real) and not isinstance(value, bool)
        ok = ok and not (kind is float and isinstance(value, int) and abs(value) > sys.float_info.max)
    elif kind is CALLABLE:
        ok = callable(value)
    elif getattr(kind, "__name__", "") in ARRAYS:
        ok = hasattr(value, "dtype") or isinstance(value, list | tuple)
    else:
        known = inspect.isclass(kind) and kind not in (Any, Mapping) and not getattr(kind, "_is_protocol", False)
        ok = not known or isinstance(value, kind)
    if not ok:
        raise TypeError
    return value


def _first_fit(value: Any, hints: Iterable[Any]) -> Any:
    for hint in hints:
        try:
            return _fitted(value, hint)
        except TypeError:
            continue
    raise TypeError


def _fitted_list(value: Any, kind: Any, inside: tuple[Any, ...]) -> Any:
    if isinstance(value, str | os.PathLike):
        return (_fitted(value, inside[0]),) if os.fspath(value) else ()
    fixed = kind is tuple and Ellipsis not in inside
    given = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(given, tuple if fixed else Sequence) or (fixed and len(given) != len(inside)):
        raise TypeError
    if isinstance(given, bytes):  # a sequence of numbers, but nobody means those
        raise TypeError
    found = [_fitted(one, inside[i if fixed else 0]) for i, one in enumerate(given)]
    return found if isinstance(value, list) else tuple(found)


def plain(value: Any) -> Any:
    """A NumPy or JAX number as Python's; all else as it is."""
    return value.item() if getattr(value, "shape", None) == () and hasattr(value, "item") else value


def _words(hint: Any) -> str:
    """A type in words: `a whole number or None`, `a list (each text)`; of `Annotated[kind, "words"]` these."""
    origin, inside = get_origin(hint), get_args(hint)
    kind: Any = origin or hint
    if origin is Annotated:
        return next((said for said in inside[1:] if isinstance(said, str)), _words(inside[0]))
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(map(_words, inside)))
    if origin is Literal:
        return f"one of {', '.join(map(str, inside))}"
    if kind is tuple and inside and Ellipsis not in inside:
        return f"({', '.join(map(_words, inside))})"
    if kind in (Sequence, Iterable, tuple, list) and inside:
        return f"a list (each {_words(inside[0])})"
    if getattr(kind, "__name__", "") in ARRAYS:
        return "an array"
    if kind is CALLABLE:
        return "a function"
    name = getattr(kind, "__name__", str(kind))
    return _NAMES.get(kind, f"{'an' if name[0] in 'AEIOU' else 'a'} {name}")
