//! What the answers of the server mean.

use std::collections::HashSet;

use outhaul_services::{Access, Kind, Server};
use outhaul_target::outhaul_event::Event;
use outhaul_target::testkit::attempt;
use outhaul_target::{ErrorKind, Target, Verdict};

use crate::support::{Broker, Subscriber, TOPIC, arrival, event, mqtt, one};

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_one_may_not_publish_to_holds_and_the_others_go_on() {
    let directory = tempfile::tempdir().unwrap();
    let rules = directory.path().join("acl");
    std::fs::write(&rules, "topic write open/#\n").unwrap();
    let broker = Broker::start(Server::builder(Kind::Mqtt).config(format!("acl_file {}", rules.display())));
    let target = broker.mqtt("/{subject}/x");
    let about = |subject: &str| {
        attempt(Event::builder("t", "/s").subject(subject).pid(subject).json("{}").build().unwrap())
    };
    let mut results = target.deliver(&[about("open"), about("secret")]).await;
    let error = results.remove(1).unwrap_err();
    assert_eq!((error.kind(), error.verdict()), (ErrorKind::Permission, Verdict::Hold), "{error:?}");
    results.remove(0).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_nobody_wants_is_delivered_unless_it_shall_hold() {
    let broker = Broker::plain();
    one(&broker.mqtt(&format!("/{TOPIC}"))).await.unwrap();
    let target = broker.mqtt(&format!("/{TOPIC}?outhaul.unheard=hold"));
    let error = one(&target).await.unwrap_err();
    assert_eq!((error.kind(), error.verdict()), (ErrorKind::DestinationMissing, Verdict::Hold));
    let subscriber = Subscriber::start(&broker, &[TOPIC]).await;
    one(&target).await.unwrap();
    assert_eq!(subscriber.heard().await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_the_quality_of_service_holds() {
    let broker = Broker::start(Server::builder(Kind::Mqtt).config("max_qos 1"));
    let target = broker.mqtt(&format!("/{TOPIC}?outhaul.qos=2"));
    for _ in 0..2 {
        let error = one(&target).await.unwrap_err();
        assert_eq!((error.kind(), error.verdict()), (ErrorKind::Configuration, Verdict::Hold), "{error:?}");
        assert!(error.detail().contains("QoS 1"), "{error:?}");
    }
    one(&broker.mqtt(&format!("/{TOPIC}"))).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_file_is_read_at_each_connection() {
    let broker = Broker::start(Server::builder(Kind::Mqtt).access(Access::Password));
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("password");
    for version in ["5", "3.1.1"] {
        std::fs::write(&file, "wrong").unwrap();
        let address = broker.proxy.address();
        let options = format!("outhaul.password_file={}&outhaul.version={version}", file.display());
        let target = mqtt(&format!("mqtt://outhaul@{address}/{TOPIC}?{options}"));
        let error = one(&target).await.unwrap_err();
        assert_eq!((error.kind(), error.verdict()), (ErrorKind::Authentication, Verdict::Hold), "{error:?}");
        std::fs::write(&file, "k@pt/n:secret\n").unwrap();
        one(&target).await.unwrap();
        std::fs::remove_file(&file).unwrap();
        broker.proxy.cut();
        // The connection is made again, which needs the file.
        let mut kinds = Vec::new();
        for _ in 0..50 {
            kinds = target.deliver(&[event("p", "2")]).await;
            if kinds[0].is_err() {
                break;
            }
        }
        assert_eq!(kinds.remove(0).unwrap_err().kind(), ErrorKind::Configuration);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_clients_of_one_name_take_turns_and_lose_nothing() {
    let broker = Broker::plain();
    let subscriber = Subscriber::start(&broker, &[TOPIC]).await;
    let [first, second] = [(), ()].map(|()| broker.mqtt(&format!("/{TOPIC}?outhaul.client_id=same")));
    for n in 0..10 {
        for (target, id) in [(&first, format!("first-{n}")), (&second, format!("second-{n}"))] {
            let mut tries = 0;
            while let Err(error) = target.deliver(&[event("p", &id)]).await.remove(0) {
                assert_ne!(error.verdict(), Verdict::Reject, "{error:?}");
                tries += 1;
                assert!(tries < 200, "{error:?}");
                // bounded: by the tries.
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        }
    }
    let ids: HashSet<String> = subscriber.heard().await.iter().map(|message| arrival(message).id).collect();
    assert_eq!(ids.len(), 20, "{ids:?}");
}
