"""One exposition of several: the samples of each process, told apart by the label ``worker``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["END", "merge"]

END: Final = "# EOF"
"""The last line of OpenMetrics."""


def merge(texts: Mapping[int, bytes]) -> bytes:
    """The expositions (Prometheus text format 0.0.4, or all of them OpenMetrics 1.0) of several workers as one, with ``worker`` as each sample's first label.

    Samples of one family stay together, as the format asks; its help and type are those of the first that has it.
    The end that OpenMetrics asks for is left to whoever sends the whole.
    """
    heads: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for worker, text in texts.items():
        family = ""
        known = False
        for line in text.decode().split("\n"):
            if line.startswith("# HELP "):
                family = line.split(" ", 3)[2]
                known = family in heads
                if not known:
                    heads[family], samples[family] = [line], []
            elif line == END:
                continue
            elif line.startswith("#"):
                if not known:
                    heads[family].append(line)
            elif line:
                samples[family].append(_labelled(line, worker))
    return "".join(f"{line}\n" for family in heads for line in (*heads[family], *samples[family])).encode()


def _labelled(sample: str, worker: int) -> str:
    # No brace and no space comes before the labels or, where there are none, before the value.
    name, brace, rest = sample.partition("{")
    if brace and " " not in name:
        return f'{name}{{worker="{worker}",{rest}' if not rest.startswith("}") else f'{name}{{worker="{worker}"{rest}'
    name, _, value = sample.partition(" ")
    return f'{name}{{worker="{worker}"}} {value}'
