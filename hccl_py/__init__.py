"""hccl_py: collectives on a topology graph.

``hccl_py.init()`` under mpirun or torchrun gives a :class:`~hccl_py.communicator.Communicator`; ``import hccl_py.torch``
adds the backend ``"hccl_py"`` to torch.distributed. Importing this package imports neither.
"""
