# The kernel: a parent that owns the protocol (kernel_parent.py, which is appended to this file), and a forked child that
# executes code and keeps its variables. Requests come as JSON lines on stdin, events leave as JSON lines on stdout.
# Written for Python 3.9 and later.
import sys
sys.path[:] = [entry for entry in sys.path if entry]  # No module of the working directory in our imports.
import ast, base64, builtins, importlib.machinery, io, json, linecache, os, re, select, signal, threading, time
import traceback, types, warnings

MAX_FRAME = 8 << 20
SPILL_AFTER, MAX_SPILL = 20000, 256 << 20
MAX_CELLS = 500000  # Of a table as data. The host counts 64 bytes for each, and takes 32 MiB.
CO_COROUTINE = 0x80
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


def await_reader(fd):
    # What is written next must not reach the parent together with what this pipe has, because it reads one after the other.
    import fcntl, termios
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


def open_streams():
    """Opens the streams, also those that the code of an earlier call closed."""
    for fd, name in ((1, "stdout"), (2, "stderr")):
        standard, current = "__%s__" % name, getattr(sys, name, None)
        stream = getattr(sys, standard, None)
        if isinstance(stream, Output) and not stream.closed:
            continue
        try:
            setattr(sys, standard, Output(fd, "<%s>" % name))
        except OSError:
            continue  # Its descriptor is closed, too.
        if current is stream:
            setattr(sys, name, getattr(sys, standard))


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
        open_streams()
        sys.path.insert(0, "")
        builtins.input = refuse_input
        builtins.display = self.namespace["display"] = self.display
        if FIGURES:
            os.environ.setdefault("MPLBACKEND", "agg")
            sys.meta_path.insert(0, Figures(self))
        self.loop = None

    def send(self, **fields):
        if os.getpid() != self.pid:
            return  # A process that the code forked has no part in the protocol.
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
            except BaseException as raised:
                # By a signal handler of the code, such as that of an alarm, unless the code closed the pipe.
                if self.requests.closed or getattr(raised, "errno", None):
                    raise
                continue
            if not line:
                os._exit(0)
            request = json.loads(line)
            self.id = request["id"]
            self.execute(request["code"], request["env"])

    def execute(self, code, env):
        self.count += 1
        open_streams()
        code = without_indent(code[1:] if code.startswith("\ufeff") else code)
        name = "<cell %d>" % self.count
        linecache.cache[name] = (len(code), None, [line + "\n" for line in code.split("\n")], name)
        error, status = None, 0
        before = {key: os.environ.get(key) for key in env}
        try:
            try:
                os.environ.update(env)
                signal.signal(signal.SIGINT, signal.default_int_handler)
                self.send(type="started")
                try:
                    shown = self.run(code, name)
                except BaseException as raised:
                    self.show_figures_after(raised)
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
            status = caught.code if isinstance(caught, SystemExit) else 1
        for key, value in before.items():
            os.environ.pop(key, None) if value is None else os.environ.update({key: value})
        flush()
        if os.getpid() != self.pid:
            end_forked(error, status)
        self.send(type="done", error=error)

    def run(self, code, name):
        # Returns the value of the last expression.
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        tree = compile(code, name, "exec", flags | ast.PyCF_ONLY_AST)
        last = None
        if tree.body and isinstance(tree.body[-1], ast.Expr):
            last = ast.Expression(tree.body.pop().value)
        codes = [compile(tree, name, "exec", flags)]
        if last is not None:
            # `from __future__` affects the last expression, too.
            codes.append(compile(last, name, "eval", flags | codes[0].co_flags & 0x1fe0000))
        value = self.evaluate(codes)
        if value is None or ends_with_semicolon(code, last.body):
            return None
        self.namespace["_"] = value
        self.show(value, main=True)
        return value

    def evaluate(self, codes):
        # Returns the value of the last one. If one awaits, the others find the event loop running, too.
        if not any(code.co_flags & CO_COROUTINE for code in codes):
            return [eval(code, self.namespace) for code in codes][-1]

        async def run():
            for code in codes:
                value = eval(code, self.namespace)
                if code.co_flags & CO_COROUTINE:
                    value = await value
            return value
        import asyncio
        if self.loop is None or self.loop.is_closed():
            self.loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self.loop)
        task = self.loop.create_task(run())
        try:
            return self.loop.run_until_complete(task)
        except KeyboardInterrupt as interrupt:
            task.cancel()
            self.loop.run_until_complete(asyncio.wait([task]))
            try:
                task.result()
            except asyncio.CancelledError as cancelled:
                raise interrupt from cancelled  # Its traceback has the line that waited.
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

    def show_figures_after(self, error):
        if os.getpid() != self.pid:
            return
        try:
            if not isinstance(error, KeyboardInterrupt):
                self.show_figures()
            elif open_figures():
                self.show_figures_apart()
        except Exception:
            pass  # The error of the code comes first.

    def show_figures_apart(self):
        # After an interrupt this process is killed soon. What another one does not draw in a second is left out.
        flush()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # About threads.
                pid = os.fork()
            if pid == 0:
                self.pid = os.getpid()
                try:
                    self.show_figures()
                finally:
                    os._exit(0)
            until = time.monotonic() + 1
            while not os.waitpid(pid, os.WNOHANG)[0]:
                if time.monotonic() > until:
                    os.kill(pid, signal.SIGKILL)
                time.sleep(0.01)
        finally:
            sys.modules["matplotlib.pyplot"].close("all")

    def show_figures(self, shown=None):
        numbers = open_figures()
        if not numbers:
            return
        pyplot = sys.modules["matplotlib.pyplot"]
        try:
            for number in numbers:
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
        except BaseException:
            text = type(error).__name__ + "\n"
        try:
            message = str(error)
        except BaseException:
            message = ""
        return {"name": type(error).__name__, "value": message[:100000], "traceback": text[-200000:]}


