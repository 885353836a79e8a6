"""mpi4py's manners on a Communicator; programs import :mod:`hccl_py.MPI`. What differs: docs/MPI4PY.md."""
