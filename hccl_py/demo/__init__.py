"""The demonstration behind ``make demo``: real training over gloo and over hccl_py, then the benchmark, drawn."""
