"""What users of E2B's Python SDK call, against the server that E2B_API_URL names.

`sdk.py sync` and `sdk.py async` check the same things. Each check says its name; one that fails says
why, and the script ends with 1. What a version of the SDK doesn't have is not checked with it.
"""

import asyncio
import inspect
import sys
import time
import traceback
import urllib.error
import urllib.request

from e2b import (
    AsyncSandbox,
    AuthenticationException,
    CommandExitException,
    FileType,
    FilesystemEventType,
    InvalidArgumentException,
    NotFoundException,
    PtySize,
    Sandbox,
    SandboxException,
    SandboxQuery,
    SandboxState,
    TimeoutException,
)

IS_ASYNC = sys.argv[1] == "async"
SANDBOX = AsyncSandbox if IS_ASYNC else Sandbox
# What has not happened after this long does not happen, however slow the machine is.
DEADLINE_S = 60
# What one check may take, and how long its sandbox lives.
CHECK_S = 300
LIFETIME_S = 600
# A part of a command that goes on when it is told to.
WAIT = "until [ -e go ]; do sleep 0.1; done"
CHECKS = []


def check(function):
    CHECKS.append(function)
    return function


def has(function, argument):
    return argument in inspect.signature(function).parameters


async def of(value):
    """The value, however it comes."""
    return await value if inspect.isawaitable(value) else value


async def fails(kind, call):
    """The error of this kind that a call ends with."""
    try:
        result = await of(call())
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was not raised; it returned {result!r}")


async def until(what, is_true):
    deadline = time.monotonic() + DEADLINE_S
    while not await of(is_true()):
        assert time.monotonic() < deadline, f"it never became true that {what}"
        await asyncio.sleep(0.05)


def go(sbx):
    """Has a command go on that waits."""
    return sbx.files.write("go", "")


async def pieces(stream):
    """All of a stream, as bytes."""
    if hasattr(stream, "__aiter__"):
        return b"".join([piece async for piece in stream])
    return b"".join(stream)


def fetch(url, data=None, headers={}):
    request = urllib.request.Request(url, data=data, headers=headers)
    with urllib.request.urlopen(request, timeout=DEADLINE_S) as response:
        return response.read()


def http_status(url, data=None, headers={}):
    try:
        fetch(url, data, headers)
        return 200
    except urllib.error.HTTPError as error:
        return error.code


@check
async def commands_run(sbx):
    result = await of(sbx.commands.run("echo out; echo err >&2; pwd; whoami"))
    assert (result.exit_code, result.stderr) == (0, "err\n"), result
    assert result.stdout == "out\n/home/user\nuser\n", result


@check
async def a_failing_command_raises(sbx):
    error = await fails(CommandExitException, lambda: sbx.commands.run("echo so; echo why >&2; exit 7"))
    assert (error.exit_code, error.stdout, error.stderr) == (7, "so\n", "why\n"), error


@check
async def commands_get_their_environment_and_directory(sbx):
    line = "echo $FROM_SANDBOX $FROM_COMMAND $HOME; pwd"
    result = await of(sbx.commands.run(line, envs={"FROM_COMMAND": "b"}, cwd="/tmp"))
    assert result.stdout == "a b /home/user\n/tmp\n", result
    result = await of(sbx.commands.run("pwd", cwd="/usr"))
    assert result.stdout == "/usr\n", result
    await of(sbx.files.make_dir("here"))
    result = await of(sbx.commands.run("pwd", cwd="here"))
    assert result.stdout == "/home/user/here\n", result


@check
async def a_missing_directory_is_an_invalid_argument(sbx):
    for cwd in ["/home/user/nowhere", "/nowhere"]:
        error = await fails(SandboxException, lambda: sbx.commands.run("pwd", cwd=cwd))
        assert "does not exist" in str(error), error


@check
async def output_comes_as_it_is_written(sbx):
    out, err = [], []

    def on_stdout(text):
        out.append(text)
        # Without having seen the first line, nobody sees the last.
        return go(sbx) if "".join(out) == "1\n" else None

    line = f"echo 1; echo 2 >&2; {WAIT}; echo 3"
    await of(sbx.commands.run(line, on_stdout=on_stdout, on_stderr=err.append))
    assert ("".join(out), "".join(err)) == ("1\n3\n", "2\n"), (out, err)


