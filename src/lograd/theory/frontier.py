"""The fastest training step within a budget of noise: one option for each layer, out of a menu for each.

An option has its seconds, the noise-to-signal ratio that it adds to the gradient in the products for dX and dW, how
that rises with noise that arrives, and a penalty for what it does to the forward pass.  With V the minibatch's own
variance, a choice has

    T = rest + sum_l seconds_l    rho = W / V, W = Propagation.total(n_dX, n_dW, r_dX, r_dW)    pi = sum_l penalty_l / V

`choose` finds the least T with rho + pi <= budget, the least rho + pi within a time, or the most progress per second,
1 / (T (1 + rho + pi)): a step with that much more variance is worth a step with a batch as much smaller.

The prices of noise in seconds under which choices are best (Lagrange multipliers) are found between two choices at a
time: the slope of the line through them is the next price, until nothing lies below the line.  Noise is not quite a sum
over layers, so costs and choices are computed from each other until they settle; exchanges of one and two options then
fill what the prices leave over (`exchanges`).  All of that is for fixed rises; these hardly depend on the noise that
arrives, so the problem is solved again with those of its choice until that stays the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import final

import numpy as np

from ..errors import InvalidType, InvalidValue, nearest_name, sentence
from ..laws import Law
from ..laws.law import Values
from .exchanges import LARGEST, Objective, Point, Table, improve
from .prices import around, best, ends, supported, undominated
from .propagation import Propagation
from .pruning import check_zero_share, noise_to_signal, nonzero_sparsity, threshold
from .rises import Rise, at_levels, settled

DENSE = "dense"
"""The option that leaves a layer as it is."""
EXACT = 5000
"""Up to so many choices are all looked at."""
ROUNDS = 5
"""The most rounds in which choices and rises are computed from each other."""
EXCESS = 50.0
"""The weight of noise or time beyond a limit, while exchanges bring a choice inside it."""
SPARSITIES = (0.70, 0.75, 0.80, 0.83, 0.85, 0.87, 0.89, 0.91, 0.93, 0.95, 0.96, 0.97)
"""The sparsities of `pruned_options`."""


@final
@dataclass(frozen=True)
class Option:
    """One way to compute a layer's three products.

    Args:
        name: of the method; "dense" is the one that leaves the layer as it is.
        seconds: forward and backward of the layer.
        input_noise, weight_noise: the noise-to-signal ratio of the gradient in the products for dX and dW.
        penalty: |g_q - g|^2 for the gradient g_q of the model whose forward has this layer alone treated.
        input_rise, weight_rise: the noise-to-signal ratios on noise that arrives; None for those of the gradient.
    """

    name: str
    seconds: float
    input_noise: float = 0.0
    weight_noise: float = 0.0
    penalty: float = 0.0
    input_rise: Rise | None = None
    weight_rise: Rise | None = None

    def __post_init__(self) -> None:
        for what in ("seconds", "input_noise", "weight_noise", "penalty"):
            if not 0 <= getattr(self, what) < np.inf:
                raise InvalidValue(
                    sentence(f"{what} of the option {self.name!r}", getattr(self, what), "finite, zero or positive")
                )

    @cached_property
    def rises(self) -> tuple[Rise, Rise]:
        """The rises in dX and dW."""
        return (
            self.input_rise or Rise.constant(self.input_noise),
            self.weight_rise or Rise.constant(self.weight_noise),
        )


@final
@dataclass(frozen=True)
class Choice:
    """One option for each layer, and what is expected of them together.

    Args:
        places: of the chosen option in each layer's menu.
        seconds: of the whole step.
        noise: rho, the variance that the backward adds, in units of the minibatch's own.
        penalty: pi, what the forward's rounding does, in the same unit.
    """

    places: tuple[int, ...]
    seconds: float
    noise: float
    penalty: float

    @property
    def total(self) -> float:
        """rho + pi, which a budget of noise holds."""
        return self.noise + self.penalty

    @property
    def progress(self) -> float:
        """1 / (seconds (1 + rho + pi)): steps per second, each worth so much less for its noise."""
        return 1 / (self.seconds * (1 + self.total)) if self.seconds > 0 else math.inf


@final
@dataclass(frozen=True)
class Problem:
    """Layers with a menu of options each.

    Args:
        menus: the options of each layer, at least one.
        energies: how noise travels between the layers, own and passed as absolute energies.
        unit: V, the minibatch's own variance, in which noise is counted.
        rest: seconds of the step outside these layers.
        levels: the noise that arrives at each layer, at which `table` takes the rises; `choose` finds it by itself.
    """

    menus: Sequence[Sequence[Option]]
    energies: Propagation
    unit: float = 1.0
    rest: float = 0.0
    levels: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "menus", tuple(map(tuple, self.menus)))
        object.__setattr__(self, "levels", self.levels or (0.0,) * len(self.menus))
        if not all(isinstance(one, Option) for menu in self.menus for one in menu):
            raise InvalidType("the menus of a Problem must be lists of Option, one list for each layer.")
        if len(self.menus) != self.energies.own.size or not all(self.menus):
            sizes = [len(menu) for menu in self.menus]
            raise InvalidValue(
                sentence("sizes of the menus", sizes, f"{self.energies.own.size} numbers from 1 on, one per layer")
            )
        if not 0 < self.unit < np.inf:
            raise InvalidValue(sentence("unit, the minibatch's own variance,", self.unit, "positive and finite"))
        if not 0 <= self.rest < np.inf:
            raise InvalidValue(sentence("rest", self.rest, "seconds, finite, zero or positive"))

    @cached_property
    def table(self) -> Table:
        """The options as arrays, with noise in units of the minibatch's variance."""
        most = max(map(len, self.menus))
        padded = [[*menu, *[menu[0]] * (most - len(menu))] for menu in self.menus]

        def column(name: str) -> Values:
            return np.array([[getattr(option, name) for option in menu] for menu in padded], dtype=np.float64)

        rises = np.array(
            [
                [[one.at(level) for one in option.rises] for option in menu]
                for menu, level in zip(padded, self.levels, strict=True)
            ]
        )
        energies = Propagation(self.energies.own / self.unit, self.energies.passed / self.unit, self.energies.transfer)
        return Table(
            column("seconds"),
            column("input_noise"),
            column("weight_noise"),
            column("penalty") / self.unit,
            rises[:, :, 0],
            rises[:, :, 1],
            energies,
            self.rest,
        )

    def exact(self, objective: Objective) -> Choice | None:
        """Return the choice with the least objective among all, if there are few; else None."""
        sizes = [len(menu) for menu in self.menus]
        if math.prod(sizes) > EXACT:
            return None
        places = np.stack(np.unravel_index(np.arange(math.prod(sizes)), sizes), axis=1)
        return self.choice(places[np.argmin(objective(*self.table.at_all(places)))].tolist())

    def choice(self, places: Sequence[int]) -> Choice:
        """Return the choice of these places, with its seconds and its noise; rises are those at its own levels."""
        chosen = [menu[place] for menu, place in zip(self.menus, places, strict=True)]
        seconds, n, m, penalty = (
            np.array([getattr(option, name) for option in chosen])
            for name in ("seconds", "input_noise", "weight_noise", "penalty")
        )
        z = self._arriving(chosen)
        r, s = (at_levels([option.rises[side] for option in chosen], z) for side in (0, 1))
        with np.errstate(all="ignore"):
            noise = ((n + r * z) @ self.energies.passed + (m + s * z) @ self.energies.own) / self.unit
        return Choice(
            tuple(map(int, places)),
            float(self.rest + seconds.sum()),
            float(noise) if z.max() < LARGEST / 2 and np.isfinite(noise) else np.inf,
            float(penalty.sum() / self.unit),
        )

    def _arriving(self, chosen: Sequence[Option]) -> Values:
        """Return the noise that arrives at each layer under some options, relative to the gradient without it."""
        n = np.array([option.input_noise for option in chosen])
        return settled(lambda r: self.table.growth(n, r), [option.rises[0] for option in chosen])

    def around(self, choice: Choice) -> Problem:
        """Return this problem with the rises that hold near a choice."""
        chosen = [menu[place] for menu, place in zip(self.menus, choice.places, strict=True)]
        return replace(self, levels=tuple(self._arriving(chosen).tolist()))

    def uniform(self, name: str) -> Choice:
        """Return the choice of one option by name for every layer that has it, and of "dense" for the others."""
        known = {option.name for menu in self.menus for option in menu}
        if name not in known:
            raise InvalidValue(
                sentence("the name of an option", name, ", ".join(sorted(known))) + nearest_name(name, known)
            )
        return self.choice([self._place(layer, name) for layer in range(len(self.menus))])

    @property
    def dense_seconds(self) -> float:
        """Seconds of the step with the option "dense" in every layer."""
        return self.uniform(DENSE).seconds

    def _place(self, layer: int, name: str) -> int:
        names = [option.name for option in self.menus[layer]]
        for wanted in (name, DENSE):
            if wanted in names:
                return names.index(wanted)
        raise InvalidValue(f"the menu of layer {layer} has neither {name!r} nor {DENSE!r}; it has {', '.join(names)}.")


