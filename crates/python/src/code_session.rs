//! Python for callers that know only the traits of [`cantle_core::code`].

use std::sync::Arc;

use async_trait::async_trait;
use cantle_core::code::{
    CodeEnd, CodeError, CodeInterpreter, CodeObserver, CodeRequest, CodeSession,
};
use cantle_core::sandbox::{Sandbox, SandboxError};

use crate::execution::ExecutionOutcome;
use crate::interpreter::{Interpreter, PythonSession};
use crate::kernel::LongOutput;

impl CodeInterpreter for Interpreter {
    fn open_session(&self, sandbox: Arc<dyn Sandbox>) -> Arc<dyn CodeSession> {
        Arc::new(self.attach(sandbox))
    }
}

/// The source is not checked: syntax errors come from the Python that executes it.
#[async_trait]
impl CodeSession for PythonSession {
    async fn execute(
        &self,
        request: CodeRequest,
        observer: &mut dyn CodeObserver,
    ) -> Result<CodeEnd, SandboxError> {
        let python = match self.python().await? {
            Ok(python) => &python.program,
            Err(reason) => {
                let error = CodeError::new("InterpreterNotStarted", reason);
                return Ok(CodeEnd::new(Some(error), Vec::new()));
            }
        };
        // The observer has all of the output, and nothing would name the files.
        let executed = self.execute_in(python, &request, LongOutput::Passed, observer);
        let mut execution = executed.await?;
        let name = match execution.outcome {
            ExecutionOutcome::Completed | ExecutionOutcome::Raised => {
                return Ok(CodeEnd::new(execution.error, execution.notes));
            }
            ExecutionOutcome::TimedOut => "TimeoutError",
            ExecutionOutcome::Cancelled => "KeyboardInterrupt",
            ExecutionOutcome::SetupFailed | ExecutionOutcome::Refused => "InterpreterNotStarted",
            _ => "InterpreterEnded",
        };
        let mut error = CodeError::new(name, execution.notes.join(" "));
        if let Some(raised) = execution.error.take() {
            error.traceback = raised.traceback;
        }
        Ok(CodeEnd::new(Some(error), Vec::new()))
    }

    async fn end(&self, context: &str) {
        self.restart(context).await;
        self.remove(context).await;
    }
}
