"""The benchmark: every collective, timed and checked, next to other libraries in the same run."""
