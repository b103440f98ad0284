# The parent process of a kernel. It continues kernel.py, and uses its imports and functions.


def parse_int(digits):
    # What is larger has no JSON number that readers agree on.
    return int(digits) if len(digits) < 20 else digits


def has(fields, **types):
    return isinstance(fields, dict) and all(isinstance(fields.get(name), type) for name, type in types.items())


# The frames of a child, and the shapes that they must have.
FRAMES = {
    "result": lambda it: has(it, main=bool, data=dict) and all(
        name in STRUCTURED or name in TEXTUAL and isinstance(part, str) for name, part in it["data"].items()
    ),
    "refused": lambda it: has(it, reason=str),
    "done": lambda it: it.get("error") is None or has(it["error"], name=str, value=str, traceback=str),
}


class Spill:
    """Writes a stream that is too long for its reader to a file."""

    def __init__(self, path):
        self.path, self.file, self.size, self.head, self.is_off = path, None, 0, [], path is None

    def write(self, data):
        if self.is_off or self.size >= MAX_SPILL:
            return
        self.size += len(data)
        try:
            if self.file is None:
                self.head.append(data)
                if self.size <= SPILL_AFTER:
                    return
                os.makedirs(os.path.dirname(self.path), exist_ok=True)
                self.file = open(self.path, "wb", buffering=0)
                data, self.head = b"".join(self.head), []
            write_all(self.file.fileno(), data)
        except OSError:
            # A directory or a disk that takes no files. One that was begun keeps what it has.
            self.is_off, self.head = True, []


