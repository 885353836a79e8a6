"""DistributedDataParallel with a reducer of its own: gradients in memory that the ranks share, buckets that change."""
