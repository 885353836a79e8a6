"""Torch's own wrappers with our scheduler: it works inside the buckets that torch gives."""