@check
async def a_lot_of_output_comes_whole(sbx):
    result = await of(sbx.commands.run("head -c 3000000 /dev/zero | tr '\\0' 'ä'; echo end"))
    assert len(result.stdout) >= 3000000 and result.stdout.endswith("end\n"), len(result.stdout)


@check
async def a_command_that_takes_too_long_is_killed(sbx):
    started = time.monotonic()
    line = "(setsid sleep 3001 & ) ; sleep 3002"
    await fails(TimeoutException, lambda: sbx.commands.run(line, timeout=1))
    assert time.monotonic() - started < DEADLINE_S

    async def nothing_is_left():
        line = "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '"
        seen = (await of(sbx.commands.run(line))).stdout
        return "sleep 3001" not in seen and "sleep 3002" not in seen

    await until("nothing of it is left", nothing_is_left)


@check
async def commands_run_in_the_background(sbx):
    line = f"{WAIT}; echo done"
    handle = await of(sbx.commands.run(line, background=True))
    listed = await of(sbx.commands.list())
    mine = [process for process in listed if process.pid == handle.pid]
    assert len(mine) == 1 and mine[0].args[-1] == line, listed
    await of(go(sbx))
    result = await of(handle.wait())
    assert (result.exit_code, result.stdout) == (0, "done\n"), result
    assert handle.pid not in [process.pid for process in await of(sbx.commands.list())]


@check
async def background_commands_are_killed(sbx):
    handle = await of(sbx.commands.run("sleep 300", background=True))
    assert await of(handle.kill()) is True
    error = await fails(CommandExitException, lambda: handle.wait())
    assert error.exit_code != 0, error
    assert await of(sbx.commands.kill(handle.pid)) is False
    assert await of(sbx.commands.kill(999_999)) is False


@check
async def what_a_command_leaves_goes_on(sbx):
    result = await of(sbx.commands.run("(sleep 1; touch left) & echo $!", timeout=DEADLINE_S))
    assert result.stdout.strip().isdigit(), result
    await until("what was left behind has done its work", lambda: sbx.files.exists("left"))


@check
async def commands_are_connected_to(sbx):
    handle = await of(sbx.commands.run(f"{WAIT}; echo late; exit 4", background=True))
    await of(handle.disconnect())
    again = await of(sbx.commands.connect(handle.pid))
    assert again.pid == handle.pid
    await of(go(sbx))
    error = await fails(CommandExitException, lambda: again.wait())
    assert (error.exit_code, error.stdout) == (4, "late\n"), error
    ended = await of(sbx.commands.connect(handle.pid))
    error = await fails(CommandExitException, lambda: ended.wait())
    assert error.exit_code == 4, error
    await fails(NotFoundException, lambda: sbx.commands.connect(999_999))


@check
async def commands_read_their_input(sbx):
    options = {"stdin": True} if has(sbx.commands.run, "stdin") else {}
    handle = await of(sbx.commands.run("read line; echo got $line", background=True, **options))
    await of(sbx.commands.send_stdin(handle.pid, "thïs\n"))
    result = await of(handle.wait())
    assert result.stdout == "got thïs\n", result
    result = await of(sbx.commands.run("cat; echo end"))
    assert result.stdout == "end\n", result
    if hasattr(sbx.commands, "close_stdin"):
        handle = await of(sbx.commands.run("wc -c", background=True, stdin=True))
        await of(sbx.commands.send_stdin(handle.pid, "12345"))
        await of(sbx.commands.close_stdin(handle.pid))
        assert (await of(handle.wait())).stdout.strip() == "5"
        handle = await of(sbx.commands.run("sleep 300", background=True, stdin=False))
        await fails(SandboxException, lambda: sbx.commands.send_stdin(handle.pid, "x"))
        await of(handle.kill())


