// What users of E2B's JavaScript SDK call, against the server that E2B_API_URL names. E2B_PACKAGE is
// where the SDK is. Each check says its name; one that fails says why, and the script ends with 1.

import assert from "node:assert/strict";

const {
  AuthenticationError,
  CommandExitError,
  FileNotFoundError,
  FileType,
  FilesystemEventType,
  InvalidArgumentError,
  NotFoundError,
  Sandbox,
  SandboxError,
  SandboxNotFoundError,
  TimeoutError,
} = await import(process.env.E2B_PACKAGE);

// What has not happened after this long does not happen, however slow the machine is.
const DEADLINE_MS = 60_000;
const LIFETIME_MS = 600_000;
// A part of a command that goes on when it is told to.
const WAIT = "until [ -e go ]; do sleep 0.1; done";
const go = (sbx) => sbx.files.write("go", "");
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

async function until(what, isTrue) {
  const deadline = Date.now() + DEADLINE_MS;
  while (!(await isTrue())) {
    assert(Date.now() < deadline, `it never became true that ${what}`);
    await sleep(50);
  }
}

/** The error of one of these kinds that a call ends with. */
async function fails(kinds, call) {
  let result;
  try {
    result = await call();
  } catch (error) {
    assert([kinds].flat().some((kind) => error instanceof kind), `another error: ${error.stack}`);
    return error;
  }
  assert.fail(`nothing failed; it returned ${JSON.stringify(result)}`);
}

