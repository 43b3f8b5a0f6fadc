from __future__ import annotations

from pathlib import Path

from ablations.view.logs import follow, read


def test_all_logs_of_a_run_are_read_the_trainers_first(tmp_path: Path) -> None:
    assert "no log yet" in next(read(tmp_path))
    (tmp_path / "submitit").mkdir()
    (tmp_path / "submitit" / "1_0.log").write_bytes(b"srun: error\xff\n")
    (tmp_path / "train.log").write_text("epoch 1\n")
    texts = list(read(tmp_path))
    assert texts[0].endswith("train.log")
    assert texts[1:] == ["epoch 1", f"==> {tmp_path / 'submitit' / '1_0.log'}", "srun: error\ufffd"]


def test_following_shows_every_line_once_and_stops_with_the_run(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("one\ntw")
    steps = iter(["o\nthree\n", "last without end"])

    def sleep(_: float) -> None:
        text = next(steps)
        with log.open("a") as stream:
            stream.write(text)
        if "last" in text:
            (tmp_path / "result.json").write_text("{}")

    assert list(follow(tmp_path, sleep=sleep)) == ["one", "two", "three", "last without end"]
