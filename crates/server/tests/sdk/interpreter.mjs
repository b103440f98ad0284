// What users of E2B's code interpreter call, against the server that E2B_API_URL names.

import assert from 'node:assert/strict'

const { Sandbox } = await import(process.env.E2B_PACKAGE)

const sandbox = await Sandbox.create({ timeoutMs: 600_000 })
try {
  const output = []
  await sandbox.runCode("x = 20\nprint('out')", { onStdout: (message) => output.push(message.line) })
  assert.deepEqual(output, ['out\n'])
  const execution = await sandbox.runCode('x + 1')
  assert.deepEqual([execution.text, execution.executionCount], ['21', 2])
  const failed = await sandbox.runCode('1 / 0')
  assert.equal(failed.error.name, 'ZeroDivisionError')
  const context = await sandbox.createCodeContext({ language: 'javascript' })
  const script = await sandbox.runCode('console.log(1 + 2)', { context })
  assert.deepEqual(script.logs.stdout, ['3\n'])
  await sandbox.restartCodeContext(context.id)
  await sandbox.removeCodeContext(context.id)
  const left = await sandbox.listCodeContexts()
  assert.ok(!left.some(({ id }) => id === context.id))
} finally {
  await sandbox.kill()
}
