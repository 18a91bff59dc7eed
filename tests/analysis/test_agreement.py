from synthetic import Point, summary_of


def test_a_launch_that_begins_with_another_loss_than_the_serial_one_is_invalid_and_not_averaged_in(tmp_path):
    points = [
        Point(ranks=1, scaling="strong", losses=[3.0, 2.0]),
        Point(ranks=2, scaling="strong", losses=[3.0000001, 2.1]),
        Point(ranks=4, scaling="strong", losses=[3.01, 2.0]),
    ]
    summary = summary_of(tmp_path / "run", points)
    assert [point.status for point in summary.rows("cases")] == ["ok", "ok", "invalid"]
    (failure,) = summary.rows("failures")
    assert failure.repeats == (0, 1, 2)
    assert "its first loss is 3.01, but 3 on 1 rank" in failure.reason
    assert summary.rows("cases")[2].step_s is None


def test_cases_that_train_something_else_may_lose_something_else(tmp_path):
    points = [Point(ranks=ranks, losses=[3.0 + ranks]) for ranks in (1, 2)]  # weak: a larger batch
    assert summary_of(tmp_path / "run", points).complete
