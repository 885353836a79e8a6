"""ShardedStep: gradients are scattered, each rank steps its shard, parameters are gathered under the next forward."""
