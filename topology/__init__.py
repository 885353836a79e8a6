"""The graph: hosts, devices, NICs, switches and links as a value, its YAML form, discovery, and pictures.

Start with graph.py (Topology), then placement.py (which rank sits on which device). Imports hccl_py.core only.
"""
