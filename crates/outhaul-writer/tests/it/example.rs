//! The example is compiled and run.

#[path = "../../examples/kv_sink.rs"]
#[expect(dead_code, reason = "its main is for a person")]
mod kv_sink;

#[tokio::test]
async fn the_example_writes_everything() {
    let dir = tempfile::tempdir().unwrap();
    let summary = kv_sink::run(dir.path(), 500).await.unwrap();
    assert_eq!(summary, "applied=500 failed=0 waiting=0");
}
