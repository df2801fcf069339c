"""Lines of source and stacks of names."""

from __future__ import annotations

from volta_fn.extend import source_info


def test_stacks_of_names_nest_and_end_with_their_blocks() -> None:
    with source_info.extend_name_stack("a"), source_info.extend_name_stack("b"):
        assert str(source_info.current_name_stack()) == "a/b"
        with source_info.transform_name_stack("vmap"), source_info.extend_name_stack("c"):
            assert str(source_info.current_name_stack()) == "vmap(a/b)/c"
        with source_info.reset_name_stack():
            assert str(source_info.current_name_stack()) == ""
        with source_info.user_context(None), source_info.extend_name_stack(""):
            assert str(source_info.current().name_stack) == "a/b"
    assert source_info.current_name_stack() == source_info.NameStack()
    assert str(source_info.new_name_stack("x") + source_info.new_name_stack()) == "x"


def test_places_are_told_as_text() -> None:
    here = source_info.current()
    assert "test_source_info.py" in source_info.summarize(here)
    assert source_info.summarize(source_info.new_source_info()) == "unknown"
    assert here.replace(traceback=None).traceback is None
