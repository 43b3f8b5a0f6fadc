"""One program for all five commands: scheduler.py FOLDER COMMAND ARGUMENTS... (no other packages)."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from fcntl import LOCK_EX, flock  # a test may replace fcntl's
from pathlib import Path

FIELDS = ("id", "state", "status", "node", "name", "restarts", "reason")


def call(
    folder: Path, command: str, arguments: list[str], environment: dict[str, str]
) -> tuple[str, str, int]:
    """What the command prints, also as an error, and its exit code."""
    with (folder / "lock").open("a") as lock:
        flock(lock, LOCK_EX)
        script = next((Path(a) for a in arguments if a.endswith(".sh")), None)
        made = {
            "command": command,
            "argv": arguments,
            "env": {k: v for k, v in environment.items() if not k.startswith("_")},
            "text": script.read_text() if script else None,
        }
        with (folder / "calls.jsonl").open("a") as stream:
            stream.write(json.dumps(made) + "\n")
        answer = _next_answer(folder / f"{command}.script")
    if answer is not None:
        time.sleep(answer.get("sleep", 0))
    if answer is None or answer.get("act"):
        with (folder / "lock").open("a") as lock:
            flock(lock, LOCK_EX)
            out, err, code = _act(folder / "queue.json", command, arguments, script)
    else:
        out, err, code = "", "", 0
    answer = answer or {}
    return answer.get("stdout", out), answer.get("stderr", err), int(answer.get("exit", code))


def _next_answer(file: Path) -> dict | None:
    lines = file.read_text().splitlines() if file.exists() else []
    if not lines:
        return None
    file.write_text("".join(line + "\n" for line in lines[1:]))
    return json.loads(lines[0])


def _act(file: Path, command: str, arguments: list[str], script: Path | None) -> tuple[str, str, int]:
    queue = json.loads(file.read_text()) if file.exists() else {"next": 1, "arrays": [], "jobs": {}}
    if command == "sbatch":
        text = script.read_text()
        count = int(re.search(r"--array=0-(\d+)", text)[1]) + 1
        name = re.search(r"--job-name=(\S+)", text)[1]
        number = queue["next"]
        queue["next"] += 1
        queue["arrays"].append(
            {"id": str(number), "name": name, "count": count, "folder": str(script.parent)}
        )
        file.write_text(json.dumps(queue))
        return f"{number}\n", "", 0
    if command == "squeue":
        wanted = next((a.partition("=")[2] for a in arguments if a.startswith("--name=")), None)
        ids = next((a.partition("=")[2] for a in arguments if a.startswith("--jobs=")), None)
        rows = [r for r in _jobs(queue) if wanted in (None, r["name"])]
        if ids is not None:
            rows = [r for r in rows if r["id"].partition("_")[0] in ids.split(",")]
            if not rows and "," not in ids:
                return "", "slurm_load_jobs error: Invalid job id specified\n", 1
        return "".join("|".join(str(r[f]) for f in FIELDS) + "|\n" for r in rows), "", 0
    if command == "sacct":
        return "", "Slurm accounting storage is disabled\n", 1
    if command == "scontrol" and arguments[:1] == ["show"]:
        return "ClusterName             = fake\nMaxArraySize            = 1001\n", "", 0
    if command == "scontrol" and arguments[:1] == ["release"]:
        for element in arguments[1].split(","):
            queue["jobs"].setdefault(element, {}).update(state="PENDING", reason="None")
        file.write_text(json.dumps(queue))
    if command == "scancel":
        for element in (a for a in arguments if not a.startswith("-")):
            queue["jobs"].setdefault(element, {})["state"] = "CANCELLED"
        file.write_text(json.dumps(queue))
    return "", "", 0


def _jobs(queue: dict) -> list[dict]:
    rows = []
    for array in queue["arrays"]:
        for index in range(array["count"]):
            element = f"{array['id']}_{index}"
            known = queue["jobs"].get(element, {})
            if not known.get("gone"):
                row = {
                    "id": element,
                    "state": "PENDING",
                    "restarts": 0,
                    "status": 0,
                    "node": "",
                    "reason": "None",
                    "name": array["name"],
                }
                rows.append({**row, **known})
    listed = {row["id"] for row in rows}
    rows += [  # jobs that are not ours: set by the test under ids of their own
        {"id": element, "restarts": 0, "status": 0, "node": "", "reason": "None", **known}
        for element, known in queue["jobs"].items()
        if element not in listed and "name" in known and not known.get("gone")
    ]
    return rows


if __name__ == "__main__":
    printed, complaint, exit_code = call(Path(sys.argv[1]), sys.argv[2], sys.argv[3:], dict(os.environ))
    sys.stdout.write(printed)
    sys.stderr.write(complaint)
    sys.exit(exit_code)
