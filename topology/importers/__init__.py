"""Importers: other tools' descriptions of a host or a network become a Topology. Start with importer.py."""