@check
async def input_is_streamed(sbx):
    if not hasattr(sbx.commands, "stream_input"):
        return
    handle = await of(sbx.commands.run("wc -c", background=True, stdin=True))
    if IS_ASYNC:
        async with await of(sbx.commands.stream_input(handle.pid)) as stream:
            for _ in range(50):
                await stream.send(b"x" * 1000)
    else:
        sbx.commands.stream_input(handle.pid, [b"x" * 1000] * 50)
    await of(sbx.commands.close_stdin(handle.pid))
    assert (await of(handle.wait())).stdout.strip() == "50000"


@check
async def another_user_is_refused(sbx):
    error = await fails(AuthenticationException, lambda: sbx.commands.run("whoami", user="root"))
    assert "root" in str(error), error
    result = await of(sbx.commands.run("whoami", user="user"))
    assert result.stdout == "user\n", result
    await fails(AuthenticationException, lambda: sbx.files.write("by-root", "x", user="root"))


@check
async def a_terminal_works(sbx):
    output = []
    if IS_ASYNC:
        terminal = await sbx.pty.create(PtySize(24, 80), on_data=output.append)
    else:
        terminal = sbx.pty.create(PtySize(24, 80))
    await of(sbx.pty.send_stdin(terminal.pid, b"stty size; echo $TERM; touch asked\n"))
    await until("the terminal has said its size", lambda: sbx.files.exists("asked"))
    await of(sbx.pty.resize(terminal.pid, PtySize(40, 120)))
    await of(sbx.pty.send_stdin(terminal.pid, b"stty size; exit 5\n"))
    if IS_ASYNC:
        error = await fails(CommandExitException, lambda: terminal.wait())
    else:
        error = await fails(CommandExitException, lambda: terminal.wait(on_pty=output.append))
    text = b"".join(bytes(piece) for piece in output).decode()
    assert error.exit_code == 5, error
    assert "24 80" in text and "40 120" in text and "xterm-256color" in text, text


@check
async def terminals_are_killed(sbx):
    if IS_ASYNC:
        terminal = await sbx.pty.create(PtySize(24, 80), on_data=lambda _: None)
    else:
        terminal = sbx.pty.create(PtySize(24, 80))
    if hasattr(sbx.pty, "connect") and not IS_ASYNC:
        assert sbx.pty.connect(terminal.pid).pid == terminal.pid
    assert await of(sbx.pty.kill(terminal.pid)) is True
    assert await of(sbx.pty.kill(terminal.pid)) is False


@check
async def files_are_written_and_read(sbx):
    info = await of(sbx.files.write("a/b/text.txt", "grüße\n"))
    assert (info.name, info.path) == ("text.txt", "/home/user/a/b/text.txt"), info
    assert await of(sbx.files.read("a/b/text.txt")) == "grüße\n"
    assert await of(sbx.files.read("/home/user/a/b/text.txt")) == "grüße\n"
    await of(sbx.files.write("a/b/text.txt", "short"))
    assert await of(sbx.files.read("a/b/text.txt")) == "short"
    every = bytes(range(256)) * 5000
    await of(sbx.files.write("/tmp/bytes", every))
    assert bytes(await of(sbx.files.read("/tmp/bytes", format="bytes"))) == every
    streamed = await of(sbx.files.read("/tmp/bytes", format="stream"))
    assert await pieces(streamed) == every
    await of(sbx.files.write("empty", ""))
    assert await of(sbx.files.read("empty")) == ""
    name = "spaces and \"quotes\" % & ünï.txt"
    await of(sbx.files.write(name, "x"))
    assert await of(sbx.files.read(name)) == "x"
    with open("/dev/null", "rb") as nothing:
        await of(sbx.files.write("from-file", nothing))
    # What is the system's can be read too.
    assert "/bin/bash" in await of(sbx.files.read("/etc/shells"))


@check
async def several_files_are_written_at_once(sbx):
    files = [{"path": f"many/{n}.txt", "data": str(n)} for n in range(5)]
    infos = await of(sbx.files.write_files(files))
    assert [info.path for info in infos] == [f"/home/user/many/{n}.txt" for n in range(5)], infos
    assert await of(sbx.files.read("many/3.txt")) == "3"


