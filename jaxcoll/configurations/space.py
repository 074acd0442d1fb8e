"""The configuration space of a task: a few subspaces, each a grid of resource parameters.

A subspace fixes every implementation parameter (AutoCCL, section 4.1: <algorithm, protocol,
transport>); its points are the combinations of its resource values. Nothing here is enumerated
before it is asked for: the space of NCCL has 251,658,240 points.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence

from jaxcoll.configurations import NVLINK_DEFAULT, TABLE_2, Config, Parameter, Value
from jaxcoll.errors import TuneError
from jaxcoll.numerics import checks

Valid = Callable[[Config], bool]
Index = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Subspace:
    """All configurations of one implementation: a grid, one axis per resource parameter.

    Raises:
        TuneError: a parameter named twice, or a parameter among ``resources`` that is none.
    """

    implementation: Config
    resources: tuple[Parameter, ...] = ()

    def __post_init__(self):
        checks.instance(self.implementation, Config, "a subspace's implementation", TuneError)
        resources = tuple(checks.members(self.resources, "a subspace's resources", TuneError))
        for parameter in resources:
            checks.instance(parameter, Parameter, "a resource of a subspace", TuneError)
            if not parameter.is_resource:
                raise TuneError(
                    f"parameter {parameter.name!r} is not a resource parameter; its value "
                    "belongs to the subspace's implementation"
                )
        names = [*self.implementation, *(parameter.name for parameter in resources)]
        if len(set(names)) < len(names):
            raise TuneError(f"the parameters of a subspace must differ in name, got {names}")
        checks.put(self, resources=resources)

    @property
    def shape(self) -> Index:
        """How many values each resource parameter has."""
        return tuple(len(parameter.values) for parameter in self.resources)

    @property
    def size(self) -> int:
        """How many points the grid has."""
        return math.prod(self.shape)

    def config(self, index: Sequence[int]) -> Config:
        """The configuration at a position of the grid.

        Raises:
            TuneError: a position that the grid does not have.
        """
        try:
            values = {p.name: p.values[i] for p, i in zip(self.resources, index, strict=True)}
        except (IndexError, TypeError, ValueError):
            raise TuneError(
                f"a position in a grid of {self.shape} is an integer for each axis, got "
                f"{checks.shown(index)}"
            ) from None
        return Config({**self.implementation, **values})

    def index(self, config: Config) -> Index | None:
        """The position of a configuration, or None if it belongs elsewhere."""
        checks.instance(config, Config, "config", TuneError)
        if len(config) != len(self.implementation) + len(self.resources):
            return None
        if any(config.get(name) != value for name, value in self.implementation.items()):
            return None
        # By a table of each parameter: chunk_bytes has 8,192 values.
        try:
            return tuple(p.positions[config[p.name]] for p in self.resources)
        except KeyError:
            return None

    def configs(self) -> Iterator[Config]:
        """Every configuration, the last resource changing fastest."""
        return map(self.config, itertools.product(*map(range, self.shape)))


@dataclasses.dataclass(frozen=True)
class Space:
    """The configurations that a tuner may choose from.

    Args:
        subspaces: subspaces of different implementations.
        default: the configuration without tuning; a point of the space. Every search measures it.
        valid: False for configurations that must not be tried, such as chunks that do not divide
            a buffer; None if all are valid. It is asked before anything is compiled.

    Raises:
        TuneError: no subspace, two of the same implementation, a default outside the space or
            one that is not valid.
    """

    subspaces: tuple[Subspace, ...]
    default: Config
    valid: Valid | None = None

    def __post_init__(self):
        checks.optional(self.valid, checks.function, "valid", TuneError)
        subspaces = tuple(checks.members(self.subspaces, "subspaces", TuneError))
        if not subspaces:
            raise TuneError("the configuration space is empty; give at least one subspace")
        for subspace in subspaces:
            checks.instance(subspace, Subspace, "a subspace", TuneError)
        seen = set()
        for subspace in subspaces:
            if subspace.implementation in seen:
                raise TuneError(f"two subspaces have the implementation {subspace.implementation}")
            seen.add(subspace.implementation)
        checks.put(self, subspaces=subspaces)
        checks.instance(self.default, Config, "default", TuneError)
        if self._locate(self.default) is None:
            raise TuneError(
                f"the default {checks.shown(self.default)} is outside the configuration space; "
                "give default= with values that the space has"
            )
        if not self._is_valid(self.default):
            raise TuneError(
                f"the default {checks.shown(self.default)} is not a valid configuration; give "
                "default= one that is"
            )

    @classmethod
    def product(
        cls, parameters: Iterable[Parameter], default: Config, valid: Valid | None = None
    ) -> Space:
        """All combinations of some parameters: a subspace per combination of implementations."""
        given = tuple(checks.members(parameters, "parameters", TuneError))
        for parameter in given:
            checks.instance(parameter, Parameter, "a parameter", TuneError)
        choices = [[(p.name, value) for value in p.values] for p in given if not p.is_resource]
        resources = tuple(p for p in given if p.is_resource)
        combinations = itertools.product(*choices)
        return cls(
            tuple(Subspace(Config(dict(c)), resources) for c in combinations), default, valid
        )

    @classmethod
    def nccl(cls, default: Config = NVLINK_DEFAULT) -> Space:
        """Table 2 of AutoCCL whole: 12 subspaces of 128 x 20 x 8,192 points, 251,658,240 in all.

        The default is NCCL's choice on NVLink (Table 4).
        """
        return cls.product(TABLE_2, default)

    @property
    def size(self) -> int:
        """How many points the grids have; ``valid`` may refuse some of them."""
        return sum(subspace.size for subspace in self.subspaces)

    @property
    def digest(self) -> str:
        """A hash of the subspaces and the default, by which a saved search knows its space."""
        # Not of ``valid``, which is a function.
        content = [
            [s.implementation.to_json(), [[p.name, p.values] for p in s.resources]]
            for s in self.subspaces
        ]
        text = json.dumps([content, self.default.to_json()], separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def __contains__(self, config: object) -> bool:
        return (
            isinstance(config, Config)
            and self._locate(config) is not None
            and self._is_valid(config)
        )

    def subspace_of(self, config: Config) -> Subspace:
        """The subspace that a configuration belongs to, whether it is valid or not.

        Raises:
            TuneError: it belongs to none.
        """
        found = self._locate(config) if isinstance(config, Config) else None
        if found is None:
            raise TuneError(
                f"the configuration {checks.shown(config)} is outside the configuration space"
            )
        return found

    def configs(self) -> Iterator[Config]:
        """Every valid configuration, subspace by subspace."""
        for subspace in self.subspaces:
            yield from filter(self._is_valid, subspace.configs())

    def bounded(self, *, default: Config | None = None, **limits) -> Space:
        """The part of the space within limits (AutoCCL, section 8.2: values that cannot fail).

        Args:
            default: the default of the new space; the default of this one where None.
            limits: for a resource parameter, the pair (least, most), None for no limit on that
                side; for an implementation parameter, the values that remain.

        Raises:
            TuneError: a parameter that the space does not have, limits of another form,
                contradictory limits, limits that leave nothing or exclude the default.
        """
        names = {name for s in self.subspaces for name in (*s.implementation, *_names(s))}
        for name in limits:
            if name not in names:
                raise TuneError(
                    f"there is no parameter {name!r} to bound; the parameters are "
                    f"{', '.join(sorted(names))}"
                )
        remaining = tuple(
            Subspace(s.implementation, tuple(_between(p, limits.get(p.name)) for p in s.resources))
            for s in self.subspaces
            if all(
                s.implementation[name]
                in checks.members(limits[name], f"the values that remain of {name!r}", TuneError)
                for name in s.implementation
                if name in limits
            )
        )
        if not remaining:
            shown = ", ".join(f"{name}={checks.shown(limit)}" for name, limit in limits.items())
            raise TuneError(f"the bounds {shown} leave an empty configuration space")
        return Space(remaining, self.default if default is None else default, self.valid)

    def pruned(self, valid: Valid, *, default: Config | None = None) -> Space:
        """The points for which ``valid`` holds as well.

        Raises:
            TuneError: the default is not among them.
        """
        checks.optional(valid, checks.function, "valid", TuneError)
        before = self.valid
        # The older refusal comes first: ``valid`` is asked only about what passed that.
        both = valid if before is None else lambda config: before(config) and valid(config)
        return Space(self.subspaces, self.default if default is None else default, both)

    def split(
        self, option: Parameter, value: Value, where: Callable[[Config], bool] | None = None
    ) -> Space:
        """The space with one implementation parameter more (AutoCCL, section 8.1).

        A new option splits subspaces and changes nothing in them: their grids, and so the search
        inside each, remain as they were.

        Args:
            option: an implementation parameter that the space does not have.
            value: the value of the option in the default.
            where: True for the implementations that the option exists for, such as those with one
                transport; None for all.

        Raises:
            TuneError: the option is a resource, or the space has a parameter of its name.
        """
        checks.instance(option, Parameter, "option", TuneError)
        checks.optional(where, checks.function, "where", TuneError)
        if option.is_resource:
            raise TuneError(f"the option {option.name!r} must be an implementation parameter")
        applies = where or (lambda _: True)
        split = []
        for s in self.subspaces:
            if not applies(s.implementation):
                split.append(s)
                continue
            if option.name in (*s.implementation, *_names(s)):
                raise TuneError(f"the space has a parameter {option.name!r} already")
            split += [
                Subspace(s.implementation.replace(**{option.name: v}), s.resources)
                for v in option.values
            ]
        default = self.default
        if applies(self.subspace_of(default).implementation):
            default = default.replace(**{option.name: value})
        return Space(tuple(split), default, self.valid)

    def _locate(self, config: Config) -> Subspace | None:
        return next((s for s in self.subspaces if s.index(config) is not None), None)

    def _is_valid(self, config: Config) -> bool:
        return self.valid is None or bool(self.valid(config))


def _names(subspace: Subspace) -> list[str]:
    return [parameter.name for parameter in subspace.resources]


def _between(parameter: Parameter, limits) -> Parameter:
    """A resource parameter within a pair of limits."""
    if limits is None:
        return parameter
    name = parameter.name
    pair = checks.sequence(limits, f"the bounds of {name!r}", TuneError)
    if len(pair) != 2:
        raise TuneError(f"the bounds of {name!r} must be (least, most), got {checks.shown(limits)}")
    # Exact, so that a bound that equals a value of the parameter keeps it.
    least, most = (
        checks.optional(limit, checks.rational, f"a bound of {name!r}", TuneError) for limit in pair
    )
    if least is not None and most is not None and least > most:
        raise TuneError(
            f"the bounds of {name!r} contradict each other: {pair[0]} is more than {pair[1]}"
        )
    values = tuple(
        value
        for value in parameter.values
        if (least is None or _number(value) >= least) and (most is None or _number(value) <= most)
    )
    if not values:
        raise TuneError(
            f"no value of {name!r} lies within {checks.shown(limits)}: its values are "
            f"{parameter.values[0]} to {parameter.values[-1]}"
        )
    return dataclasses.replace(parameter, values=values)


def _number(value: Value) -> int | float:
    """A value of a resource parameter, which is a number."""
    return checks.instance(value, (int, float), "a resource value", TuneError)