def open_figures():
    """Returns the numbers of the figures that the code left to the backend of the kernel."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is None or not FIGURES or sys.modules["matplotlib"].get_backend() != "module://cantle_figures":
        return []
    return pyplot.get_fignums()


def keep_user_lines(described, seen):
    if described is None or id(described) in seen:
        return
    seen.add(id(described))
    own = [entry for entry in described.stack if entry.filename.startswith("<cell ")]
    described.stack[:] = own
    for inner in [described.__cause__, described.__context__, *(getattr(described, "exceptions", None) or ())]:
        keep_user_lines(inner, seen)


def ends_with_semicolon(code, expression):
    """Returns whether a semicolon follows the last expression: its value is not shown then, as in IPython."""
    lines = code.encode().splitlines()[expression.end_lineno - 1 :]
    return re.match(rb"[\s)\\]*;", b"\n".join(lines)[expression.end_col_offset :]) is not None


def end_forked(error, status):
    """Ends a process that the code forked as Python ends a script."""
    if isinstance(status, int):
        if error and error["name"] not in ("SystemExit", "KeyboardInterrupt"):
            write_all(2, error["traceback"].encode("utf-8", "replace"))
        os._exit(status & 0xff)
    write_all(2, (error["value"] + "\n").encode("utf-8", "replace"))
    os._exit(1)


def flush():
    # The code may have replaced or closed them.
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        try:
            stream.flush()
        except Exception:
            pass


def refuse_input(prompt=""):
    raise EOFError("input() is not available here: there is no user to answer. Put the values into the code.")


def formats(value):
    data = {}
    if is_figure(value):
        data["png"] = figure_png(value)
        try:
            from e2b_charts import chart_figure_to_dict
            data["chart"] = chart_figure_to_dict(value)
        except Exception:
            pass
    if has_formats(value):
        bundle = call(value, "_repr_mimebundle_", include=None, exclude=None) or call(value, "_repr_mimebundle_")
        bundle = bundle[0] if isinstance(bundle, tuple) and bundle else bundle
        for mime, name in MIME.items():
            part = bundle.get(mime) if isinstance(bundle, dict) else None
            part = call(value, "_repr_%s_" % name) if part is None else part
            part = part[0] if isinstance(part, tuple) and part else part
            if part is not None:
                data.setdefault(name, encoded(name, part))
    if type(value).__name__ == "DataFrame" and callable(getattr(value, "to_dict", None)):
        try:
            if getattr(value, "size", 0) <= MAX_CELLS:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # About columns of one name.
                    columns = value.to_dict(orient="list")
                # Columns may be named by pairs or dates, and keys of JSON are text.
                data["data"] = {str(name): column for name, column in columns.items()}
        except Exception:
            pass
    text = repr(value)
    data["text"] = text if len(text) <= 1000000 else text[:1000000] + "…"
    return data


def is_figure(value):
    # Also of a class that is derived from matplotlib's.
    kinds = type(value).__mro__
    return any(kind.__name__ == "Figure" and str(kind.__module__).startswith("matplotlib.") for kind in kinds)


def has_formats(value):
    # A class has the methods of its instances, and mocks and proxies have every method. IPython asks for the same name.
    try:
        return not isinstance(value, type) and not hasattr(value, "_ipython_canary_method_should_not_exist_")
    except Exception:
        return False


def call(value, name, **options):
    try:
        method = getattr(value, name, None)
        return method(**options) if callable(method) else None
    except Exception:
        return None


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
