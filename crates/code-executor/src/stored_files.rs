//! The tools for files that are stored.

use std::time::Duration;

use bytes::Bytes;
use cantle_core::principal::Level;
use cantle_core::sandbox::{
    ByteRange, Sandbox as _, SandboxError, SandboxErrorKind, SandboxPath, WriteOptions,
};
use cantle_core::tool::{DynTool, ToolContext, ToolError, ToolOutput};
use cantle_files::{FileId, FileRecord, Files, NewFile, safe_name};
use futures_util::TryStreamExt as _;
use serde_json::{Value, json};

/// Time of a call, in which a large file is copied.
const CALL_TIMEOUT: Duration = Duration::from_secs(300);
/// Characters of a document that a model gets.
const MAX_DOCUMENT: usize = 10_000;
/// Bytes of which those characters may consist.
const MAX_DOCUMENT_BYTES: u64 = 4 * MAX_DOCUMENT as u64;
/// Files of one list.
const LISTED: u32 = 50;

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct File {
    /// The UUID of the file.
    file_id: String,
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Page {
    /// The UUID of the last file of the page before.
    after: Option<String>,
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Document {
    /// The name of the file.
    filename: String,
    /// The text of the file.
    content: String,
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Upload {
    /// Path of the file in the sandbox.
    path: String,
}

pub(crate) fn tools(files: &Files) -> Vec<DynTool> {
    vec![
        tool(
            files,
            "load_file",
            "Load a stored file for run_python. Returns the local_path where the file was saved (e.g. /tmp/data.csv).",
            load,
        ),
        tool(
            files,
            "list_files",
            "List stored files, 50 newest first.",
            list,
        ),
        tool(
            files,
            "get_file_link",
            "Get the address of a stored file.",
            link,
        ),
        tool(
            files,
            "read_document",
            "Read the text of a stored file.",
            read,
        ),
        tool(files, "create_document", "Store a text file.", create),
        tool(files, "upload_file", "Store a file of the sandbox.", upload),
        tool(files, "delete_file", "Delete a stored file.", delete).with_level(Level::User),
    ]
}

fn tool<P, F, Fut>(files: &Files, name: &str, description: &str, call: F) -> DynTool
where
    P: serde::de::DeserializeOwned + schemars::JsonSchema + Send + 'static,
    F: Fn(Files, P, ToolContext) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<ToolOutput, ToolError>> + Send + 'static,
{
    let files = files.clone();
    DynTool::from_fn(name, description, move |params, cx| {
        call(files.clone(), params, cx)
    })
    .with_timeout(Some(CALL_TIMEOUT))
}

fn parse(id: &str) -> Result<FileId, ToolError> {
    FileId::try_parse(id).map_err(|_| ToolError::failed("badly formed hexadecimal UUID string"))
}

async fn find(files: &Files, id: &str, cx: &ToolContext) -> Result<FileRecord, ToolError> {
    let owner = cx.require_principal()?.id().as_str();
    Ok(files.find(owner, parse(id)?).await?)
}

/// Describes a stored file. Without an address it is still found by its id.
async fn described(files: &Files, record: &FileRecord) -> Value {
    let url = files.url(record).await.ok().flatten();
    description(record, url.as_deref())
}

fn description(record: &FileRecord, url: Option<&str>) -> Value {
    json!({
        "file_id": record.id, "filename": record.filename, "url": url, "size_bytes": record.size_bytes,
        "mime_type": record.mime_type, "created_at": record.created_at,
    })
}

async fn load(files: Files, params: File, cx: ToolContext) -> Result<ToolOutput, ToolError> {
    let record = find(&files, &params.file_id, &cx).await?;
    let sandbox = cx.require_sandbox()?;
    let mut directory = SandboxPath::new("/tmp").map_err(SandboxError::from)?;
    // Without namespaces, that is the host's.
    if let Err(error) = sandbox.stat(&directory).await
        && error.kind() == SandboxErrorKind::OutsideSandbox
    {
        directory.clone_from(&sandbox.info().working_directory);
    }
    // Another program may have written the record.
    let path = directory.join(safe_name(&record.filename));
    let path = path.map_err(SandboxError::from)?;
    let content = files.content(&record, None).await?;
    let content = content.map_err(SandboxError::from);
    let options = WriteOptions::default().with_size(record.size_bytes);
    sandbox.write(&path, options, Box::pin(content)).await?;
    Ok(crate::json(&json!({
        "file_id": record.id, "filename": record.filename, "local_path": path.to_string(),
        "size_bytes": record.size_bytes, "mime_type": record.mime_type,
    })))
}

async fn list(files: Files, params: Page, cx: ToolContext) -> Result<ToolOutput, ToolError> {
    let owner = cx.require_principal()?.id().as_str();
    let after = params.after.as_deref().map(parse).transpose()?;
    let mut listed = Vec::new();
    for record in files.list(owner, after, LISTED).await? {
        listed.push(described(&files, &record).await);
    }
    Ok(crate::json(&json!({ "files": listed })))
}

async fn link(files: Files, params: File, cx: ToolContext) -> Result<ToolOutput, ToolError> {
    let record = find(&files, &params.file_id, &cx).await?;
    let url = files.url(&record).await?;
    Ok(crate::json(&description(&record, url.as_deref())))
}

async fn read(files: Files, params: File, cx: ToolContext) -> Result<ToolOutput, ToolError> {
    let record = find(&files, &params.file_id, &cx).await?;
    let range = 0..record.size_bytes.min(MAX_DOCUMENT_BYTES);
    let content = files.content(&record, Some(range)).await?;
    let chunks: Vec<Bytes> = content.try_collect().await?;
    let text = String::from_utf8_lossy(&chunks.concat()).into_owned();
    let cut: String = text.chars().take(MAX_DOCUMENT).collect();
    let truncated = cut.len() < text.len() || record.size_bytes > MAX_DOCUMENT_BYTES;
    Ok(crate::json(&json!({
        "file_id": record.id, "filename": record.filename, "content": cut, "truncated": truncated,
    })))
}

async fn create(files: Files, params: Document, cx: ToolContext) -> Result<ToolOutput, ToolError> {
    let owner = cx.require_principal()?.id().as_str();
    let new = NewFile::named(params.filename)
        .with_group("documents")
        .with_run(cx.run.to_string());
    let record = files.put_bytes(owner, new, params.content).await?;
    Ok(crate::json(&described(&files, &record).await))
}

async fn upload(files: Files, params: Upload, cx: ToolContext) -> Result<ToolOutput, ToolError> {
    let owner = cx.require_principal()?.id().as_str();
    let path = SandboxPath::new(&params.path).map_err(SandboxError::from)?;
    let content = cx.require_sandbox()?.read(&path, ByteRange::all()).await?;
    let new = NewFile::named(params.path).with_run(cx.run.to_string());
    let record = files.put(owner, new, content).await?;
    Ok(crate::json(&described(&files, &record).await))
}

async fn delete(files: Files, params: File, cx: ToolContext) -> Result<ToolOutput, ToolError> {
    let owner = cx.require_principal()?.id().as_str();
    let record = files.remove(owner, parse(&params.file_id)?).await?;
    Ok(crate::json(
        &json!({ "file_id": record.id, "filename": record.filename, "deleted": true }),
    ))
}
