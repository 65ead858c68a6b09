"""Checks of the JSON files in the folder of a run; each says in one sentence what does not hold."""

from __future__ import annotations

from typing import Any

from lograd import InvalidValue
from lograd.errors import sentence
from lograd.files.checks import check_number, check_object, check_one_of, check_text, check_whole

KINDS = ("train", "test", "guard")
STATUSES = ("finished", "diverged")
MOST_THREADS = 4096


def check_record(record: Any) -> None:
    """config.json: all that is read of it but for the settings, which check themselves."""
    check_object("it", record, ("settings", "plan", "data", "total_steps", "threads", "versions"), None)
    if record["plan"] is not None:
        check_text("plan", record["plan"])
    check_object("data", record["data"], ("fingerprint",), None)
    check_text("fingerprint of the data", record["data"]["fingerprint"])
    check_whole("total_steps", record["total_steps"], 1)
    check_whole("threads", record["threads"], 1, MOST_THREADS)
    versions = record["versions"]
    if not isinstance(versions, dict):
        raise InvalidValue(sentence("versions", versions, "an object with a text for each name"))
    for name, version in versions.items():
        check_text(f"version of {name!r}", version)


def check_line(line: Any, metric: str | None = None) -> None:
    """A line of metrics.jsonl; an evaluation must have the metric that is asked for."""
    if isinstance(line, dict) and line.get("kind") == "guard":
        _check_guard_line(line)
        return
    check_object("a line of metrics", line, ("kind", "step", "seconds", "sparsity", "bits"), None)
    kind = check_one_of("kind", line["kind"], KINDS)
    check_whole("step", line["step"])
    check_number("seconds", line["seconds"], 0)
    if kind == "train":  # an evaluation of a user's model has what its metric gives
        check_number("loss", line.get("loss"))
    check_number("bits", line["bits"])
    if metric is not None and kind == "test":
        check_number(metric, line.get(metric))
    for name, value in line.items():
        if name == "intervals":
            check_intervals(value)
        elif name not in ("kind", "step") and value is not None:
            check_number(name, value)


def _check_guard_line(line: dict[str, Any]) -> None:
    """A change that a guard has made."""
    texts = ("layer", "before", "after", "cause")
    check_object("a line of a guard", line, ("kind", "step", "epoch", "seconds", "noise", *texts))
    check_whole("step", line["step"])
    for name in ("epoch", "seconds", "noise"):
        check_number(name, line[name], 0)
    for name in texts:
        check_text(name, line[name])


def check_intervals(found: Any) -> None:
    """The errors of clipped gradients in a line: numbers by name, for each layer."""
    if not isinstance(found, dict) or not all(isinstance(one, dict) for one in found.values()):
        raise InvalidValue(sentence("intervals", found, "an object of numbers for each layer"))
    for layer, numbers in found.items():
        for name, value in numbers.items():
            check_number(f"{name} of the interval of {layer!r}", value)


def check_summary(summary: Any, metric: str) -> None:
    """summary.json; only a run that diverged may have no evaluation."""
    check_object(
        "it", summary, ("status", "reason", "steps", "final", "best", "seconds", "seconds_per_step", "counters"), None
    )
    status = check_one_of("status", summary["status"], STATUSES)
    check_text("reason", summary["reason"])
    check_whole("steps", summary["steps"])
    check_number("seconds", summary["seconds"], 0)
    if summary["seconds_per_step"] is not None:
        check_number("seconds_per_step", summary["seconds_per_step"], 0)
    for name in ("final", "best"):
        if summary[name] is not None or status == "finished":
            check_line(summary[name], metric)
    if summary["counters"] is not None:
        check_object("counters", summary["counters"], ("total", "sparsity"), None)