@check
async def files_go_compressed_and_with_metadata(sbx):
    if not has(sbx.files.write, "gzip"):
        return
    text = "compress me " * 10000
    await of(sbx.files.write("zipped", text, gzip=True))
    assert await of(sbx.files.read("zipped")) == text
    assert await of(sbx.files.read("zipped", gzip=True)) == text
    result = await of(sbx.commands.run("head -c 12 zipped"))
    assert result.stdout == "compress me ", result
    if has(sbx.files.write, "use_octet_stream"):
        await of(sbx.files.write("octets", text, use_octet_stream=True))
        assert await of(sbx.files.read("octets")) == text
    info = await of(sbx.files.write("tagged", "x", metadata={"author": "me"}))
    assert info.metadata == {"author": "me"}, info
    assert (await of(sbx.files.get_info("tagged"))).metadata == {"author": "me"}


@check
async def missing_files_are_not_found(sbx):
    await fails(NotFoundException, lambda: sbx.files.read("nowhere"))
    await fails(NotFoundException, lambda: sbx.files.get_info("nowhere"))
    await fails(NotFoundException, lambda: sbx.files.list("nowhere"))
    await fails(NotFoundException, lambda: sbx.files.rename("nowhere", "elsewhere"))
    assert await of(sbx.files.exists("nowhere")) is False
    await of(sbx.files.make_dir("directory"))
    await fails(SandboxException, lambda: sbx.files.read("directory"))


@check
async def files_are_looked_at(sbx):
    await of(sbx.commands.run("mkdir -p look; echo 123456 > look/at; chmod 750 look/at; ln -s at look/link"))
    info = await of(sbx.files.get_info("look/at"))
    assert (info.name, info.type, info.path) == ("at", FileType.FILE, "/home/user/look/at"), info
    assert (info.size, info.mode, info.permissions) == (7, 0o750, "-rwxr-x---"), info
    assert info.owner == "user", info
    age = time.time() - info.modified_time.timestamp()
    if info.modified_time.tzinfo is not None:
        assert -5 < age < CHECK_S, age
    link = await of(sbx.files.get_info("look/link"))
    assert link.symlink_target == "/home/user/look/at", link
    assert (await of(sbx.files.get_info("look"))).type == FileType.DIR
    assert await of(sbx.files.exists("look/at")) is True
    assert await of(sbx.files.exists("/usr/bin")) is True


@check
async def directories_are_made_and_listed(sbx):
    assert await of(sbx.files.make_dir("tree/one/two")) is True
    assert await of(sbx.files.make_dir("tree/one")) is False
    await of(sbx.files.write("tree/b", "b"))
    await of(sbx.files.write("tree/one/c", "c"))
    listed = await of(sbx.files.list("tree"))
    assert sorted(entry.name for entry in listed) == ["b", "one"], listed
    kinds = {entry.name: entry.type for entry in listed}
    assert kinds == {"b": FileType.FILE, "one": FileType.DIR}, kinds
    listed = await of(sbx.files.list("tree", depth=2))
    paths = sorted(entry.path for entry in listed)
    below = "/home/user/tree/"
    assert paths == [below + name for name in ("b", "one", "one/c", "one/two")], paths
    await fails(SandboxException, lambda: sbx.files.list("tree/b"))
    await fails(InvalidArgumentException, lambda: sbx.files.list("tree", depth=0))


@check
async def files_are_moved_and_removed(sbx):
    await of(sbx.files.write("old", "x"))
    info = await of(sbx.files.rename("old", "moved/new"))
    assert info.path == "/home/user/moved/new", info
    assert await of(sbx.files.exists("old")) is False
    assert await of(sbx.files.read("moved/new")) == "x"
    await of(sbx.files.remove("moved"))
    assert await of(sbx.files.exists("moved")) is False
    await of(sbx.files.remove("moved"))