def choose(
    problem: Problem, *, noise: float | None = None, speed: float | None = None, progress: bool = False
) -> Choice:
    """Return the best choice for one of three goals.

    Args:
        problem: the layers and their options.
        noise: the least seconds with rho + pi of at most this.
        speed: the least rho + pi at which the step is this many times as fast as with "dense" everywhere.
        progress: the most progress per second.

    >>> menu = [Option("dense", 1.0), Option("int8", 0.5, 0.01, 0.01), Option("int4", 0.4, 0.3, 0.3)]
    >>> problem = Problem([menu, menu], Propagation([1, 1], [0, 1], [[0, 1], [0, 0]]))
    >>> found = choose(problem, noise=0.1)
    >>> [menu[place].name for place in found.places], found.seconds
    (['int8', 'int8'], 1.0)
    """
    if (noise is not None) + (speed is not None) + bool(progress) != 1:
        raise InvalidValue("choose takes one of noise=, speed= and progress=True.")
    if noise is not None:
        return _within_noise_in_rounds(problem, _number("noise", noise))
    if speed is not None:
        limit = _number("speed", speed)
        return min(_rounds(problem, lambda here: _within_time(here, limit)), key=lambda one: one.total)
    return max(_rounds(problem, _most_progress), key=lambda one: one.progress)


