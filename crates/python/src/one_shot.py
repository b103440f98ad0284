import sys
_source, _describe = sys.stdin.buffer.read(), sys.argv.pop()
_main = sys._getframe().f_code
def _hook(kind, error, trace):
    exec(_describe, {"source": _source, "main": _main, "error": error, "trace": trace.tb_next if trace else None})
sys.excepthook = _hook
# Not `compile`: it makes the types of syntax trees, which takes as long as a fifth of Python's start.
exec(_source, globals())
