"""The wires, described: what each transport needs, whether it can work here, and its options.

The bytes move in ``native/src/transports/``, one file of the same stem each.
"""
