"""Groups of ranks on GPUs: kernels compiled at run time, peer memory, and what stands between arrays and them."""
