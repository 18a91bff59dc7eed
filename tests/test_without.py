import sys

import pytest

from pscale.without import without


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
