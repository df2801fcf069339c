"""The rules of primitives that call sub-programs, for every transform.

`call_rules`, `attention_rules`, `cond_rules`, `scan_rules` and `while_rules`; `subprograms` caches the programs that they derive.
"""
