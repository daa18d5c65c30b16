#!/usr/bin/env python3
"""Runs the example skills by hand, as the executor would: an empty environment but for what the manifest allows."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

SKILLS = pathlib.Path("deploy/local/skills").resolve()


def run(skill, arguments):
    """The exit code, the result (None if there is none) and stderr."""
    directory = SKILLS / skill
    manifest = json.loads((directory / "skill.json").read_text())
    environment = {name: os.environ[name] for name in manifest["env_allow"] if name in os.environ}
    done = subprocess.run(
        [directory / manifest["entry"]], input=json.dumps(arguments).encode(), capture_output=True, cwd=directory,
        env=environment, timeout=60, check=False,
    )
    return done.returncode, json.loads(done.stdout) if done.returncode == 0 else None, done.stderr.decode()


def log_summary():
    code, result, stderr = run("log_summary", {"path": "sample.log"})
    assert code == 0 and result["lines"] == 630 and result["levels"]["fatal"] == 1, result
    assert result["top"][0]["message"].startswith("slow query"), result
    steps = [json.loads(line.removeprefix("::progress ")) for line in stderr.splitlines()]
    assert steps[-1]["progress"] == steps[-1]["total"] == result["bytes"] and len(steps) > 10, steps
    text = '2026-01-01T00:00:00Z [error] é 😀 "q" 12\r\n{"level":"warn","msg":"say \\"hi\\""}\nERROR x\n' + "INFO y\n" * 100
    result = run("log_summary", {"text": text, "top": 2})[1]
    assert (result["lines"], result["levels"]["error"], result["levels"]["info"]) == (103, 2, 100), result
    assert [top["message"] for top in result["top"]] == ['é 😀 "q" 12', 'say "hi"'], result
    with tempfile.TemporaryDirectory() as directory:
        odd = pathlib.Path(directory, "it's a $(log) = 1")
        odd.write_bytes(b"ERROR \xff\xfe \xed\xa0\x80 \xf0\x9f\x98\x80 " + bytes(range(1, 256)))
        assert run("log_summary", {"path": str(odd)})[1]["lines"] == 2
        for bad in ({"path": directory}, {"path": directory + "/none"}, {"path": "/dev/null"}, {}):
            assert run("log_summary", bad)[0] == 1, bad


def disk_cleaner():
    with tempfile.TemporaryDirectory() as directory:
        root = pathlib.Path(directory, "exports")
        outside = pathlib.Path(directory, "outside")
        old = [root / "a.csv", root / "deep/b.csv", root / "deep/c.log"]
        kept = [root / "new.csv", root / "code/.git/d.csv", root / "code/d.csv", outside / "e.csv"]
        for file in old + kept:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(b"x" * 1000)
            if file.name != "new.csv":
                os.utime(file, (0, 86400 * 365 * 40))
        (root / "link").symlink_to(outside)
        (root / "link.csv").symlink_to(outside / "e.csv")
        arguments = {"directory": str(root), "older_than_days": 30}
        for dry in (arguments, {**arguments, "dry_run": True}):
            code, result, _ = run("disk_cleaner", dry)
            assert code == 0 and result["dry_run"], result
            assert (result["found"], result["deleted"]) == ({"files": 3, "bytes": 3000}, {"files": 0, "bytes": 0}), result
            assert all(file.exists() for file in old)
        result = run("disk_cleaner", {**arguments, "pattern": "*.csv", "max_files": 1, "dry_run": False})[1]
        assert result["deleted"] == {"files": 1, "bytes": 1000} and result["more_than_max_files"], result
        result = run("disk_cleaner", {**arguments, "dry_run": False})[1]
        assert result["deleted"]["files"] == 2 and not result["skipped"], result
        assert not any(file.exists() for file in old) and all(file.exists() for file in kept)
        assert (root / "link.csv").is_symlink()
        for refused in ("/", "/usr", "/usr/share/doc", "/etc", "/var", "/home", "/tmp", "relative", str(root / "code")):
            assert run("disk_cleaner", {**arguments, "directory": refused, "dry_run": False})[0] == 1, refused


def certificate_check():
    code, result, _ = run("certificate_check", {"paths": ["samples"]})
    certificate = result["certificates"][0]
    assert code == 0 and result["summary"]["ok"] == 1 and not result["unreadable"], result
    assert (certificate["not_before"], certificate["not_after"]) == ("2020-01-01T00:00:00Z", "2120-01-01T00:00:00Z")
    assert certificate["names"] == ["long-lived.example", "*.long-lived.example", "192.0.2.1", "2001:db8::1"]
    sample = (SKILLS / "certificate_check/samples/long-lived.pem").read_text()
    with tempfile.TemporaryDirectory() as directory:
        pathlib.Path(directory, "bundle.pem").write_text(sample + "notes\n" + sample)
        pathlib.Path(directory, "broken.crt").write_text(sample.replace("MIIB", "MIIC", 1))
        pathlib.Path(directory, "empty.pem").write_text("")
        result = run("certificate_check", {"paths": [directory, "/none"], "warn_days": 3650})[1]
        assert len(result["certificates"]) == 2 and len(result["unreadable"]) == 3, result


for check in (log_summary, disk_cleaner, certificate_check):
    check()
    print("ok:", check.__name__)
stray = [str(path) for path in SKILLS.rglob("__pycache__")]
sys.exit(f"a skill writes into its package: {stray}" if stray else 0)