def frontier(problem: Problem) -> list[Choice]:
    """Return choices from the fastest to the one with the least noise, of which none is both slower and noisier."""
    here = problem.around(_most_progress(problem))
    found = [here.choice(one.places.tolist()) for one in supported(here.table, *_ends(here))]
    return undominated(found, lambda one: (one.seconds, one.total))


def _rounds(problem: Problem, solve: Callable[[Problem], Choice]) -> list[Choice]:
    """Return choices, each with the rises that hold near the one before, until they settle."""
    found = [solve(problem)]
    constant = all(len(rise.levels) == 1 for menu in problem.menus for one in menu for rise in one.rises)
    for _ in range(0 if constant else ROUNDS):
        found.append(solve(problem.around(found[-1])))
        if found[-1].places in [one.places for one in found[:-1]]:
            break
    return found


def _within_noise_in_rounds(problem: Problem, budget: float) -> Choice:
    """Return the fastest choice within a budget at its own rises, for a smaller one where rounds do not settle."""
    wanted = budget
    for _ in range(ROUNDS):
        found = _rounds(problem, partial(_within_noise, budget=wanted))
        kept = [one for one in found if one.total <= budget * (1 + 1e-9)]
        if kept:
            return min(kept, key=lambda one: (one.seconds, one.total))
        wanted *= budget / min(one.total for one in found)
    return min(found, key=lambda one: one.total)


