"""Micro-batching."""
