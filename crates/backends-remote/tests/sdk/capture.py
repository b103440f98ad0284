#!/usr/bin/env python3
"""Records the requests of E2B's official Python SDK, call by call.

    python3 -m venv /tmp/sdk && /tmp/sdk/bin/pip install e2b==2.63.0
    /tmp/sdk/bin/python capture.py > python-2.63.0.json

The server has minimal responses. Values that differ from run to run (versions, system, ports, times) are
omitted, so that two captures of one SDK are equal.
"""

import base64
import json
import struct
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlsplit

VOLATILE = {
    "accept", "accept-encoding", "browser", "connection", "content-length", "host", "lang", "lang_version",
    "package_version", "publisher", "sdk_runtime", "system", "transfer-encoding", "user-agent",
}
CALLS = []
CURRENT = [None]
SANDBOX = {
    "templateID": "base", "sandboxID": "isandbox", "clientID": "client", "envdVersion": "0.6.13",
    "envdAccessToken": "sandbox-token", "domain": None,
}
ENTRY = {
    "name": "file", "type": "FILE_TYPE_FILE", "path": "/home/user/file", "size": "4", "mode": 420,
    "permissions": "-rw-r--r--", "owner": "user", "group": "user",
    "modifiedTime": "2026-01-01T00:00:00Z",
}


def envelope(flags, message):
    data = json.dumps(message).encode()
    return struct.pack(">BI", flags, len(data)) + data


def process():
    data = base64.b64encode(b"hello\n").decode()
    end = {"exited": True, "status": "exit status 0"}
    events = [{"start": {"pid": 7}}, {"data": {"stdout": data}}, {"end": end}]
    return b"".join(envelope(0, {"event": event}) for event in events) + envelope(2, {})


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def body(self):
        if "chunked" not in self.headers.get("transfer-encoding", ""):
            return self.rfile.read(int(self.headers.get("content-length", 0)))
        whole = b""
        while True:
            size = int(self.rfile.readline(), 16)
            whole += self.rfile.read(size)
            self.rfile.readline()
            if size == 0:
                return whole

    def readable(self, kind, body):
        if kind == "application/connect+json":
            messages = []
            while body:
                _, length = struct.unpack(">BI", body[:5])
                messages.append(json.loads(body[5:5 + length]))
                body = body[5 + length:]
            return {"envelopes": messages}
        if kind == "application/json" and body:
            return {"json": json.loads(body)}
        return {"text": body.decode("utf-8", "replace")} if body else {}

    def handle_any(self):
        body = self.body()
        url = urlsplit(self.path)
        kind = self.headers.get("content-type", "").split(";")[0]
        headers = {k.lower(): v for k, v in self.headers.items() if k.lower() not in VOLATILE}
        if kind == "multipart/form-data":
            boundary = headers["content-type"].split("boundary=")[1]
            headers["content-type"] = headers["content-type"].replace(boundary, "BOUNDARY")
            body = body.replace(boundary.encode(), b"BOUNDARY")
        CALLS.append({
            "call": CURRENT[0], "method": self.command, "path": url.path,
            "query": dict(parse_qsl(url.query)), "headers": dict(sorted(headers.items())),
            "body": self.readable(kind, body),
        })
        self.answer(url.path)

    do_GET = do_POST = do_DELETE = do_PUT = handle_any

    def answer(self, path):
        kind, status = "application/json", 200
        if path in ("/sandboxes", "/v2/sandboxes"):
            status, data = 201, json.dumps(SANDBOX).encode()
        elif path.endswith("/connect") and path.startswith(("/sandboxes", "/v2")):
            data = json.dumps(SANDBOX).encode()
        elif path.startswith(("/sandboxes", "/v2")) or path == "/health":
            status, data = 204, b""
        elif path.endswith(("/Start", "/Connect")):
            kind, data = "application/connect+json", process()
        elif path == "/files" and self.command == "GET":
            kind, data = "application/octet-stream", b"text"
        elif path == "/files":
            data = json.dumps([{"name": "file", "type": "file", "path": "/home/user/file"}]).encode()
        elif path.endswith("/ListDir"):
            data = json.dumps({"entries": [ENTRY]}).encode()
        elif path.endswith(("/Stat", "/MakeDir", "/Move")):
            data = json.dumps({"entry": ENTRY}).encode()
        else:
            data = b"{}"
        self.send_response(status)
        if status != 204:
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def main():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    from e2b import PtySize, Sandbox

    def call(name, method):
        CURRENT[0] = name
        return method()

    options = {"api_key": "e2b_" + 40 * "0", "api_url": url, "sandbox_url": url}
    sandbox = call("create", lambda: Sandbox.create(
        timeout=300, metadata={"name": "value"}, envs={"NAME": "value"},
        allow_internet_access=False, **options))
    call("connect", lambda: Sandbox.connect("isandbox", timeout=300, **options))
    call("prolong", lambda: sandbox.set_timeout(300))
    call("run", lambda: sandbox.commands.run(
        "echo hello", envs={"NAME": "value"}, cwd="/home/user", timeout=30))
    handle = call("background", lambda: sandbox.commands.run("cat", background=True, stdin=True, timeout=0))
    call("stdin", lambda: sandbox.commands.send_stdin(7, "text"))
    if hasattr(sandbox.commands, "close_stdin"):
        call("close_stdin", lambda: sandbox.commands.close_stdin(7))
    call("listen_again", lambda: sandbox.commands.connect(7, timeout=0))
    call("processes", lambda: sandbox.commands.list())
    call("kill_command", lambda: handle.kill())
    call("pty", lambda: sandbox.pty.create(PtySize(rows=24, cols=80), timeout=0))
    call("pty_stdin", lambda: sandbox.pty.send_stdin(7, b"text"))
    call("resize", lambda: sandbox.pty.resize(7, PtySize(rows=40, cols=120)))
    call("write", lambda: sandbox.files.write("/home/user/file", "text"))
    call("read", lambda: sandbox.files.read("/home/user/file"))
    call("stat", lambda: sandbox.files.get_info("/home/user/file"))
    call("list", lambda: sandbox.files.list("/home/user"))
    call("mkdir", lambda: sandbox.files.make_dir("/home/user/new"))
    call("rename", lambda: sandbox.files.rename("/home/user/file", "/home/user/new"))
    call("remove", lambda: sandbox.files.remove("/home/user/file"))
    call("health", lambda: sandbox.is_running())
    pause = getattr(sandbox, "pause", None) or sandbox.beta_pause
    call("pause", lambda: pause())
    call("kill", lambda: sandbox.kill())
    json.dump(CALLS, sys.stdout, indent=1, sort_keys=True)
    print()


main()
