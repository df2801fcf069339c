"""What everything else speaks: avals, arrays, devices, primitives, traces, jaxprs.

In the order in which to read: `aval` (what is known of an array beforehand), `device`, `array`, `transfer` (between devices), `primitive`
(instructions), `trace` (who gives them their meaning now), `jaxpr` (programs as data), `staging` (functions written down as programs),
`flatten` (functions of pytrees as functions of lists), `axes` (names of `vmap`'s axes), `check` (what is a program), `dce` and `garbage`.
"""
