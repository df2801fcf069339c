"""Random programs, files, interrupts and losses: each module is a command, of which the tests run a sample."""
