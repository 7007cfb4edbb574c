"""Traces and metrics by OTLP, with the extra `otel`."""
