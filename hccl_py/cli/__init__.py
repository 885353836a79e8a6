"""The command hccl-py: one file a subcommand, imported only when it is called."""
