from pscale.suite import editor_schema


def test_an_editor_knows_every_field_and_no_other():
    schema = editor_schema()
    assert schema["additionalProperties"] is False
    groups = schema["$defs"]
    assert all(group["additionalProperties"] is False for group in groups.values())
    sweep = groups["Sweep"]["properties"]
    assert {"ranks", "model.width", "width", "zip", "cases"} <= sweep.keys()
    assert "kind" not in sweep, "model or data?"


def test_an_editor_lets_numbers_be_expressions_and_quantities():
    groups = editor_schema()["$defs"]
    for group, field, pattern in (
        ("Gpt", "width", "^="),
        ("Plan", "bucket", "MiB"),
        ("Launch", "time_limit", "smhd"),
        ("Plan", "dp", "ranks"),
    ):
        number, text = groups[group]["properties"][field]["anyOf"]
        assert number["type"] in ("integer", "number")
        assert pattern in text["pattern"]


def test_an_editor_accepts_a_file_that_only_extends():
    schema = editor_schema()
    assert schema["required"] == ["name"]
    assert {"required": ["extends"]} in schema["anyOf"]
    assert not schema["$defs"]["Gpt"]["required"]
