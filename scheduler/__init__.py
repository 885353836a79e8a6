"""THE PLAN: what each rank does for a collective, verified, costed and chosen.

Start with program.py (one rank's steps), then plan.py (all ranks, verified), algorithms/ring.py (how a plan is written)
and select.py (which plan serves which size). Imports hccl_py.core and hccl_py.topology only; knows no sockets and no
dtypes.
"""