@check
async def directories_are_watched(sbx):
    for recursive in (False, True):
        top = f"watched-{recursive}"
        await of(sbx.files.make_dir(f"{top}/below"))
        await of(sbx.files.write(f"{top}/old", "1"))
        seen = []
        if IS_ASYNC:
            handle = await sbx.files.watch_dir(top, on_event=seen.append, recursive=recursive)
        else:
            handle = sbx.files.watch_dir(top, recursive=recursive)

        def told():
            if not IS_ASYNC:
                seen.extend(handle.get_new_events())
            return {(event.name, event.type) for event in seen}

        await of(sbx.files.write(f"{top}/old", "22"))
        await of(sbx.files.write(f"{top}/new", "x"))
        await of(sbx.files.write(f"{top}/below/deep", "x"))
        kinds = FilesystemEventType
        expected = {("old", kinds.WRITE), ("new", kinds.CREATE), ("new", kinds.WRITE)}
        if recursive:
            expected.add(("below/deep", kinds.CREATE))
        await until(f"{expected} is told", lambda: expected <= told())
        assert recursive or not any(event.name.startswith("below/") for event in seen), seen
        await of(sbx.commands.run(f"chmod 700 {top}/new; mv {top}/old {top}/other"))
        expected = {("new", kinds.CHMOD), ("old", kinds.RENAME), ("other", kinds.CREATE)}
        await until(f"{expected} is told", lambda: expected <= told())
        await of(sbx.files.remove(f"{top}/other"))
        await until("the removal is told", lambda: ("other", kinds.REMOVE) in told())
        await of(handle.stop())
    await fails(NotFoundException, lambda: watch(sbx, "nowhere"))


def watch(sbx, path):
    return sbx.files.watch_dir(path, on_event=print) if IS_ASYNC else sbx.files.watch_dir(path)


@check
async def signed_addresses_work(sbx):
    await of(sbx.files.write("signed", "by address"))
    url = sbx.download_url("signed")
    assert fetch(url) == b"by address"
    url = sbx.download_url("signed", use_signature_expiration=CHECK_S)
    assert fetch(url) == b"by address"
    assert http_status(sbx.download_url("signed", use_signature_expiration=-10)) == 401
    assert http_status(url.replace("signed", "other")) == 401
    boundary = b"b"
    form = (b'--b\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\nup\r\n--b--\r\n')
    url = sbx.upload_url("uploaded")
    fetch(url, form, {"Content-Type": "multipart/form-data; boundary=" + boundary.decode()})
    assert await of(sbx.files.read("uploaded")) == "up"


@check
async def its_info_says_what_was_asked_for(sbx):
    info = await of(sbx.get_info())
    assert info.sandbox_id == sbx.sandbox_id and info.template_id == "base", info
    assert info.metadata == {"who": "a b&c=d"} and info.state == SandboxState.RUNNING, info
    lifetime = (info.end_at - info.started_at).total_seconds()
    assert LIFETIME_S - 1 < lifetime < LIFETIME_S + DEADLINE_S, info
    other = await of(SANDBOX.get_info(sbx.sandbox_id))
    assert other.sandbox_id == sbx.sandbox_id


@check
async def it_is_listed(sbx):
    async def listed(**options):
        pages = SANDBOX.list(**options)
        found = []
        while pages.has_next:
            found += [info.sandbox_id for info in await of(pages.next_items())]
        return found

    assert sbx.sandbox_id in await listed()
    query = SandboxQuery(metadata={"who": "a b&c=d"})
    assert sbx.sandbox_id in await listed(query=query)
    assert await listed(query=SandboxQuery(metadata={"who": "else"})) == []
    running = SandboxQuery(state=[SandboxState.RUNNING])
    assert sbx.sandbox_id in await listed(query=running)
    others = [await of(SANDBOX.create(timeout=LIFETIME_S)) for _ in range(3)]
    paged = await listed(limit=2)
    assert {other.sandbox_id for other in others} <= set(paged) and len(paged) == len(set(paged)), paged
    for other in others:
        assert await of(other.kill()) is True


