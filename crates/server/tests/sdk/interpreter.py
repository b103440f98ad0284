"""What users of E2B's code interpreter call, against the server that E2B_API_URL names."""

from e2b_code_interpreter import Sandbox, TimeoutException

sandbox = Sandbox.create(timeout=600)
try:
    output = []
    sandbox.run_code("x = 20\nprint('out')", on_stdout=lambda message: output.append(message.line))
    assert output == ["out\n"], output
    execution = sandbox.run_code("x + 1")
    assert (execution.text, execution.execution_count) == ("21", 2), execution

    table = "class Table:\n    def _repr_html_(self): return '<b>1</b>'\nTable()"
    (shown,) = sandbox.run_code(table).results
    assert shown.html == "<b>1</b>" and shown.is_main_result, shown

    error = sandbox.run_code("1 / 0").error
    assert error.name == "ZeroDivisionError" and "line 1" in error.traceback, error

    own = sandbox.run_code("import os\nos.environ['MINE']", envs={"MINE": "1"})
    assert own.text == "1", own
    bash = sandbox.run_code("echo $((1 + 2))", language="bash")
    assert bash.logs.stdout == ["3\n"], bash

    sandbox.files.write("/home/user/place/a.txt", "content")
    context = sandbox.create_code_context(cwd="/home/user/place")
    read = sandbox.run_code("open('a.txt').read()", context=context)
    assert read.text == "content", read
    assert context.id in [known.id for known in sandbox.list_code_contexts()]
    sandbox.run_code("y = 1", context=context)
    sandbox.restart_code_context(context)
    assert sandbox.run_code("y", context=context).error.name == "NameError"
    sandbox.remove_code_context(context)
    assert context.id not in [known.id for known in sandbox.list_code_contexts()]

    # A client that gives up interrupts the code, and variables stay.
    try:
        sandbox.run_code("import time\ntime.sleep(600)", timeout=2)
        raise AssertionError("it did not time out")
    except TimeoutException:
        pass
    assert sandbox.run_code("x").text == "20"
finally:
    sandbox.kill()
