# The kernel: a parent that owns the protocol, and a forked child that executes code and keeps its variables.
# Requests come as JSON lines on stdin, events leave as JSON lines on stdout. Written for Python 3.9 and later.
import sys
sys.path[:] = [entry for entry in sys.path if entry]  # No module of the working directory in our imports.
import ast, base64, builtins, importlib.machinery, io, json, linecache, os, select, signal, threading, traceback, types

MAX_FRAME = 8 << 20
SPILL_AFTER, MAX_SPILL = 20000, 256 << 20
MAX_CELLS = 500000  # Of a table as data. The host counts 64 bytes for each, and takes 32 MiB.
FIGURES = sys.argv[1:2] != ["plain"]
MIME = {
    "text/html": "html", "text/markdown": "markdown", "image/svg+xml": "svg", "image/png": "png",
    "image/jpeg": "jpeg", "application/pdf": "pdf", "text/latex": "latex", "application/json": "json",
    "application/javascript": "javascript",
}
BINARY = ("png", "jpeg", "pdf")
STRUCTURED = ("json", "data", "chart")
TEXTUAL = ("text", *(name for name in MIME.values() if name not in STRUCTURED))


def write_all(fd, data):
    data = memoryview(data)
    while data:
        data = data[os.write(fd, data):]


def frame(**fields):
    # A lone surrogate has no UTF-8.
    return json.dumps(fields, default=str, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


# ---- The child.

def await_reader(fd):
    # What is written next must not reach the parent together with what this pipe has, because it reads one after the other.
    import fcntl, termios, time
    for _ in range(1000):
        if not any(fcntl.ioctl(fd, termios.FIONREAD, bytes(4))):
            break
        time.sleep(0.0002)


class Output(io.TextIOWrapper):
    """Keeps the order of what is printed to both streams."""
    latest = 1

    def __init__(self, fd, name):
        raw = io.FileIO(fd, "w", closefd=False)
        raw.name = name
        super().__init__(io.BufferedWriter(raw), "utf-8", "backslashreplace", line_buffering=True)
        self.fd = fd

    def write(self, text):
        if self.fd != Output.latest:
            try:
                await_reader(Output.latest)
            except OSError:
                pass  # The code closed the other one.
            Output.latest = self.fd
        return super().write(text)


def without_indent(code):
    """Removes the first line's indentation from all lines, as IPython does."""
    lines = code.split("\n")
    first = next((line for line in lines if line.strip()), "")
    indent = first[: len(first) - len(first.lstrip(" \t"))]
    return "\n".join(line.removeprefix(indent) for line in lines)


class Child:
    def __init__(self, requests, frames):
        self.requests, self.frames = os.fdopen(requests, "rb"), frames
        self.pid, self.lock = os.getpid(), threading.Lock()
        self.id, self.count = None, 0
        main = types.ModuleType("__main__")
        main.__builtins__ = builtins
        sys.modules["__main__"] = main
        self.namespace = main.__dict__
        sys.argv = [""]
        sys.stdout = sys.__stdout__ = Output(1, "<stdout>")
        sys.stderr = sys.__stderr__ = Output(2, "<stderr>")
        sys.path.insert(0, "")
        builtins.input = refuse_input
        builtins.display = self.namespace["display"] = self.display
        if FIGURES:
            os.environ.setdefault("MPLBACKEND", "agg")
            sys.meta_path.insert(0, Figures(self))
        self.loop = None

    def send(self, **fields):
        try:
            data = frame(id=self.id, **fields)
        except Exception:
            if "data" not in fields:
                raise
            data = b""
        if "data" in fields and not 0 < len(data) <= MAX_FRAME:
            # Values that have no JSON, or too much of it, do not take the other formats with them.
            fields["data"] = {name: part for name, part in fields["data"].items() if name not in STRUCTURED}
            data = frame(id=self.id, **fields)
        if len(data) > MAX_FRAME:
            reason = "a result has %d bytes; at most %d are accepted" % (len(data), MAX_FRAME)
            data = frame(id=self.id, type="refused", reason=reason)
        with self.lock:
            # The line end separates it from a frame whose writing was interrupted.
            write_all(self.frames, b"\n" + data)

    def serve(self):
        while True:
            try:
                line = self.requests.readline()
            except KeyboardInterrupt:
                continue
            if not line:
                os._exit(0)
            request = json.loads(line)
            self.id = request["id"]
            self.execute(request["code"], request["env"])

    def execute(self, code, env):
        self.count += 1
        code = without_indent(code[1:] if code.startswith("\ufeff") else code)
        name = "<cell %d>" % self.count
        linecache.cache[name] = (len(code), None, [line + "\n" for line in code.split("\n")], name)
        error = None
        before = {key: os.environ.get(key) for key in env}
        try:
            try:
                os.environ.update(env)
                signal.signal(signal.SIGINT, signal.default_int_handler)
                self.send(type="started")
                try:
                    shown = self.run(code, name)
                except (Exception, SystemExit):
                    self.show_figures()
                    raise
                self.show_figures(shown)
            except SystemExit as exit:
                if exit.code not in (None, 0):
                    raise
            finally:
                signal.signal(signal.SIGINT, signal.SIG_IGN)
        except BaseException as caught:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            error = self.describe(caught)
        for key, value in before.items():
            os.environ.pop(key, None) if value is None else os.environ.update({key: value})
        flush()
        if os.getpid() != self.pid:
            os._exit(0)  # A process that the code forked: it has no part in the protocol.
        self.send(type="done", error=error)

    def run(self, code, name):
        # Returns the value of the last expression.
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        tree = compile(code, name, "exec", flags | ast.PyCF_ONLY_AST)
        last = None
        if tree.body and isinstance(tree.body[-1], ast.Expr):
            last = ast.Expression(tree.body.pop().value)
        # `from __future__` affects the last expression, too.
        body = compile(tree, name, "exec", flags)
        self.evaluate(body)
        if last is None:
            return None
        value = self.evaluate(compile(last, name, "eval", flags | body.co_flags & 0x1fe0000))
        if value is not None:
            self.namespace["_"] = value
            self.show(value, main=True)
        return value

    def evaluate(self, code):
        value = eval(code, self.namespace)
        if not code.co_flags & 0x80:  # CO_COROUTINE
            return value
        import asyncio
        if self.loop is None or self.loop.is_closed():
            self.loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self.loop)
        task = self.loop.create_task(value)
        try:
            return self.loop.run_until_complete(task)
        except KeyboardInterrupt:
            task.cancel()
            self.loop.run_until_complete(asyncio.wait([task]))
            raise

    def display(self, *values, **_):
        for value in values:
            self.show(value)

    def show(self, value, main=False):
        # What is printed before it comes before it.
        flush()
        self.send(type="result", main=main, data=formats(value))
        if not main:
            await_reader(self.frames)

    def show_figures(self, shown=None):
        pyplot = sys.modules.get("matplotlib.pyplot")
        if pyplot is None or not FIGURES or sys.modules["matplotlib"].get_backend() != "module://cantle_figures":
            return
        try:
            for number in pyplot.get_fignums():
                figure = pyplot.figure(number)
                if figure is not shown:
                    self.show(figure)
        finally:
            # Also one that can't be drawn, which would fail the next call, too.
            pyplot.close("all")

    def describe(self, error):
        try:
            described = traceback.TracebackException(type(error), error, error.__traceback__)
            keep_user_lines(described, set())
            text = "".join(described.format())
        except Exception:
            text = type(error).__name__ + "\n"
        try:
            message = str(error)
        except Exception:
            message = ""
        return {"name": type(error).__name__, "value": message[:100000], "traceback": text[-200000:]}


