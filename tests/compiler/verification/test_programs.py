"""Programs that a pass made: violations of every rule are found, named by pass, equation and line; right passes pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from tests.compiler.fusion.test_fuse import SimpleTarget
from tests.compiler.verification.planting import X, model, refused, traced, with_equations, with_kernel
from volta_fn import lax
from volta_fn.compiler import pipeline
from volta_fn.compiler.ir.kernel import FusedProgram
from volta_fn.compiler.target import ProgramPass
from volta_fn.compiler.verification import effects_of, is_kept, verify_lowered, verify_pass
from volta_fn.core.jaxpr import ClosedJaxpr, Equation, Var
from volta_fn.errors import CompilerError
from volta_fn.settings import current as settings

Change = Callable[[list[Equation]], Any]


def wider(eqn: Equation) -> Equation:
    return eqn.replace(outvars=[Var(v.aval.update(shape=(*v.aval.shape, 2))) for v in eqn.outvars])


CHANGES: dict[str, tuple[str, str, Change]] = {
    "an equation is lost": ("read before it is computed", "mul", lambda eqns: eqns.pop(0)),
    "equations change order": ("read before it is computed", "mul", lambda eqns: eqns.insert(0, eqns.pop(1))),
    "a value is computed twice": ("computed twice", "tanh", lambda eqns: eqns.insert(1, eqns[0])),
    "a result has another type": ("other types than the primitive's rule gives", "tanh", lambda eqns: eqns.append(wider(eqns[0]))),
    "an operand is missing": (
        "1 operands of a primitive that takes 2",
        "mul",
        lambda eqns: eqns.insert(1, (lambda e: e.replace(invars=e.invars[:1]))(eqns.pop(1))),
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_violation_is_found(name: str) -> None:
    problem, equation, change = CHANGES[name]
    closed = traced()
    changed = with_equations(closed, change)
    refused(lambda: verify_pass("a pass", closed, changed), "a pass", problem, equation)


def test_operands_that_do_not_fit_are_found() -> None:
    closed = traced()
    number = [e.primitive.name for e in closed.eqns].index("dot_general")
    params = {**closed.eqns[number].params, "dimension_numbers": (((0,), (1,)), ((), ()))}
    changed = with_equations(closed, lambda eqns: eqns.insert(number, eqns.pop(number).replace(params=params)))
    refused(lambda: verify_pass("a pass", closed, changed), "a pass", "operands that the primitive does not take", "dot_general")


def test_outputs_keep_their_types() -> None:
    closed = traced()
    outputs = closed.outvars
    refused(lambda: verify_pass("a pass", closed, closed.replace(outvars=outputs[::-1])), "a pass", "outputs of types .* became")
    refused(lambda: verify_pass("a pass", closed, closed.replace(outvars=outputs[:1])), "a pass", "outputs of types .* became")
    refused(lambda: verify_pass("a pass", closed, closed.replace(outvars=[Var(outputs[0].aval), outputs[1]])), "a pass", "is not computed")


@pytest.mark.parametrize(
    "change, problem",
    [
        (lambda eqns: eqns.insert(0, eqns.pop(1)), "an operand .* is read before it is computed.*in sin"),
        (lambda eqns: eqns.append(wider(eqns[1])), "results of other types than the primitive's rule gives.*in sin"),
    ],
)
def test_programs_of_control_flow_are_verified(change: Change, problem: str) -> None:
    closed = traced(lambda x: lax.scan(lambda c, r: (jnp.sin(c * r), c + r), x[0], x), X)
    (scan,) = [e for e in closed.eqns if e.primitive.name == "scan"]
    body = with_equations(scan.params["jaxpr"], change)
    changed = with_equations(closed, lambda eqns: eqns.__setitem__(eqns.index(scan), scan.replace(params={**scan.params, "jaxpr": body})))
    with pytest.raises(CompilerError, match=f"(?s)a pass: {problem} .*test_programs.py"):
        verify_pass("a pass", closed, changed)


# effects


def told(x: Any) -> Any:
    vf.debug.callback(print, x)
    vf.debug.callback(repr, x + 1)
    return lax.cond(x[0, 0] > 0, lambda: vf.debug.callback(id, x), lambda: None), x * 2


def test_effects_are_kept_in_order() -> None:
    closed = traced(told, X)
    effects = [n for n, e in enumerate(closed.eqns) if e.primitive.name in ("debug_callback", "cond")]
    assert len(effects) == 3 and len(effects_of(closed)) == 3
    for number in effects[:2]:  # the conditional's other branch has none
        lost = with_equations(closed, lambda eqns, number=number: eqns.pop(number))
        refused(lambda lost=lost: verify_pass("a pass", closed, lost), "a pass", "effects were lost")
    swapped = with_equations(closed, lambda eqns: eqns.append(eqns.pop(effects[0])))
    refused(lambda: verify_pass("a pass", closed, swapped), "a pass", "effects were lost, added or reordered: debug_callback")


def test_a_branch_may_be_chosen_and_a_loop_of_one_step_unrolled() -> None:
    closed = traced(told, X)
    first, second, choice = effects_of(closed)
    branches = choice[1]
    assert is_kept((first, second, choice), (first, second, *branches[1]))
    assert is_kept((first, second, choice), (first, second, *branches[0]))
    assert not is_kept((first, second, choice), (first, *branches[1]))
    assert not is_kept((first,), (first, first)) and not is_kept((first, second), (second, first))
    loop = lambda n: effects_of(traced(lambda x: lax.scan(lambda c, r: (vf.debug.callback(print, r), c)[::-1], 0.0, x[:n]), X))
    assert [effect[0] for effect in loop(1)] == ["debug_callback"] and [effect[0] for effect in loop(3)] == ["scan"]


# fusion, and what follows


def fused() -> FusedProgram:
    return pipeline.fused(vf.make_jaxpr(model)(X), SimpleTarget())


def test_nodes_are_verified() -> None:
    program = fused()
    assert len(program.kernels) > 1 and len(program.nodes) > len(program.kernels)
    verify_pass("fusion", program.closed, program)
    gone = program._replace(nodes=program.nodes[1:])
    refused(lambda: verify_pass("fusion", program.closed, gone), "fusion", "an operand .* is read before it is computed", "sort|sub|dot")
    again = program._replace(nodes=(program.nodes[0], *program.nodes))
    refused(lambda: verify_pass("fusion", program.closed, again), "fusion", "computed twice", "kernel of tanh")
    short = program._replace(nodes=program.nodes[:-1])
    refused(lambda: verify_pass("fusion", program.closed, short), "fusion", "output 0, .*, is not computed")
    swapped = with_kernel(program, lambda call: call._replace(results=call.results[::-1]))
    refused(lambda: verify_pass("fusion", program.closed, swapped), "fusion", "a kernel's results are", "kernel of tanh")
    other = Var(program.nodes[0].results[0].aval.update(dtype=np.dtype(np.int32)))  # type: ignore[union-attr]  # a kernel
    aliased = program._replace(roots={other: program.nodes[0].results[0]})  # type: ignore[union-attr]
    refused(lambda: verify_pass("aliases", program, aliased), "aliases", "shares the memory of .* another size or dtype")


def test_lifetimes_of_lowered_programs_are_verified() -> None:
    program = pipeline.lower(vf.make_jaxpr(model)(X), SimpleTarget())
    verify_lowered(program)
    (var, number), *_ = [(v, n) for v, n in program.last_use.items() if 0 < n < len(program.items)]
    short = program._replace(last_use={**program.last_use, var: number - 1})
    refused(lambda: verify_lowered(short), "lowering for none", "read later than its lifetime says", "sort|kernel of")
    producers = {v: n + 1 for v, n in program.producers.items()}
    refused(lambda: verify_lowered(program._replace(producers=producers)), "lowering for none", "the producer of .* another item")


def test_a_wrong_pass_is_named_by_the_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the pipeline itself, and only if verification is on."""

    def forgetful(closed: ClosedJaxpr) -> ClosedJaxpr:
        numbers = [n for n, e in enumerate(closed.eqns) if e.primitive.name == "tanh"]
        return with_equations(closed, lambda eqns: eqns.pop(numbers[0])) if numbers else closed

    passes = (ProgramPass("forgetful", "Forget a tanh.", forgetful), *pipeline.EQUATION_PASSES)
    monkeypatch.setattr(pipeline, "EQUATION_PASSES", passes)
    refused(lambda: traced(), "forgetful", "an operand f32.3,4. is read before it is computed", "mul")
    monkeypatch.setattr(settings, "verify", False)
    assert "tanh" not in {e.primitive.name for e in pipeline.simplify(vf.make_jaxpr(lambda x: (jnp.tanh(x), x)[1])(X)).eqns}


def test_settings_turn_it_on_and_off() -> None:
    assert settings.verify
    with vf.config.enable_checks(False):
        assert not settings.verify
    assert settings.verify
