//! The tool traits for smart pointers.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::Value;

use super::{
    Answer, AskUser, DynTool, OpenContext, Progress, ProviderError, Question, Requirements,
    ToolError, ToolProvider, ToolSet,
};
use crate::sandbox::Sandbox;

macro_rules! forward_to_pointee {
    ($pointer:ident) => {
        #[async_trait]
        impl<T: ToolProvider + ?Sized> ToolProvider for $pointer<T> {
            fn name(&self) -> &str {
                (**self).name()
            }

            fn provides_sandbox(&self) -> bool {
                (**self).provides_sandbox()
            }

            fn identity(&self) -> Value {
                (**self).identity()
            }

            fn requirements(&self) -> Requirements {
                (**self).requirements()
            }

            async fn open(&self, cx: OpenContext) -> Result<Box<dyn ToolSet>, ProviderError> {
                (**self).open(cx).await
            }
        }

        #[async_trait]
        impl<T: AskUser + ?Sized> AskUser for $pointer<T> {
            fn is_available(&self) -> bool {
                (**self).is_available()
            }

            async fn ask(&self, question: Question) -> Result<Answer, ToolError> {
                (**self).ask(question).await
            }
        }

        impl<T: Progress + ?Sized> Progress for $pointer<T> {
            fn output(&self, text: &str) {
                (**self).output(text);
            }
        }
    };
}

forward_to_pointee!(Arc);
forward_to_pointee!(Box);

#[async_trait]
impl<T: ToolSet + ?Sized> ToolSet for Box<T> {
    fn tools(&self) -> Vec<DynTool> {
        (**self).tools()
    }

    fn sandbox(&self) -> Option<Arc<dyn Sandbox>> {
        (**self).sandbox()
    }

    async fn close(self: Box<Self>) -> Result<(), ProviderError> {
        (*self).close().await
    }

    async fn suspend(self: Box<Self>) -> Result<(), ProviderError> {
        (*self).suspend().await
    }
}