const checks = {
  async commandsRun(sbx) {
    const result = await sbx.commands.run("echo out; echo err >&2; pwd; whoami");
    assert.equal(result.stdout, "out\n/home/user\nuser\n");
    assert.equal(result.stderr, "err\n");
    assert.equal(result.exitCode, 0);
  },

  async aFailingCommandRejects(sbx) {
    const error = await fails(CommandExitError, () => sbx.commands.run("echo so; exit 7"));
    assert.equal(error.exitCode, 7);
    assert.equal(error.stdout, "so\n");
  },

  async commandsGetTheirEnvironmentAndDirectory(sbx) {
    const line = "echo $FROM_SANDBOX $FROM_COMMAND; pwd";
    const result = await sbx.commands.run(line, { envs: { FROM_COMMAND: "b" }, cwd: "/tmp" });
    assert.equal(result.stdout, "a b\n/tmp\n");
    await fails(InvalidArgumentError, () => sbx.commands.run("pwd", { cwd: "/nowhere" }));
  },

  async outputComesAsItIsWritten(sbx) {
    let told = "";
    const onStdout = async (text) => {
      told += text;
      // Without having seen the first line, nobody sees the last.
      if (told === "1\n") await go(sbx);
    };
    await sbx.commands.run(`echo 1; ${WAIT}; echo 2`, { onStdout });
    assert.equal(told, "1\n2\n");
  },

  async aLotOfOutputComesWhole(sbx) {
    const result = await sbx.commands.run("head -c 3000000 /dev/zero | tr '\\0' x; echo end");
    assert.equal(result.stdout.length, 3000004);
  },

  async aCommandThatTakesTooLongIsKilled(sbx) {
    const started = Date.now();
    await fails(TimeoutError, () => sbx.commands.run("sleep 300", { timeoutMs: 1000 }));
    assert(Date.now() - started < DEADLINE_MS);
    await until("it is killed", async () => (await sbx.commands.list()).length === 0);
  },

  async commandsRunInTheBackground(sbx) {
    const line = `${WAIT}; echo done`;
    const handle = await sbx.commands.run(line, { background: true });
    const listed = await sbx.commands.list();
    assert.deepEqual(
      listed.map(({ pid, cmd, args }) => ({ pid, cmd, args })),
      [{ pid: handle.pid, cmd: "/bin/bash", args: ["-l", "-c", line] }],
    );
    await go(sbx);
    assert.equal((await handle.wait()).stdout, "done\n");
    assert.deepEqual(await sbx.commands.list(), []);
  },

  async backgroundCommandsAreKilled(sbx) {
    const handle = await sbx.commands.run("sleep 300", { background: true });
    assert.equal(await handle.kill(), true);
    const error = await fails(CommandExitError, () => handle.wait());
    assert.match(error.message, /killed/);
    assert.equal(await sbx.commands.kill(handle.pid), false);
  },

  async commandsAreConnectedTo(sbx) {
    const handle = await sbx.commands.run(`${WAIT}; echo late`, { background: true });
    await handle.disconnect();
    const again = await sbx.commands.connect(handle.pid);
    await go(sbx);
    assert.equal((await again.wait()).stdout, "late\n");
    await fails(SandboxError, () => sbx.commands.connect(999_999));
  },

  async commandsReadTheirInput(sbx) {
    const handle = await sbx.commands.run("read x; echo got $x; wc -c", {
      background: true,
      stdin: true,
    });
    await sbx.commands.sendStdin(handle.pid, "thïs\n12345");
    await sbx.commands.closeStdin(handle.pid);
    assert.equal((await handle.wait()).stdout.replaceAll(" ", ""), "gotthïs\n5\n");
  },

  async anotherUserIsRefused(sbx) {
    const error = await fails(AuthenticationError, () => sbx.commands.run("id", { user: "root" }));
    assert.match(error.message, /root/);
    assert.equal((await sbx.commands.run("whoami", { user: "user" })).stdout, "user\n");
  },

  async aTerminalWorks(sbx) {
    const text = [];
    const decoder = new TextDecoder();
    const onData = (data) => text.push(decoder.decode(data, { stream: true }));
    const terminal = await sbx.pty.create({ cols: 80, rows: 24, onData });
    const send = (line) => sbx.pty.sendInput(terminal.pid, new TextEncoder().encode(line));
    await send("stty size; echo $TERM; touch asked\n");
    await until("the terminal has said its size", () => sbx.files.exists("asked"));
    await sbx.pty.resize(terminal.pid, { cols: 120, rows: 40 });
    await send("stty size; exit 5\n");
    const error = await fails(CommandExitError, () => terminal.wait());
    assert.equal(error.exitCode, 5);
    for (const expected of [/24 80/, /40 120/, /xterm-256color/]) assert.match(text.join(""), expected);
    const other = await sbx.pty.create({ cols: 80, rows: 24, onData });
    assert.equal(await sbx.pty.kill(other.pid), true);
    assert.equal(await sbx.pty.kill(other.pid), false);
    await fails(CommandExitError, () => other.wait());
  },

  async filesAreWrittenAndRead(sbx) {
    const info = await sbx.files.write("a/b.txt", "grüße\n");
    assert.equal(info.path, "/home/user/a/b.txt");
    assert.equal(await sbx.files.read("a/b.txt"), "grüße\n");
    const bytes = new Uint8Array(1_280_000).map((_, index) => index % 256);
    await sbx.files.write("/tmp/bytes", bytes.buffer);
    assert.deepEqual(await sbx.files.read("/tmp/bytes", { format: "bytes" }), bytes);
    const blob = await sbx.files.read("/tmp/bytes", { format: "blob" });
    assert.equal(blob.size, bytes.length);
    let streamed = 0;
    for await (const piece of await sbx.files.read("/tmp/bytes", { format: "stream" })) {
      streamed += piece.length;
    }
    assert.equal(streamed, bytes.length);
    await sbx.files.write("empty", "");
    assert.equal(await sbx.files.read("empty"), "");
    const stream = new Blob(["streamed ", "up"]).stream();
    await sbx.files.write("stream", stream);
    assert.equal(await sbx.files.read("stream"), "streamed up");
    const many = await sbx.files.writeFiles([
      { path: "many/1 ü", data: "1" },
      { path: "many/2", data: "2" },
    ]);
    assert.deepEqual(many.map(({ path }) => path), ["/home/user/many/1 ü", "/home/user/many/2"]);
  },

  async filesGoCompressedAndWithMetadata(sbx) {
    const text = "compress me ".repeat(10_000);
    await sbx.files.write("zipped", text, { gzip: true });
    assert.equal(await sbx.files.read("zipped", { gzip: true }), text);
    await sbx.files.write("octets", text, { useOctetStream: true });
    assert.equal(await sbx.files.read("octets"), text);
    await sbx.files.write("tagged", "x", { metadata: { author: "me" } });
    assert.deepEqual((await sbx.files.getInfo("tagged")).metadata, { author: "me" });
  },

  async missingFilesAreNotFound(sbx) {
    await fails([FileNotFoundError, NotFoundError], () => sbx.files.read("nowhere"));
    await fails([FileNotFoundError, NotFoundError], () => sbx.files.getInfo("nowhere"));
    await fails([FileNotFoundError, NotFoundError], () => sbx.files.list("nowhere"));
    await fails([FileNotFoundError, NotFoundError], () => sbx.files.rename("nowhere", "x"));
    assert.equal(await sbx.files.exists("nowhere"), false);
  },

  async directoriesAreListedAndFilesMoved(sbx) {
    assert.equal(await sbx.files.makeDir("tree/one"), true);
    assert.equal(await sbx.files.makeDir("tree/one"), false);
    await sbx.files.write("tree/one/c", "ccc");
    const listed = await sbx.files.list("tree", { depth: 2 });
    assert.deepEqual(
      listed.map(({ path, type, size }) => [path, type, type === FileType.FILE ? size : 0]),
      [
        ["/home/user/tree/one", FileType.DIR, 0],
        ["/home/user/tree/one/c", FileType.FILE, 3],
      ],
    );
    const info = await sbx.files.getInfo("tree/one/c");
    assert.equal(info.permissions, "-rw-r--r--");
    assert.equal(info.owner, "user");
    assert(Math.abs(info.modifiedTime.getTime() - Date.now()) < LIFETIME_MS, info.modifiedTime);
    const moved = await sbx.files.rename("tree/one/c", "elsewhere/d");
    assert.equal(moved.path, "/home/user/elsewhere/d");
    await sbx.files.remove("tree");
    assert.equal(await sbx.files.exists("tree"), false);
    await sbx.commands.run("ln -s elsewhere/d link");
    assert.equal((await sbx.files.getInfo("link")).symlinkTarget, "/home/user/elsewhere/d");
  },

  async directoriesAreWatched(sbx) {
    await sbx.files.makeDir("watched/below");
    await sbx.files.write("watched/old", "1");
    const seen = new Set();
    const onEvent = ({ name, type }) => seen.add(`${type} ${name}`);
    let exited = false;
    const handle = await sbx.files.watchDir("watched", onEvent, {
      recursive: true,
      onExit: () => (exited = true),
    });
    await sbx.files.write("watched/old", "22");
    await sbx.files.write("watched/below/new", "x");
    const { CREATE, WRITE, RENAME, REMOVE } = FilesystemEventType;
    const told = (...events) => until(`${events} are told`, () => events.every((one) => seen.has(one)));
    await told(`${WRITE} old`, `${CREATE} below/new`, `${WRITE} below/new`);
    await sbx.commands.run("mv watched/old watched/other");
    await told(`${RENAME} old`, `${CREATE} other`);
    await sbx.files.remove("watched/other");
    await told(`${REMOVE} other`);
    await handle.stop();
    await until("the watch ends", () => exited);
    await fails([FileNotFoundError, NotFoundError], () => sbx.files.watchDir("nowhere", onEvent));
  },

  async signedAddressesWork(sbx) {
    await sbx.files.write("signed", "by address");
    const url = await sbx.downloadUrl("signed", { useSignatureExpiration: 600 });
    assert.equal(await (await fetch(url)).text(), "by address");
    assert.equal((await fetch(url.replace("signed", "other"))).status, 401);
    const form = new FormData();
    form.append("file", new Blob(["up"]), "name");
    const upload = await fetch(await sbx.uploadUrl("uploaded"), { method: "POST", body: form });
    assert.equal(upload.status, 200);
    assert.equal(await sbx.files.read("uploaded"), "up");
  },

  async itsInfoSaysWhatWasAskedFor(sbx) {
    const info = await sbx.getInfo();
    assert.equal(info.sandboxId, sbx.sandboxId);
    assert.deepEqual(info.metadata, { who: "a b&c=d" });
    assert.equal(info.state, "running");
    const find = async (query) => {
      const pages = Sandbox.list({ query, limit: 2 });
      const found = [];
      while (pages.hasNext) found.push(...(await pages.nextItems()));
      return found.map(({ sandboxId }) => sandboxId);
    };
    assert((await find({})).includes(sbx.sandboxId));
    assert((await find({ metadata: { who: "a b&c=d" }, state: ["running"] })).includes(sbx.sandboxId));
    assert.deepEqual(await find({ metadata: { who: "else" } }), []);
    assert((await sbx.getMetrics())[0].memTotal > 0);
  },

  async itsEndIsSet(sbx) {
    const other = await Sandbox.create({ timeoutMs: LIFETIME_MS });
    await other.setTimeout(120_000);
    const left = (await other.getInfo()).endAt.getTime() - Date.now();
    assert(left > 120_000 - DEADLINE_MS && left <= 121_000, `${left}`);
    await other.setTimeout(1000);
    await until("its time is over", async () => !(await other.isRunning()));
    assert.equal(await other.kill(), false);
  },

  async itIsPausedAndResumed(sbx) {
    const other = await Sandbox.create({ timeoutMs: LIFETIME_MS, envs: { KEPT: "yes" } });
    await other.files.write("kept", "still here");
    assert.equal(await other.pause(), true);
    assert.equal(await other.pause(), false);
    assert.equal(await other.isRunning(), false);
    assert.equal((await Sandbox.getInfo(other.sandboxId)).state, "paused");
    const resumed = await Sandbox.connect(other.sandboxId, { timeoutMs: LIFETIME_MS });
    const result = await resumed.commands.run("cat kept; echo $KEPT");
    assert.equal(result.stdout, "still hereyes\n");
    assert.equal(await resumed.kill(), true);
    await fails(SandboxNotFoundError, () => Sandbox.connect(other.sandboxId));
    const again = await Sandbox.connect(sbx.sandboxId);
    assert.equal((await again.commands.run("echo same")).stdout, "same\n");
  },

  async whatIsPausedResumesByItself() {
    const lifecycle = { onTimeout: "pause", autoResume: true };
    const other = await Sandbox.create({ timeoutMs: LIFETIME_MS, lifecycle });
    await other.files.write("kept", "x");
    await other.setTimeout(0);
    const state = async () => (await Sandbox.getInfo(other.sandboxId)).state;
    await until("it is paused", async () => (await state()) === "paused");
    assert.equal(await other.files.read("kept"), "x");
    assert.equal(await state(), "running");
    assert.equal(await other.kill(), true);
  },

  async nothingOfAKilledOneRuns() {
    const other = await Sandbox.create({ timeoutMs: LIFETIME_MS });
    const handle = await other.commands.run("sleep 300", { background: true });
    assert.equal(await Sandbox.kill(other.sandboxId), true);
    const error = await fails(Error, () => handle.wait());
    assert(!(error instanceof CommandExitError), error);
    assert.equal(await other.isRunning(), false);
    await fails([TimeoutError, SandboxError], () => other.commands.run("true"));
    assert.equal(await Sandbox.kill(other.sandboxId), false);
  },

  async whatCannotBeKeptIsRefused(sbx) {
    await fails(SandboxError, () => Sandbox.create("no-such-template"));
    const network = { allowOut: ["example.com"], denyOut: ["0.0.0.0/0"] };
    await fails(SandboxError, () => Sandbox.create({ network }));
    await fails(SandboxError, () => sbx.createSnapshot());
  },
};

let failed = 0;
for (const [name, check] of Object.entries(checks)) {
  const started = Date.now();
  const options = { metadata: { who: "a b&c=d" }, envs: { FROM_SANDBOX: "a" } };
  let sbx;
  try {
    sbx = await Sandbox.create({ timeoutMs: LIFETIME_MS, ...options });
    await check(sbx);
    console.log(`ok ${name} (${Date.now() - started} ms)`);
  } catch (error) {
    failed += 1;
    console.log(`FAILED ${name}\n${error.stack}`);
  } finally {
    await sbx?.kill();
  }
}
const all = Object.keys(checks).length;
console.log(`${all - failed} of ${all} good`);
process.exit(failed ? 1 : 0);