class Parent:
    def __init__(self):
        self.pid = self.id = None
        self.is_started = self.is_interrupted = False
        self.stdin = b""
        self.spills = {}

    def start(self):
        requests, output, errors, frames = os.pipe(), os.pipe(), os.pipe(), os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.setpgid(0, 0)
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                null = os.open(os.devnull, os.O_RDONLY)
                for source, target in ((null, 0), (output[1], 1), (errors[1], 2)):
                    os.dup2(source, target)
                for fd in (null, requests[1], output[0], output[1], errors[0], errors[1], frames[0]):
                    os.close(fd)
                Child(requests[0], frames[1]).serve()
            except BaseException:
                traceback.print_exc()
            finally:
                os.kill(os.getpid(), signal.SIGKILL)
        try:
            os.setpgid(self.pid, self.pid)
        except OSError:
            pass
        for fd in (requests[0], output[1], errors[1], frames[1]):
            os.close(fd)
        self.requests, self.frames = requests[1], frames[0]
        self.streams = {output[0]: "stdout", errors[0]: "stderr"}
        self.pending, self.oversized = b"", False

    def stop(self):
        for fd in (self.requests, self.frames, *self.streams):
            os.close(fd)
        self.pid = None

    def emit(self, **fields):
        write_all(1, frame(**fields))

    def serve(self):
        self.start()
        self.emit(type="ready")
        while True:
            fds = [0]
            if self.pid is not None:
                fds += [self.frames, *self.streams]
            # A death is noticed by the end of the pipe, which a grandchild may hold open.
            ready, _, _ = select.select(fds, [], [], 0.05 if self.id is not None else None)
            # Output first: it was written before the frame that ends the call.
            for fd in ready:
                if self.pid is not None and fd in self.streams:
                    self.forward(fd)
            if self.pid is not None and self.frames in ready:
                self.take_frames()
            if self.pid is not None:
                self.check()
            if 0 in ready:
                self.take_requests()

    def forward(self, fd):
        data = os.read(fd, 65536)
        if not data:
            os.close(fd)
            del self.streams[fd]
        elif self.id is not None:
            self.spills[self.streams[fd]].write(data)
            self.emit(type="output", id=self.id, channel=self.streams[fd], data=base64.b64encode(data).decode())
        return len(data)

    def drain(self):
        # A pipe holds 64 KiB; what writes on in the background is not waited for.
        for fd in list(self.streams):
            for _ in range(20):
                if fd not in self.streams or not select.select([fd], [], [], 0)[0] or not self.forward(fd):
                    break

    def take_frames(self):
        data = os.read(self.frames, 1 << 20)
        if not data:
            # Without this channel no call can end. A child that closed it and lives is stopped.
            self.kill(signal.SIGKILL)
        lines = (self.pending + data).split(b"\n")
        self.pending = lines.pop()
        for line in lines:
            if self.oversized:
                self.oversized = False
                continue
            self.take_frame(line)
        if len(self.pending) > MAX_FRAME:
            self.pending, self.oversized = b"", True
        return len(data)

    def end(self, last):
        for channel, spill in self.spills.items():
            if spill.file is not None:
                size = spill.file.tell()
                spill.file.close()
                if size > 0:
                    self.emit(type="spilled", id=self.id, channel=channel, size=size)
        self.id, self.spills = None, {}
        write_all(1, last)

    def kill(self, number):
        try:
            os.killpg(self.pid, number)
        except OSError:
            pass

    def kill_others(self):
        # What the code started and what goes on after SIGINT, such as a fork bomb. All of a group at once: what a scan of
        # the processes finds has forked meanwhile.
        try:
            os.setpgid(self.pid, os.getpgrp())
            os.killpg(self.pid, signal.SIGKILL)
        except OSError:
            pass  # There are none.
        try:
            os.setpgid(self.pid, self.pid)
        except OSError:
            pass

    def take_frame(self, line):
        # The code can write here, too: what is no frame of this call is ignored.
        try:
            fields = json.loads(line, parse_constant=lambda _: None, parse_int=parse_int)
        except (ValueError, RecursionError):
            return
        if self.id is None or not isinstance(fields, dict) or fields.get("id") != self.id:
            return
        kind = fields.get("type")
        if kind == "started":
            self.is_started = True
            if self.is_interrupted:
                self.kill(signal.SIGINT)
        elif isinstance(kind, str) and kind in FRAMES and FRAMES[kind](fields):
            if kind == "done":
                # An unreadable value of another field would hide the end of the call from the host.
                error = fields.get("error")
                error = error and {name: error[name] for name in ("name", "value", "traceback")}
                fields = {"type": kind, "error": error}
            # True and 1.0 equal 1, and are no ids for the host.
            fields["id"] = self.id
            try:
                data = frame(**fields)
            except RecursionError:
                return
            if kind == "done" and self.is_interrupted:
                self.kill_others()
            self.drain()
            if kind == "done":
                self.end(data)
            else:
                write_all(1, data)

    def check(self):
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid == 0:
            return
        while select.select([self.frames], [], [], 0)[0] and self.take_frames():
            pass
        self.drain()
        code = os.waitstatus_to_exitcode(status)
        self.kill(signal.SIGKILL)
        if self.id is not None:
            self.end(frame(type="died", id=self.id, code=code))
        self.stop()

    def take_requests(self):
        data = os.read(0, 1 << 20)
        if not data:
            if self.pid is not None:
                self.kill(signal.SIGKILL)
            os._exit(0)
        lines = (self.stdin + data).split(b"\n")
        self.stdin = lines.pop()
        for line in lines:
            request = json.loads(line)
            if request["op"] == "execute":
                restarted = self.pid is None
                if restarted:
                    self.start()
                self.id = request["id"]
                self.is_started = self.is_interrupted = False
                spill = request["spill"]
                self.spills = {name: Spill(spill and "%s.%s" % (spill, name)) for name in ("stdout", "stderr")}
                self.emit(type="started", id=self.id, restarted=restarted)
                try:
                    write_all(self.requests, frame(id=self.id, code=request["code"], env=request["env"]))
                except OSError:
                    pass
            elif self.pid is None or self.id is None:
                pass
            elif request["op"] == "kill":
                self.kill(signal.SIGKILL)
            else:
                self.is_interrupted = True
                # Otherwise sent when the child no longer ignores it.
                if self.is_started:
                    self.kill(signal.SIGINT)


signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGPIPE, signal.SIG_IGN)
if sys.argv[2:3] > [""]:
    try:
        os.chdir(sys.argv[2])
    except OSError as error:
        sys.exit(str(error))
Parent().serve()
