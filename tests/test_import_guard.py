import sys

import pytest

from pscale.import_guard import hollow, without


def test_a_library_fails_to_import_inside_the_block_and_works_after_it(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("unwanted", "unwanted_too"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("")
    with without("unwanted"):
        with pytest.raises(ModuleNotFoundError, match="unwanted is kept out"):
            import unwanted  # noqa: PLC0415
        import unwanted_too  # noqa: F401, PLC0415
    import unwanted  # noqa: F401, PLC0415

    for name in ("unwanted", "unwanted_too"):
        del sys.modules[name]


def test_a_hollow_module_has_any_name_inside_the_block_and_its_own_after_it(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "unused.py").write_text("Known = 1\n")
    with hollow("unused"):
        from unused import Anything  # noqa: PLC0415

        assert Anything is object
    import unused  # noqa: PLC0415

    assert unused.Known == 1
    assert not hasattr(unused, "Anything")
    del sys.modules["unused"]
