# Writes the traceback of a one-shot run with the lines of its source, which has the name "<string>" in its code.
import linecache, sys, traceback

linecache.cache["<script>"] = (len(source), None, [line + "\n" for line in source.decode("utf-8", "replace").split("\n")], "<script>")
linecache.cache.pop("<string>", None)  # Python 3.13 has the lines of `-c` there.
codes, left = set(), [trace.tb_frame.f_code] if trace else []
while left:
    code = left.pop()
    codes.add(id(code))
    left += [it for it in code.co_consts if hasattr(it, "co_consts")]
seen = set()


def rename(described, error):
    # Frames of the source, and not of what it executes itself.
    if described is None or error is None or id(error) in seen:
        return
    seen.add(id(error))
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    for entry, frame in zip(described.stack, frames):
        if id(frame.f_code) in codes:
            entry.filename = "<script>"
    if frames and frames[0].f_code is main:
        del described.stack[0]
    rename(described.__cause__, error.__cause__)
    rename(described.__context__, error.__context__)
    for inner in zip(getattr(described, "exceptions", None) or (), getattr(error, "exceptions", ())):
        rename(*inner)


described = traceback.TracebackException(type(error), error, error.__traceback__, lookup_lines=False)
if isinstance(error, SyntaxError) and trace is None:
    described.filename = "<script>"
rename(described, error)
sys.stderr.write("".join(described.format()))
