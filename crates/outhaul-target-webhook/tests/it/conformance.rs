//! The conformance kit, in each mode.

use std::time::Duration;

use outhaul_target::outhaul_event::{Event, Limits};
use outhaul_target::testkit::{Arrival, Condition, Fixture, Unsupported};
use outhaul_target::{TargetUri, async_trait};
use outhaul_target_webhook::Webhook;

use crate::support::{Answer, Receiver, Request};

fn limits() -> Limits {
    Limits { body_bytes_max: 1 << 21, ..Limits::default() }
}

struct Server<const STRUCTURED: bool>(Receiver);

#[async_trait]
impl<const STRUCTURED: bool> Fixture for Server<STRUCTURED> {
    type Target = Webhook;

    async fn start() -> Self {
        Self(Receiver::start())
    }

    async fn target(&self, timeout: Duration) -> Webhook {
        let mode = if STRUCTURED { "structured" } else { "binary" };
        let millis = timeout.as_millis();
        let address = self.0.address;
        let text = format!(
            "http://user:s3cret-password@{address}/hook?key=s3cret-key&outhaul.mode={mode}&outhaul.timeout={millis}ms"
        );
        Webhook::from_uri(TargetUri::parse(&text).unwrap()).unwrap()
    }

    async fn arrived(&self) -> Vec<Arrival> {
        let requests = self.0.requests();
        requests.iter().filter(|request| request.method == "POST").map(arrival).collect()
    }

    async fn set(&self, condition: Condition) -> Result<(), Unsupported> {
        let ok = Answer::Status(202, Vec::new());
        self.0.answer(match condition {
            Condition::Healthy | Condition::Refusing => ok,
            Condition::Hanging => Answer::Hang,
            Condition::Flaky => Answer::Flaky,
            Condition::Throttling => Answer::Status(429, Vec::new()),
            Condition::Missing => Answer::Status(404, Vec::new()),
            _ => return Err(Unsupported("the receiver of this fixture is a part of the test's process")),
        });
        match condition {
            Condition::Refusing => self.0.stop(),
            _ => self.0.start_again(),
        }
        Ok(())
    }

    fn secrets(&self) -> Vec<String> {
        // As it is written, and as basic authentication sends it.
        ["s3cret-password", "s3cret-key", "dXNlcjpzM2NyZXQtcGFzc3dvcmQ"].map(str::to_owned).to_vec()
    }
}

fn arrival(request: &Request) -> Arrival {
    let dedup_id = request.headers["webhook-id"].to_str().unwrap().to_owned();
    let event = if request.headers.contains_key("ce-id") {
        let headers = request.headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
        Event::from_headers(headers, request.body.clone(), &limits()).unwrap()
    } else {
        Event::from_json(&request.body, &limits()).unwrap()
    };
    Arrival::from_event(&event, Some(dedup_id))
}

mod binary {
    outhaul_target::conformance!(super::Server<false>);
}

mod structured {
    outhaul_target::conformance!(super::Server<true>);
}
