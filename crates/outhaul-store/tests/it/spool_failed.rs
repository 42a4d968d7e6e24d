//! The failed store over a spool: files that RustFS reads, and those that it left.

use std::fs;
use std::path::PathBuf;

use outhaul_store::event::Uid;
use outhaul_store::spool::rqp1;
use outhaul_store::{
    Engine, Log, Outcome, QueueSettings, Requeued, Rule, Settlement, Shards, Store, StoreError, StoreOptions,
};

use crate::spool::copy_dir;
use crate::support::{admission, check_sums, failed, name};

async fn open(dir: &std::path::Path) -> Store {
    let options = StoreOptions { engine: Engine::Spool, ..StoreOptions::default() };
    let store = Store::open(dir, options).await.unwrap();
    for queue in ["a", "primary"] {
        store.log().attach(&name(queue), QueueSettings::default()).unwrap();
    }
    store
}

async fn waiting(log: &dyn Log, queue: &str) -> Vec<outhaul_store::Entry> {
    let lease = log.lease(Shards::All).await.unwrap();
    lease.read(&name(queue), 0, 1000, 64 << 20).await.unwrap().entries
}

async fn requeue(store: &Store, uid: &Uid) -> Requeued {
    store.failed().requeue(std::slice::from_ref(uid)).await.remove(0).unwrap()
}

#[tokio::test]
async fn a_failed_entry_is_a_file_of_rustfs_and_comes_back_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    assert!(store.log().append(vec![admission(1, &["a"])]).await[0].is_ok());
    let entry = waiting(&**store.log(), "a").await.remove(0);
    let failed_dir = dir.path().join("spool/outhaul-a/failed");
    assert!(!failed_dir.exists(), "it is created with the first entry");
    let mut one = failed("a", 1);
    one.uid = entry.place.uid.clone();
    one.failure.detail = "HTTP 400".to_owned();
    store.failed().put(vec![one.clone()]).await.unwrap();
    // The same again is nothing.
    store.failed().put(vec![one.clone()]).await.unwrap();
    let files: Vec<PathBuf> = fs::read_dir(&failed_dir).unwrap().map(|file| file.unwrap().path()).collect();
    assert_eq!(files.len(), 1);
    let (metadata, body) = rqp1::decode(&fs::read(&files[0]).unwrap().into()).unwrap();
    let failure = metadata.failure.unwrap();
    assert_eq!((&failure.error_class[..], &failure.error_detail[..]), ("Terminal", "HTTP 400"));
    assert_eq!((failure.failed_at_unix_ms, failure.retry_count), (7, 1));
    assert_eq!((failure.nats_msg_id, body), (one.dedup_id.to_string(), one.event.body().clone()));
    // The process ends between the copy and the removal: the entry goes at the next open.
    store.close().await.unwrap();
    drop(store);
    let store = open(dir.path()).await;
    assert!(waiting(&**store.log(), "a").await.is_empty());
    let again = store.failed().get(&one.uid).await.unwrap().unwrap();
    assert_eq!((&again.event, &again.failure), (&one.event, &one.failure));
    assert_eq!((again.dedup_id, again.admitted_ms), (one.dedup_id, one.admitted_ms));
    check_sums(&**store.log());
    store.close().await.unwrap();
}

#[tokio::test]
async fn a_requeue_is_done_once_whatever_is_asked() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    assert!(store.log().append(vec![admission(1, &["a"])]).await[0].is_ok());
    let entry = waiting(&**store.log(), "a").await.remove(0);
    let mut one = failed("a", 1);
    one.uid = entry.place.uid.clone();
    store.failed().put(vec![one.clone()]).await.unwrap();
    let lease = store.log().lease(Shards::All).await.unwrap();
    lease.settle(vec![Settlement { place: entry.place, outcome: Outcome::Failed }]).await.unwrap();
    let (first, second) = (requeue(&store, &one.uid).await, requeue(&store, &one.uid).await);
    assert_eq!((first.requeued_as.clone(), second.again), (second.requeued_as, true));
    let now = waiting(&**store.log(), "a").await;
    assert_eq!((now.len(), now[0].requeue_of), (1, Some(one.uid.sequence)));
    assert_eq!(now[0].dedup_id, one.dedup_id);
    assert_eq!(store.failed().count(Some(&name("a"))), 0);
    store.close().await.unwrap();
    drop((lease, store));
    let store = open(dir.path()).await;
    assert_eq!(requeue(&store, &one.uid).await.requeued_as, first.requeued_as);
    assert_eq!(waiting(&**store.log(), "a").await.len(), 1);
    store.close().await.unwrap();
}

#[tokio::test]
async fn what_rustfs_left_in_its_failed_store_is_listed_and_can_be_requeued() {
    let dir = tempfile::tempdir().unwrap();
    let golden = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/rustfs/rustfs-webhook-primary");
    drop(open(dir.path()).await);
    let own = dir.path().join("spool/rustfs-webhook-primary");
    copy_dir(&golden, &own);
    fs::write(own.join("failed/01890a5d-ac96-774b-bcce-b302099a8010"), "no entry").unwrap();
    fs::write(own.join("failed/01890a5d-ac96-774b-bcce-b302099a8011.x.tmp"), "half").unwrap();
    let store = open(dir.path()).await;
    let entries = waiting(&**store.log(), "primary").await.len();
    let page = store.failed().list(&name("primary"), 0, 10).await.unwrap();
    assert_eq!(page.len(), 1);
    let found = &page[0];
    assert_eq!(found.event.subject(), Some("bad.jpg"));
    assert_eq!((found.failure.rule, &found.failure.detail[..]), (Rule::Rejected, "stream not found"));
    assert_eq!((found.failure.attempts, found.failure.failed_ms), (5, 1_700_000_005_000));
    assert_eq!(found.dedup_id.to_string(), "7b0a3b6e-1f6f-4c65-9d7e-2f8d6f3f0c12");
    assert_eq!(store.failed().unreadable().len(), 1);
    requeue(&store, &found.uid).await;
    let now = waiting(&**store.log(), "primary").await;
    assert_eq!(now.len(), entries + 1);
    assert_eq!(now.last().unwrap().event.as_ref().unwrap(), &found.event);
    // What cannot be read is left for a person.
    let mut left: Vec<_> =
        fs::read_dir(own.join("failed")).unwrap().map(|file| file.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["01890a5d-ac96-774b-bcce-b302099a8010"]);
    store.close().await.unwrap();
}

#[tokio::test]
async fn a_directory_of_another_engine_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path()).await);
    let refused = Store::open(dir.path(), StoreOptions::default()).await.unwrap_err();
    assert!(matches!(&refused, StoreError::OtherEngine { found, .. } if found == "spool"), "{refused}");
    let options = StoreOptions { engine: Engine::Spool, read_only: true, ..StoreOptions::default() };
    assert!(Store::open(dir.path(), options).await.is_ok());
    let uid = Uid { queue: name("a"), sequence: 1 };
    assert!(open(dir.path()).await.failed().get(&uid).await.unwrap().is_none());
}
