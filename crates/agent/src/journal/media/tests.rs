use std::os::unix::fs::PermissionsExt as _;

use serde_json::json;

use super::*;

/// Returns a value without its media, and the same value with its media restored.
fn through(files: &MediaFiles, value: &Value) -> (Value, Value) {
    let mut out = value.clone();
    files.extract(&mut out).unwrap();
    let mut back = out.clone();
    files.restore(&mut back).unwrap();
    (out, back)
}

#[test]
fn media_are_extracted_once_each_and_restored() {
    let directory = tempfile::tempdir().unwrap();
    let files = MediaFiles::new(directory.path());
    let block = json!({"kind": "image_content_block", "data": BASE64.encode("a picture")});
    let record = json!({"content": ["see", block, {"deep": [block]}]});
    let (out, back) = through(&files, &record);
    assert_eq!(back, record);
    let digest = format!("{:x}", Sha256::digest("a picture"));
    let left = json!({"kind": "image_content_block", "sha256": digest});
    assert_eq!(out, json!({"content": ["see", left, {"deep": [left]}]}));
    let kept: Vec<_> = fs::read_dir(&files.0)
        .unwrap()
        .map(|it| it.unwrap().path())
        .collect();
    assert_eq!(kept, [files.0.join(digest)]);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&files.0), mode(&kept[0])), (0o700, 0o600));
}

#[test]
fn objects_that_look_like_media_are_unchanged() {
    let directory = tempfile::tempdir().unwrap();
    let files = MediaFiles::new(directory.path());
    for value in [
        json!({"kind": "image_content_block", "data": "no base64"}),
        json!({"kind": "image_content_block", "data": 7}),
        json!({"kind": "image_content_block", "data": "AAAA", "note": "mine"}),
        json!({"kind": "x_content_block", "sha256": "../journal.jsonl"}),
        json!({"kind": "x_content_block", "sha256": "0".repeat(64)}),
        json!("_content_block"),
    ] {
        assert_eq!(through(&files, &value), (value.clone(), value));
    }
}
