"""A server in a sandbox: describes requests, echoes bodies, and echoes the messages of a WebSocket."""

import base64
import hashlib
import http.server
import json

GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if self.headers.get("upgrade") == "websocket":
            return self.websocket()
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.answer(json.dumps({"path": self.path, "headers": headers}).encode())

    do_OPTIONS = do_GET

    def do_POST(self):
        length = int(self.headers["content-length"])
        self.send_response(200)
        self.send_header("content-length", str(length))
        self.end_headers()
        while length:
            piece = self.rfile.read(min(length, 65536))
            length -= len(piece)
            self.wfile.write(piece)

    def answer(self, body):
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def websocket(self):
        key = self.headers["sec-websocket-key"].encode()
        self.send_response(101)
        self.send_header("upgrade", "websocket")
        self.send_header("connection", "Upgrade")
        accept = base64.b64encode(hashlib.sha1(key + GUID).digest())
        self.send_header("sec-websocket-accept", accept.decode())
        self.end_headers()
        self.close_connection = True
        # Short masked frames only.
        while head := self.rfile.read(2):
            length = head[1] & 0x7F
            mask = self.rfile.read(4)
            data = self.rfile.read(length)
            text = bytes(byte ^ mask[at % 4] for at, byte in enumerate(data))
            self.wfile.write(bytes([head[0], length]) + text)

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
server.daemon_threads = True
print(server.server_port, flush=True)
server.serve_forever()
