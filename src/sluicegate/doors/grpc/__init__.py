"""Doors over gRPC: Envoy's rate limit service, version 3."""
