//! The client of MQTT 3.1.1: what it is made with, what it says, and what that means.

use outhaul_target::ErrorKind;
use outhaul_target::net::connect;
use rumqttc_v4::{
    AsyncClient, Broker, ConnectReturnCode, ConnectionError, Event, EventLoop, Incoming, PublishNotice,
    PublishNoticeError, PublishOptions, QoS, StateError,
};

use crate::codec::Message;
use crate::config::{MqttOptions, PACKET_BYTES_MAX, Qos};
use crate::error::{self, Failure};
use crate::session::{CHANNEL, Heard, KEEP_ALIVE_SECONDS, connect_max};

/// Messages that await their acknowledgement at the same time.
const IN_FLIGHT: u16 = 1_000;
/// Nothing but acknowledgements comes in.
const INCOMING_BYTES_MAX: usize = 10 * 1024;

/// A client that connects through us, so that TLS is ours as well. Its first session is a clean one.
pub(crate) fn client(options: &MqttOptions, id: &str) -> (AsyncClient, EventLoop) {
    let address = &options.address;
    let mut of = rumqttc_v4::MqttOptions::new(id, Broker::tcp(address.host.clone(), address.port));
    let (host, port) = (address.host.clone(), address.port);
    let (tls, timeout) = (options.tls.clone(), options.connect_timeout);
    of.set_socket_connector(move |_, _| {
        let (host, tls) = (host.clone(), tls.clone());
        async move { connect(&host, port, tls.as_ref(), timeout).await.map_err(std::io::Error::other) }
    });
    of.set_keep_alive(KEEP_ALIVE_SECONDS);
    of.set_clean_session(true);
    of.set_inflight(IN_FLIGHT);
    of.set_max_packet_size(INCOMING_BYTES_MAX, PACKET_BYTES_MAX);
    let (client, mut events) = AsyncClient::builder(of).capacity(CHANNEL).build();
    let mut network = events.network_options();
    // It knows whole seconds only.
    network.set_connection_timeout(connect_max(options).as_secs() + 1);
    events.set_network_options(network);
    (client, events)
}

/// Who we are, from the next connection on.
pub(crate) fn set_credentials(events: &mut EventLoop, user: String, password: String) {
    events.mqtt_options.set_credentials(user, password);
}

/// What happens next on the connection, which is made if there is none.
pub(crate) async fn next(events: &mut EventLoop, options: &MqttOptions) -> Result<Heard, Failure> {
    match events.poll().await {
        // A session that was asked to be clean ends with its connection: it has only swept away what was there before.
        Ok(Event::Incoming(Incoming::ConnAck(_)))
            if options.client_id.is_some() && events.mqtt_options.clean_session() =>
        {
            events.mqtt_options.set_clean_session(false);
            events.clean();
            Ok(Heard::Other)
        }
        Ok(Event::Incoming(Incoming::ConnAck(_))) => Ok(Heard::Connected { packet_bytes_max: usize::MAX }),
        Ok(_) => Ok(Heard::Other),
        Err(error) => {
            // A session that we do not know of: the answer to the one that we began did not reach us.
            if matches!(error, ConnectionError::SessionStateMismatch { .. }) {
                events.mqtt_options.set_clean_session(true);
            }
            Err(broken(&error))
        }
    }
}

pub(crate) async fn publish(
    client: &AsyncClient,
    message: Message,
    qos: Qos,
) -> Result<PublishNotice, Failure> {
    let qos = match qos {
        Qos::AtMostOnce => QoS::AtMostOnce,
        Qos::AtLeastOnce => QoS::AtLeastOnce,
        Qos::ExactlyOnce => QoS::ExactlyOnce,
    };
    let sent = client.publish_tracked(message.topic, message.payload, PublishOptions::new(qos)).await;
    // Its text holds the request, and with it the event.
    sent.map_err(|_| Failure::new(ErrorKind::ConnectionReset, "the client does not take the message"))
}

/// What became of a message. A server that refuses one cannot say so in 3.1.1.
pub(crate) async fn outcome(notice: PublishNotice) -> Result<(), Failure> {
    match notice.wait_async().await {
        Ok(_) => Ok(()),
        Err(PublishNoticeError::SessionReset) => Err(error::session_lost()),
        Err(PublishNoticeError::Recv) => Err(error::track_lost()),
        Err(error @ PublishNoticeError::Qos0NotFlushed) => {
            Err(Failure::of(ErrorKind::ConnectionReset, &error))
        }
        Err(error) => Err(Failure::of(ErrorKind::Unknown, &error)),
    }
}

/// A connection that could not be made, or broke.
fn broken(error: &ConnectionError) -> Failure {
    let kind = match error {
        ConnectionError::ConnectionRefused(code) => refused(*code),
        ConnectionError::NetworkTimeout => ErrorKind::Unreachable,
        ConnectionError::MqttState(StateError::Deserialization(_) | StateError::ProtocolViolation(_))
        | ConnectionError::NotConnAck(_) => ErrorKind::ProtocolViolation,
        _ => ErrorKind::ConnectionReset,
    };
    Failure::of(kind, error)
}

fn refused(code: ConnectReturnCode) -> ErrorKind {
    match code {
        ConnectReturnCode::BadUserNamePassword | ConnectReturnCode::NotAuthorized => {
            ErrorKind::Authentication
        }
        ConnectReturnCode::ServiceUnavailable => ErrorKind::Unavailable,
        _ => ErrorKind::Configuration,
    }
}

#[cfg(test)]
mod tests {
    use outhaul_target::Verdict;

    use super::*;

    #[test]
    fn a_connection_that_is_not_made_holds() {
        for (code, expected) in [
            (ConnectReturnCode::NotAuthorized, ErrorKind::Authentication),
            (ConnectReturnCode::BadUserNamePassword, ErrorKind::Authentication),
            (ConnectReturnCode::ServiceUnavailable, ErrorKind::Unavailable),
            (ConnectReturnCode::BadClientId, ErrorKind::Configuration),
            (ConnectReturnCode::RefusedProtocolVersion, ErrorKind::Configuration),
        ] {
            let failure = broken(&ConnectionError::ConnectionRefused(code));
            assert_eq!((failure.kind, failure.kind.verdict()), (expected, Verdict::Hold), "{code:?}");
        }
        assert_eq!(broken(&ConnectionError::NetworkTimeout).kind, ErrorKind::Unreachable);
        let aborted = broken(&ConnectionError::MqttState(StateError::ConnectionAborted));
        assert_eq!(aborted.kind, ErrorKind::ConnectionReset);
    }
}