def keep_user_lines(described, seen):
    if described is None or id(described) in seen:
        return
    seen.add(id(described))
    own = [entry for entry in described.stack if entry.filename.startswith("<cell ")]
    described.stack[:] = own
    for inner in [described.__cause__, described.__context__, *(getattr(described, "exceptions", None) or ())]:
        keep_user_lines(inner, seen)


def flush():
    # The code may have replaced or closed them.
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            pass


def refuse_input(prompt=""):
    raise EOFError("input() is not available here: there is no user to answer. Put the values into the code.")


def formats(value):
    data = {}
    if type(value).__name__ == "Figure" and type(value).__module__.startswith("matplotlib."):
        data["png"] = figure_png(value)
        try:
            from e2b_charts import chart_figure_to_dict
            data["chart"] = chart_figure_to_dict(value)
        except Exception:
            pass
    bundle = {}
    if not isinstance(value, type):
        method = getattr(value, "_repr_mimebundle_", None)
        if callable(method):
            try:
                bundle = method() or {}
                bundle = bundle[0] if isinstance(bundle, tuple) else bundle
            except Exception:
                bundle = {}
        for mime, name in MIME.items():
            part = bundle.get(mime) if isinstance(bundle, dict) else None
            method = getattr(value, "_repr_%s_" % name, None)
            if part is None and callable(method):
                try:
                    part = method()
                except Exception:
                    continue
            part = part[0] if isinstance(part, tuple) and part else part
            if part is not None:
                data.setdefault(name, encoded(name, part))
    if type(value).__name__ == "DataFrame" and callable(getattr(value, "to_dict", None)):
        try:
            if getattr(value, "size", 0) <= MAX_CELLS:
                # Columns may be named by pairs or dates, and keys of JSON are text.
                data["data"] = {str(name): column for name, column in value.to_dict(orient="list").items()}
        except Exception:
            pass
    text = repr(value)
    data["text"] = text if len(text) <= 1000000 else text[:1000000] + "…"
    return data


