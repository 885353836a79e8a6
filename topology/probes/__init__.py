"""Probes: each wraps one source of facts about this machine and can be pointed at a folder of fixtures."""
