"""Plan → machine: `cpu` is the CPU as a device, with one folder for each way of running programs; none knows a transform."""
