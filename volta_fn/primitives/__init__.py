"""The instruction set: every primitive, declared whole, one file a family."""
