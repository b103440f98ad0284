use super::*;

#[test]
fn a_run_id_is_32_hexadecimal_digits_and_reads_back() {
    let id = RunId::new();
    let text = id.to_string();
    assert_eq!(text.len(), 32);
    assert!(text.bytes().all(|byte| byte.is_ascii_hexdigit()), "{text}");
    assert_eq!(text.parse::<RunId>().expect("an id"), id);
    assert_eq!(
        serde_json::from_str::<RunId>(&format!("\"{text}\"")).expect("an id"),
        id
    );
    assert_eq!(
        "x".parse::<RunId>().unwrap_err().to_string(),
        "not a run id: expected 32 hexadecimal digits"
    );
}

#[test]
fn run_ids_sort_by_creation_time() {
    let ids: Vec<RunId> = (0..100).map(|_| RunId::new()).collect();
    assert!(ids.is_sorted_by(|a, b| a < b && a.to_string() < b.to_string()));
}
