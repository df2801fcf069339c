"""Primitives are complete when they are made; layers above register rules in tables of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

import volta_fn as vf
from volta_fn.core.arrays.array import Array
from volta_fn.core.primitive import PRIMITIVES, Primitive, RuleTable
from volta_fn.core.trace import bind
from volta_fn.transforms.differentiation import jvp_rules


@pytest.mark.parametrize("attribute", Primitive.__slots__)
def test_no_attribute_can_be_assigned_or_deleted(attribute: str) -> None:
    sin = PRIMITIVES["sin"]
    value = getattr(sin, attribute)
    with pytest.raises(AttributeError, match=rf"the primitive sin is complete, so its {attribute} cannot be assigned"):
        setattr(sin, attribute, None)
    with pytest.raises(AttributeError, match="cannot be deleted"):
        delattr(sin, attribute)
    assert getattr(sin, attribute) is value


def test_a_table_comes_before_the_rule_of_the_primitive(monkeypatch: pytest.MonkeyPatch) -> None:
    sin = PRIMITIVES["sin"]

    def jvp(primals: Sequence[Array], tangents: Sequence[Any]) -> tuple[Array, Any]:
        return bind(sin, *primals), 3 * tangents[0]

    monkeypatch.setitem(jvp_rules, sin, jvp)
    assert float(vf.jvp(vf.lax.sin, (0.5,), (1.0,))[1]) == 3.0


def test_one_rule_is_registered_for_several_primitives() -> None:
    table, (sin, cos) = RuleTable(), (PRIMITIVES["sin"], PRIMITIVES["cos"])

    @table.register(sin, cos)
    def rule() -> None:
        """Do nothing."""

    assert table == {sin: rule, cos: rule}
