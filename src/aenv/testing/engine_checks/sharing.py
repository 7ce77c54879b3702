"""Two instances share nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

from aenv.testing import calls
from aenv.testing.engine_bench import Bench


def test_two_instances_share_no_memory(bench: Bench) -> None:
    first, second = bench.start(), bench.start()
    assert [bench.call(first, "count") for _ in range(3)] == [1, 2, 3]
    assert bench.call(second, "count") == 1


def test_two_instances_share_no_variables(bench: Bench) -> None:
    first = bench.start(bench.zoo.launch(variables={"MINE": "first"}))
    second = bench.start(bench.zoo.launch(variables={"OTHER": "second"}))
    assert bench.call(first, "shell", command="echo $MINE $OTHER") == {"code": 0, "output": "first\n"}
    assert bench.call(second, "shell", command="echo $MINE $OTHER") == {"code": 0, "output": "second\n"}


def test_two_instances_share_no_files_where_they_work(bench: Bench) -> None:
    first, second = bench.start(), bench.start()
    bench.call(first, "write_file", path="note.txt", text="first")
    assert bench.call(second, "read_file", path="note.txt") is None
    bench.call(second, "write_file", path="note.txt", text="second")
    assert bench.call(first, "read_file", path="note.txt") == "first"


def test_two_instances_share_no_temporary_files(bench: Bench) -> None:
    first, second = bench.start(), bench.start()
    for handle in (first, second):
        folder = bench.call(handle, "temporary_folder")
        path = f"{folder}/note.txt"
        assert bench.call(handle, "read_file", path=path) is None
        bench.call(handle, "write_file", path=path, text=handle.id)
    assert bench.call(first, "read_file", path=f"{bench.call(first, 'temporary_folder')}/note.txt") == first.id


def test_two_instances_share_no_file_in_slash_tmp(bench: Bench) -> None:
    first, second = bench.start(), bench.start()
    path = f"/tmp/{first.id}"  # noqa: S108 - whether this folder is private is what we ask
    bench.call(first, "write_file", path=path, text="first")
    seen = bench.call(second, "read_file", path=path)
    bench.call(first, "shell", command=f"rm {path}")
    assert seen is None


def test_an_instance_sees_no_process_of_another(bench: Bench) -> None:
    first, second = bench.start(), bench.start()
    # The pattern is written so that it does not find itself.
    mark = f"[{first.id[0]}]{first.id[1:]}"

    async def look_while_one_runs() -> object:
        async with asyncio.TaskGroup() as group:
            group.create_task(calls.call(first.address, "shell", {"command": f"sleep 2; : {first.id}"}))
            await asyncio.sleep(0.5)
            look = {"command": f"grep -l '{mark}' /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null"}
            return await calls.call(second.address, "shell", look)

    seen = cast("dict[str, object]", bench.run(look_while_one_runs()))
    assert seen["output"] == ""


def test_an_instance_sees_no_file_of_its_host(bench: Bench, tmp_path: Path) -> None:
    marker = tmp_path / "of-the-host"
    marker.write_text("private")
    assert bench.call(bench.start(), "read_file", path=str(marker)) is None


def test_an_instance_cannot_write_to_its_host(bench: Bench, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    bench.call(bench.start(), "shell", command=f"mkdir -p {tmp_path}; echo here > {tmp_path}/left")
    assert list(tmp_path.iterdir()) == []