def pruned_options(
    law: Law, zero_share: float, seconds: Mapping[float, float], sparsities: Sequence[float] = SPARSITIES
) -> list[tuple[float, float, float]]:
    """Return sparsity, seconds and noise-to-signal ratio of a pruned gradient, between sparsities that were timed.

    Products skip zeros, so their seconds are linear in the sparsity; below and above those that were timed the nearest
    line goes on.  Noise is that of stochastic pruning (`noise_to_signal`).

    Args:
        law: the law of the magnitudes of the gradient.
        zero_share: the share of zeros before pruning; only sparsities above it are returned.
        seconds: by sparsity, as timed.
        sparsities: those to return.

    >>> from lograd.laws import LogNormal
    >>> [(s, round(t, 3), round(n, 3)) for s, t, n in pruned_options(LogNormal(0, 2), 0.0, {0.8: 3, 0.9: 2}, [0.85])]
    [(0.85, 2.5, 0.015)]
    """
    timed = np.array(sorted(seconds))
    if not timed.size or timed[0] <= 0 or timed[-1] >= 1:
        raise InvalidValue(sentence("seconds", dict(seconds), "times by sparsity, such as {0.8: 0.003, 0.9: 0.002}"))
    zeros = float(check_zero_share(zero_share))
    wanted = np.array([one for one in sparsities if one > zeros])
    if not wanted.size:
        return []
    # More zeros are never slower: where they seem to be, the clock was disturbed.
    times = np.minimum.accumulate(np.array([seconds[one] for one in timed.tolist()], dtype=np.float64))
    found = np.interp(wanted, timed, times)
    if timed.size > 1:
        slopes = np.diff(times) / np.diff(timed)
        found = np.where(wanted < timed[0], times[0] + (wanted - timed[0]) * slopes[0], found)
        found = np.where(wanted > timed[-1], times[-1] + (wanted - timed[-1]) * slopes[-1], found)
    noise = [float(noise_to_signal(law, threshold(law, nonzero_sparsity(one, zeros)))) for one in wanted.tolist()]
    return [
        (sparsity, max(float(time), 0.0), ratio)
        for sparsity, time, ratio in zip(wanted.tolist(), found, noise, strict=True)
    ]


def _number(what: str, value: float) -> float:
    if not isinstance(value, float | int) or isinstance(value, bool) or not 0 <= value < np.inf:
        raise InvalidValue(sentence(what, value, "a finite number, zero or positive"))
    return float(value)


def _ends(problem: Problem) -> tuple[Point, Point]:
    """Return the choice with the least noise and the fastest one."""
    quiet, fast = ends(problem.table)
    found = problem.exact(lambda seconds, noise: noise)
    if found is not None and found.total < quiet.noise:
        quiet = problem.table.at(np.array(found.places, dtype=np.intp))
    return quiet, fast


def _most_progress(problem: Problem) -> Choice:
    def objective(seconds: Values, noise: Values) -> Values:
        return seconds * (1 + noise)

    if (found := problem.exact(objective)) is not None:
        return found
    table = problem.table
    start = min(supported(table, *_ends(problem)), key=lambda one: one.seconds * (1 + one.noise))
    price = start.seconds / (1 + start.noise)  # d ln T = -d ln (1 + N)
    return problem.choice(improve(table, start, objective, price).places.tolist())


def _within_noise(problem: Problem, budget: float) -> Choice:
    quiet, fast = _ends(problem)
    limit = budget * (1 + 1e-12)
    if quiet.noise > limit:
        raise InvalidValue(
            f"no choice of methods adds as little as {budget:g} of the minibatch's variance; the least is "
            f"{quiet.noise:.3g}, at {quiet.seconds:.3g} s a step."
        )

    def objective(seconds: Values, noise: Values) -> Values:
        return np.where(noise <= limit, seconds * (1 + 1e-9 * noise / (1 + budget)), np.inf)

    def relaxed(seconds: Values, noise: Values) -> Values:
        return seconds + EXCESS * price * np.maximum(noise - limit, 0.0)

    if (found := problem.exact(objective)) is not None:
        return found
    quieter, faster, price = around(problem.table, quiet, fast, lambda one: one.noise <= limit)
    return problem.choice(best(problem.table, (quieter, faster), relaxed, objective, price).places.tolist())


def _within_time(problem: Problem, speed: float) -> Choice:
    quiet, fast = _ends(problem)
    dense = problem.dense_seconds
    limit = dense / max(speed, 1e-9) * (1 + 1e-12)
    if fast.seconds > limit:
        raise InvalidValue(
            f"no choice of methods makes the step {speed:g} times as fast as dense; the most is "
            f"{dense / fast.seconds:.2f} times ({dense:.3g} s to {fast.seconds:.3g} s)."
        )

    def objective(seconds: Values, noise: Values) -> Values:
        return np.where(seconds <= limit, noise + 1e-15 * seconds / limit, np.inf)

    def relaxed(seconds: Values, noise: Values) -> Values:
        return price * noise + EXCESS * np.maximum(seconds - limit, 0.0)

    if (found := problem.exact(objective)) is not None:
        return found
    quieter, faster, price = around(problem.table, quiet, fast, lambda one: one.seconds > limit)
    return problem.choice(best(problem.table, (faster, quieter), relaxed, objective, price).places.tolist())