@check
async def its_end_is_set(sbx):
    await of(sbx.set_timeout(120))
    left = (await of(sbx.get_info())).end_at.timestamp() - time.time()
    assert 120 - DEADLINE_S < left <= 121, left
    other = await of(SANDBOX.create(timeout=LIFETIME_S))
    assert await of(other.is_running()) is True
    await of(other.set_timeout(1))
    async def is_over():
        return not await of(other.is_running())
    await until("its time is over", is_over)
    assert await of(other.kill()) is False


@check
async def it_is_connected_to(sbx):
    again = await of(SANDBOX.connect(sbx.sandbox_id))
    await of(sbx.files.write("shared", "x"))
    assert await of(again.files.read("shared")) == "x"
    await fails(NotFoundException, lambda: SANDBOX.connect("inothing0000000000000"))


@check
async def it_is_paused_and_resumed(sbx):
    other = await of(SANDBOX.create(timeout=LIFETIME_S, envs={"KEPT": "yes"}))
    await of(other.files.write("kept", "still here"))
    pause = other.pause if hasattr(other, "pause") else other.beta_pause
    await of(pause())
    assert await of(other.is_running()) is False
    info = await of(SANDBOX.get_info(other.sandbox_id))
    assert info.state == SandboxState.PAUSED, info
    resumed = await of(SANDBOX.connect(other.sandbox_id, timeout=LIFETIME_S))
    assert resumed.sandbox_id == other.sandbox_id
    assert await of(resumed.files.read("kept")) == "still here"
    result = await of(resumed.commands.run("cat kept; echo $KEPT"))
    assert result.stdout == "still hereyes\n", result
    assert await of(resumed.kill()) is True
    await fails(NotFoundException, lambda: SANDBOX.connect(other.sandbox_id))


@check
async def it_is_measured(sbx):
    metrics = await of(sbx.get_metrics())
    assert len(metrics) >= 1, metrics
    assert metrics[0].cpu_count >= 1 and metrics[0].mem_total > 0 and metrics[0].disk_total > 0, metrics


@check
async def nothing_of_a_killed_one_runs(sbx):
    other = await of(SANDBOX.create(timeout=LIFETIME_S))
    handle = await of(other.commands.run("sleep 300", background=True))
    assert await of(SANDBOX.kill(other.sandbox_id)) is True
    error = await fails(Exception, lambda: handle.wait())
    assert not isinstance(error, CommandExitException), error
    assert await of(other.is_running()) is False
    await fails((TimeoutException, SandboxException), lambda: other.commands.run("true"))
    await fails((TimeoutException, SandboxException), lambda: other.files.read("x"))
    assert await of(SANDBOX.kill(other.sandbox_id)) is False


@check
async def what_cannot_be_kept_is_refused(sbx):
    await fails(SandboxException, lambda: SANDBOX.create("no-such-template"))
    rules = {"allow_out": ["example.com"], "deny_out": ["0.0.0.0/0"]}
    await fails(SandboxException, lambda: SANDBOX.create(network=rules))


@check
async def other_ports_are_closed(sbx):
    import os

    headers = {"E2b-Sandbox-Id": sbx.sandbox_id, "E2b-Sandbox-Port": "8000"}
    assert http_status(os.environ["E2B_SANDBOX_URL"] + "/", headers=headers) == 502


async def main():
    failed = 0
    for function in CHECKS:
        name = function.__name__
        started = time.monotonic()
        sbx = None
        try:
            metadata, envs = {"who": "a b&c=d"}, {"FROM_SANDBOX": "a"}
            sbx = await of(SANDBOX.create(timeout=LIFETIME_S, metadata=metadata, envs=envs))
            await asyncio.wait_for(function(sbx), CHECK_S)
            print(f"ok {name} ({time.monotonic() - started:.1f} s)", flush=True)
        except Exception:
            failed += 1
            print(f"FAILED {name}\n{traceback.format_exc()}", flush=True)
        finally:
            if sbx is not None:
                await of(sbx.kill())
    print(f"{len(CHECKS) - failed} of {len(CHECKS)} good, SDK {sys.argv[1]}", flush=True)
    sys.exit(1 if failed else 0)


asyncio.run(main())