def encoded(name, part):
    if isinstance(part, (bytes, bytearray)):
        return base64.b64encode(part).decode() if name in BINARY else part.decode("utf-8", "replace")
    return part if name in STRUCTURED or isinstance(part, str) else str(part)


def figure_png(figure):
    file = io.BytesIO()
    figure.savefig(file, format="png", bbox_inches="tight")
    return base64.b64encode(file.getvalue()).decode()


class Figures:
    """Makes our backend matplotlib's default, unless the user chose one; subprocesses use Agg."""

    def __init__(self, child):
        self.child = child

    def find_spec(self, name, path=None, target=None):
        if name == "cantle_figures":
            return importlib.machinery.ModuleSpec(name, self)
        if name != "matplotlib":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module):
                execute(module)
                if os.environ.get("MPLBACKEND") == "agg":
                    module.rcParams["backend"] = "module://cantle_figures"
            spec.loader.exec_module = exec_module
        return spec

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        from matplotlib.backend_bases import FigureManagerBase
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        child = self.child

        class Manager(FigureManagerBase):
            @classmethod
            def pyplot_show(cls, **_):
                child.show_figures()

        class Canvas(FigureCanvasAgg):
            manager_class = Manager
        module.FigureCanvas, module.FigureManager = Canvas, Manager
        module.show = lambda *_, **__: child.show_figures()


# ---- The parent.

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
        # What the code started and what goes on after SIGINT, such as a fork bomb. Nothing forks while it is stopped.
        self.kill(signal.SIGSTOP)
        for pid in filter(str.isdigit, os.listdir("/proc") if os.path.exists("/proc/self/stat") else ()):
            try:
                with open("/proc/%s/stat" % pid) as file:
                    group = int(file.read().rpartition(")")[2].split()[2])
                if group == self.pid != int(pid):
                    os.kill(int(pid), signal.SIGKILL)
            except OSError:
                pass  # It has ended.
        self.kill(signal.SIGCONT)

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
