"""What the driver does with a port that breaks the protocol, dies or hangs."""

import time
from pathlib import Path

import pytest
from fakes import fake_port

from conformance.ports import Port
from conformance.session import PortCrash, PortGivenUp, PortTimeout, Session, StrayOutput, Timeouts

QUICK = Timeouts(start=20, run=1, stop=2)
HONEST = """
for request in requests():
    say(ok(request))
"""


def open_session(folder: Path, body: str, **options: object) -> Session:
    return Session(fake_port(folder, body), timeouts=QUICK, **options)  # type: ignore[arg-type]


def gone(pid: int) -> bool:
    """Whether no process of that id runs; one that waits for its parent's wait() is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_an_honest_port_is_asked_and_stopped(tmp_path: Path) -> None:
    with open_session(tmp_path, HONEST) as session:
        claims = session.start()
        assert claims.ops["softmax"].variants == ["naive"]
        assert session.run({"case": "a"})["seq"] == 1
        assert session.run({"case": "b"})["seq"] == 2
        session.stop()
        assert session.pid is None
        assert session.restarts == 0


def test_the_thread_budget_and_the_ports_own_environment_reach_the_process(tmp_path: Path) -> None:
    body = """
    for request in requests():
        say({**ok(request), "env": [os.environ["JULIA_NUM_THREADS"], os.environ["MINE"]]})
    """
    port = fake_port(tmp_path, body, env={"MINE": "yes"})
    with Session(port, threads=2, timeouts=QUICK) as session:
        assert session.run({})["env"] == ["2", "yes"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("print('loading the model', flush=True)", "'loading the model'"),
        ("say({'status': 'ok', 'seq': request['seq'] + 1})", "got seq 2"),
        ("say({'status': 'ok'})", "without seq"),
        ("say({'status': 'fine', 'seq': request['seq']})", "'fine'"),
        ("say('[1, 2]\\n')", "JSON object"),
        ('say(\'{"seq": 1, "status": "ok", "share": NaN}\\n\')', "NaN"),
        ('say(\'{"seq": 1, "sta\'); os._exit(0)', 'in the middle of a line: \'{"seq": 1, "sta\''),
        ("os._exit(3)", "exit status 3"),
        ("os.kill(os.getpid(), 11)", "SIGSEGV"),
        ("say(json.dumps(ok(request)) + '\\nextra\\n')", "followed by 'extra'"),
        ("os.write(1, b'\\xff\\xfe\\n')", "\\\\xff"),
    ],
)
def test_a_broken_answer_is_a_crash_that_says_what_came(tmp_path: Path, body: str, message: str) -> None:
    script = f"""
for request in requests():
    print("a word on stderr", file=sys.stderr, flush=True)
    {body}
