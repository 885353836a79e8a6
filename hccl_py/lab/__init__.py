"""An emulated cluster on one machine: the hosts of a cluster file as Linux network namespaces (root only)."""
