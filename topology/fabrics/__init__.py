"""Fabrics: generators that make the switches and links of regular networks from a few figures. Start with fabric.py."""
