"""What everything else speaks: avals, arrays, devices, primitives, traces, jaxprs."""