"""
    with open_session(tmp_path, script) as session:
        with pytest.raises(PortCrash) as caught:
            session.run({"case": "a"})
        assert message in str(caught.value)
        assert "stderr: a word on stderr" in str(caught.value)


def test_a_repeated_answer_is_named_as_such(tmp_path: Path) -> None:
    body = """
    for request in requests():
        say({"status": "ok", "seq": 1})
    """
    with open_session(tmp_path, body) as session:
        session.run({})
        with pytest.raises(PortCrash, match="expected the answer to seq 2, got seq 1 again"):
            session.run({})


def test_output_that_comes_late_is_the_fault_of_the_request_before(tmp_path: Path) -> None:
    body = """
    for request in requests():
        say(ok(request)); time.sleep(0.1); say("late\\n")
    """
    with open_session(tmp_path, body) as session:
        session.run({})
        time.sleep(0.4)
        with pytest.raises(StrayOutput, match="answer to seq 1 was followed by 'late'"):
            session.run({})


def test_a_hang_is_a_timeout_and_leaves_no_process(tmp_path: Path) -> None:
    body = """
    import subprocess
    for request in requests():
        child = subprocess.Popen(["sleep", "60"])
        print(child.pid, file=sys.stderr, flush=True)
        time.sleep(60)
    """
    with open_session(tmp_path, body) as session:
        session.start()
        port = session.pid
        assert port is not None
        with pytest.raises(PortTimeout, match="no answer within 1 s: nothing came") as caught:
            session.run({})
        child = int(str(caught.value).split("stderr: ")[1])
        time.sleep(0.1)
        assert gone(port)
        assert gone(child)


def test_a_port_is_started_again_and_the_start_replayed(tmp_path: Path) -> None:
    body = """
    for request in requests():
        if request["case"] == "bad":
            os._exit(1)
        say(ok(request))
    """
    with open_session(tmp_path, body) as session:
        session.run({"case": "good"})
        with pytest.raises(PortCrash):
            session.run({"case": "bad"})
        assert session.run({"case": "good"})["status"] == "ok"
        assert session.restarts == 1


def test_a_port_that_always_dies_is_given_up(tmp_path: Path) -> None:
    with open_session(tmp_path, "for request in requests(): os._exit(1)", max_restarts=2) as session:
        for _ in range(3):
            with pytest.raises(PortCrash, match="exit status 1"):
                session.run({})
        for _ in range(2):
            with pytest.raises(PortGivenUp, match="given up after 2 restarts"):
                session.run({})


def test_a_flood_on_stderr_does_not_block(tmp_path: Path) -> None:
    body = """
    for request in requests():
        for _ in range(100):
            print("x" * 10_000, file=sys.stderr)
        print("the end", file=sys.stderr, flush=True)
        say(ok(request))
        os._exit(1) if request["case"] == "last" else None
    """
    with open_session(tmp_path, body) as session:
        session.run({"case": "a"})
        session.run({"case": "last"})
        with pytest.raises(PortCrash) as caught:
            session.run({"case": "b"})
        assert str(caught.value).endswith("the end")
        assert len(str(caught.value)) < 200_000


def test_a_port_that_does_not_read_its_input_is_a_timeout(tmp_path: Path) -> None:
    with open_session(tmp_path, "input(); say(START); time.sleep(60)") as session:
        session.start()
        began = time.monotonic()
        with pytest.raises(PortTimeout, match="does not read its input"):
            session.run({"config": "x" * 1_000_000})
        assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("start", "message"),
    [
        ({"status": "error", "code": "internal"}, "expected status ok as the answer to start"),
        ({"status": "ok", "protocol": 2, "name": "x", "ops": {}}, "expected protocol 1, got 2"),
        ({"status": "ok", "protocol": 1, "name": "x"}, "missing required field `ops`"),
        (
            {
                "status": "ok",
                "protocol": 1,
                "name": "x",
                "ops": {"sdpa": {"variants": [], "dtypes": ["f32"]}},
            },
            "claims sdpa without a variant",
        ),
    ],
)
def test_a_bad_answer_to_start_ends_the_port(tmp_path: Path, start: dict[str, object], message: str) -> None:
    with open_session(tmp_path, f"START.clear(); START.update({start!r})\n" + HONEST.strip()) as session:
        with pytest.raises(PortGivenUp, match=message):
            session.start()
        with pytest.raises(PortGivenUp, match="could not be started"):
            session.run({})


def test_a_command_that_does_not_exist_is_named(tmp_path: Path) -> None:
    port = Port(name="none", language="None", kind="port", command=[".tools/no/such/command"])
    with (
        Session(port, root=tmp_path) as session,
        pytest.raises(PortGivenUp, match=r"\.tools/no/such/command: No"),
    ):
        session.start()


def test_a_port_that_stays_after_stop_is_a_timeout(tmp_path: Path) -> None:
    port = fake_port(tmp_path, "list(requests()); time.sleep(60)")
    with Session(port, timeouts=Timeouts(start=20, run=1, stop=0.5)) as session:
        session.start()
        pid = session.pid
        assert pid is not None
        with pytest.raises(PortTimeout, match="still running"):
            session.stop()
        assert gone(pid)


def test_a_child_that_holds_stdout_open_does_not_hide_the_death(tmp_path: Path) -> None:
    body = """
    import subprocess
    for request in requests():
        subprocess.Popen(["sleep", "30"])
        os._exit(5)
    """
    with Session(fake_port(tmp_path, body), timeouts=Timeouts(start=20, run=20)) as session:
        session.start()
        with pytest.raises(PortCrash, match="exit status 5"):
            session.run({})
