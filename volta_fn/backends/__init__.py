"""Plan → machine: one folder per backend, knowing no transform."""
