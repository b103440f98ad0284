import sys
_source = sys.stdin.buffer.read()
def _hook(kind, error, trace):
    import linecache, traceback
    linecache.cache["<script>"] = (len(_source), None, [line + "\n" for line in _source.decode().split("\n")], "<script>")
    traceback.print_exception(kind, error, trace and trace.tb_next)
sys.excepthook = _hook
exec(compile(_source, "<script>", "exec"), globals())
