"""Live accuracy: what watched counters admitted, held against what their algorithm promises."""

from sluicegate.analytics.accuracy.judge import Accuracy, Judge, Worst

__all__ = ["Accuracy", "Judge", "Worst"]
