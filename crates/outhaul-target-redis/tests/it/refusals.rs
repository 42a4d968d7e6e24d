//! What a server refuses, and that it is delivered once it no longer does.

use std::time::{Duration, Instant};

use outhaul_services::{Access, Kind, Server};
use outhaul_target::{ErrorKind, Target, Verdict};

use crate::support::{Broker, is, one, redis, until_delivered};

const HOLD: Verdict = Verdict::Hold;

/// Delivers, has the server refuse, expects the word, and repairs it.
async fn refuses(broker: &Broker, kind: ErrorKind, word: &str, wrong: &[&str], right: &[&str]) {
    for place in ["stream=s", "list=l", "stream=d&outhaul.dedup=5"] {
        let target = broker.redis(&format!("?outhaul.{place}&outhaul.timeout=5s"));
        one(&target).await.unwrap();
        for line in wrong {
            let _: redis::Value = broker.say(line).await;
        }
        let fresh = broker.redis(&format!("?outhaul.{place}&outhaul.timeout=5s"));
        for target in [&target, &fresh] {
            is(&one(target).await.unwrap_err(), kind, kind.verdict(), word);
        }
        for line in right {
            let _: redis::Value = broker.say(line).await;
        }
        for target in [&target, &fresh] {
            until_delivered(target).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_out_of_memory_holds() {
    let broker = Broker::plain();
    let (wrong, right) = (["CONFIG SET maxmemory 1"], ["CONFIG SET maxmemory 0"]);
    refuses(&broker, ErrorKind::Unavailable, "OOM", &wrong, &right).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_holds() {
    let broker = Broker::plain();
    let (wrong, right) = (["REPLICAOF 127.0.0.1 1"], ["REPLICAOF NO ONE"]);
    refuses(&broker, ErrorKind::Unavailable, "READONLY", &wrong, &right).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_without_its_primary_holds() {
    let broker = Broker::start(Server::builder(Kind::Redis).config("replica-serve-stale-data no"));
    let target = broker.redis("?outhaul.stream=s");
    let _: redis::Value = broker.say("REPLICAOF 127.0.0.1 1").await;
    is(&one(&target).await.unwrap_err(), ErrorKind::Unavailable, HOLD, "MASTERDOWN");
    is(&target.probe().await.unwrap_err(), ErrorKind::Unavailable, HOLD, "MASTERDOWN");
    let _: redis::Value = broker.say("REPLICAOF NO ONE").await;
    until_delivered(&target).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_without_its_replicas_holds() {
    let broker = Broker::plain();
    let (wrong, right) = (["CONFIG SET min-replicas-to-write 1"], ["CONFIG SET min-replicas-to-write 0"]);
    refuses(&broker, ErrorKind::Unavailable, "NOREPLICAS", &wrong, &right).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_cannot_save_holds() {
    let broker = Broker::start(Server::builder(Kind::Redis).config("save 100000 1"));
    let target = broker.redis("?outhaul.stream=s");
    one(&target).await.unwrap();
    let data = broker.server().directory().join("data");
    std::fs::remove_dir_all(data).unwrap();
    let _: redis::Value = broker.say("BGSAVE").await;
    let began = Instant::now();
    while !broker.say::<String>("INFO persistence").await.contains("rdb_last_bgsave_status:err") {
        assert!(began.elapsed() < Duration::from_secs(30), "saving does not fail");
        // bounded: as said above.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    is(&one(&target).await.unwrap_err(), ErrorKind::Unavailable, HOLD, "MISCONF");
    is(&target.probe().await.unwrap_err(), ErrorKind::Unavailable, HOLD, "MISCONF");
    let _: redis::Value = broker.say("CONFIG SET stop-writes-on-bgsave-error no").await;
    until_delivered(&target).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_of_another_type_holds_and_the_probe_says_so() {
    let broker = Broker::plain();
    let _: redis::Value = broker.say("SET k taken").await;
    for place in ["stream=k", "list=k", "stream=k&outhaul.dedup=5"] {
        let target = broker.redis(&format!("?outhaul.{place}"));
        is(&one(&target).await.unwrap_err(), ErrorKind::Configuration, HOLD, "WRONGTYPE");
        is(&target.probe().await.unwrap_err(), ErrorKind::Configuration, HOLD, "the key is a string");
    }
    let _: redis::Value = broker.say("DEL k").await;
    let target = broker.redis("?outhaul.list=k");
    target.probe().await.unwrap();
    one(&target).await.unwrap();
    target.probe().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_script_that_does_not_end_means_retry() {
    let broker = Broker::start(Server::builder(Kind::Redis).config("lua-time-limit 1"));
    let target = broker.redis("?outhaul.stream=s&outhaul.timeout=5s");
    one(&target).await.unwrap();
    let busy = broker.client().await;
    let (client, fresh) = (broker.client().await, broker.redis("?outhaul.stream=s&outhaul.timeout=5s"));
    let script = async {
        let mut script = redis::cmd("EVAL");
        script.arg("while true do end").arg(0).query_async::<redis::Value>(&mut busy.redis.clone()).await
    };
    let meanwhile = async {
        // bounded: the script is sent at once, and the server counts its milliseconds.
        while client.say::<redis::Value>("PING").await.is_ok() {
            tokio::task::yield_now().await;
        }
        for target in [&target, &fresh] {
            is(&one(target).await.unwrap_err(), ErrorKind::Overloaded, Verdict::Retry, "BUSY");
        }
        let _: redis::Value = client.say("SCRIPT KILL").await.unwrap();
    };
    let (ended, ()) = tokio::join!(script, meanwhile);
    assert!(ended.is_err(), "the script was killed");
    until_delivered(&target).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_may_not_do_holds() {
    let broker = Broker::plain();
    let as_me = |place: &str| redis(&format!("redis://me:pw@{}?outhaul.{place}", broker.proxy.address()));
    let may = async |what: &str| {
        let _: redis::Value = broker.say(&format!("ACL SETUSER me reset on >pw {what}")).await;
    };
    // All that a stream needs. The rest is asked for where one may.
    may("~s +xadd +multi +exec").await;
    let target = as_me("stream=s");
    one(&target).await.unwrap();
    target.probe().await.unwrap();
    is(&one(&as_me("stream=other")).await.unwrap_err(), ErrorKind::Permission, HOLD, "NOPERM");
    is(&one(&as_me("list=s")).await.unwrap_err(), ErrorKind::Permission, HOLD, "NOPERM");
    is(&one(&as_me("stream=s&outhaul.dedup=5")).await.unwrap_err(), ErrorKind::Permission, HOLD, "NOPERM");
    // Without transactions nothing is sent at all.
    may("~s +xadd").await;
    is(&one(&as_me("stream=s")).await.unwrap_err(), ErrorKind::Permission, HOLD, "NOPERM");
    assert_eq!(broker.streamed("s").await.len(), 1);
    may("&c +publish +multi +exec").await;
    assert_eq!(
        one(&as_me("channel=c")).await.unwrap_err().kind(),
        ErrorKind::Conflict,
        "nobody is subscribed"
    );
    is(&one(&as_me("channel=d")).await.unwrap_err(), ErrorKind::Permission, HOLD, "NOPERM");
}

#[tokio::test(flavor = "multi_thread")]
async fn credentials_are_asked_for_read_from_files_and_refused() {
    let broker = Broker::start(Server::builder(Kind::Redis).access(Access::Password));
    is(
        &one(&broker.redis("?outhaul.stream=s")).await.unwrap_err(),
        ErrorKind::Authentication,
        HOLD,
        "NOAUTH",
    );
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("password");
    std::fs::write(&file, "wr0ng").unwrap();
    let rest =
        format!("{}?outhaul.stream=s&outhaul.password_file={}", broker.proxy.address(), file.display());
    let target = redis(&format!("redis://outhaul@{rest}"));
    let error = one(&target).await.unwrap_err();
    is(&error, ErrorKind::Authentication, HOLD, "WRONGPASS");
    assert!(!format!("{error:?}").contains("wr0ng"));
    std::fs::write(&file, "k@pt/n:secret\n").unwrap();
    one(&target).await.unwrap();
    // Where nobody has a password, one that is sent is wrong.
    let open = Broker::plain();
    let error =
        one(&redis(&format!("redis://:pw@{}?outhaul.stream=s", open.proxy.address()))).await.unwrap_err();
    is(&error, ErrorKind::Authentication, HOLD, "ERR");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_is_not_there_holds() {
    let broker = Broker::plain();
    let error = one(&broker.redis("/99?outhaul.stream=s")).await.unwrap_err();
    is(&error, ErrorKind::Configuration, HOLD, "database 99");
}

#[tokio::test(flavor = "multi_thread")]
async fn too_many_clients_reject_nothing() {
    let broker = Broker::plain();
    let client = broker.client().await;
    let _: redis::Value = client.say("CONFIG SET maxclients 1").await.unwrap();
    let target = broker.redis("?outhaul.stream=s");
    // The server says why and hangs up at once, which may be quicker than we are.
    let error = one(&target).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Overloaded | ErrorKind::ConnectionReset), "{error:?}");
    let _: redis::Value = client.say("CONFIG SET maxclients 100").await.unwrap();
    until_delivered(&target).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_speak_the_protocol_holds() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let other = std::thread::spawn(move || {
        let (mut line, _) = listener.accept().unwrap();
        std::io::Write::write_all(&mut line, b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
    });
    let error = one(&redis(&format!("redis://{address}?outhaul.stream=s"))).await.unwrap_err();
    other.join().unwrap();
    assert_eq!(error.verdict(), HOLD, "{error:?}");
}
