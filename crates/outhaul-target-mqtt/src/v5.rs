//! The client of MQTT 5: what it is made with, what it says, and what that means.

use outhaul_target::ErrorKind;
use outhaul_target::net::connect;
use rumqttc_v5::{
    AsyncClient, Broker, ConnAck, ConnectReturnCode, ConnectionError, Event, EventLoop, Incoming,
    PublishNotice, PublishNoticeError, PublishOptions, PublishProperties, PublishResult, QoS, StateError,
};

use crate::codec::Message;
use crate::config::{MqttOptions, Qos, Unheard};
use crate::error::{self, Failure};
use crate::session::{CHANNEL, Heard, KEEP_ALIVE_SECONDS, connect_max};

/// How long the server keeps a session whose connection is gone.
const SESSION_SECONDS: u32 = 3600;

/// A client that connects through us, so that TLS is ours as well. Its first session is a clean one.
pub(crate) fn client(options: &MqttOptions, id: &str) -> (AsyncClient, EventLoop) {
    let address = &options.address;
    let mut of = rumqttc_v5::MqttOptions::new(id, Broker::tcp(address.host.clone(), address.port));
    let (host, port) = (address.host.clone(), address.port);
    let (tls, timeout) = (options.tls.clone(), options.connect_timeout);
    of.set_socket_connector(move |_, _| {
        let (host, tls) = (host.clone(), tls.clone());
        async move { connect(&host, port, tls.as_ref(), timeout).await.map_err(std::io::Error::other) }
    });
    of.set_keep_alive(KEEP_ALIVE_SECONDS);
    // At the end of the attempt itself, its deadline is to be heard of.
    of.set_connect_timeout(connect_max(options));
    of.set_clean_start(true);
    of.set_session_expiry_interval(Some(SESSION_SECONDS));
    AsyncClient::builder(of).capacity(CHANNEL).build()
}

/// Who we are, from the next connection on.
pub(crate) fn set_credentials(events: &mut EventLoop, user: String, password: String) {
    events.options.set_credentials(user, password);
}

/// What happens next on the connection, which is made if there is none.
pub(crate) async fn next(events: &mut EventLoop, options: &MqttOptions) -> Result<Heard, Failure> {
    match events.poll().await {
        Ok(Event::Incoming(Incoming::ConnAck(answer))) => {
            // The session was clean once; from here on it is ours.
            events.options.set_clean_start(false);
            // A connection that we do not want, for what the server says about itself, is given up.
            connected(&answer, options).inspect_err(|_| events.clean())
        }
        Ok(_) => Ok(Heard::Other),
        Err(error) => {
            // A session that we do not know of: the answer to the one that we began did not reach us.
            if matches!(error, ConnectionError::SessionStateMismatch { .. }) {
                events.options.set_clean_start(true);
            }
            Err(broken(&error))
        }
    }
}

/// What the server says about itself.
fn connected(answer: &ConnAck, options: &MqttOptions) -> Result<Heard, Failure> {
    let properties = answer.properties.as_ref();
    let level = u8::from(options.qos != Qos::AtMostOnce) + u8::from(options.qos == Qos::ExactlyOnce);
    if let Some(max) = properties.and_then(|of| of.max_qos)
        && level > max
    {
        let detail = format!("the server has QoS {max} at most");
        return Err(Failure::new(ErrorKind::Configuration, detail));
    }
    let max = properties.and_then(|of| of.max_packet_size).and_then(|max| usize::try_from(max).ok());
    Ok(Heard::Connected { packet_bytes_max: max.unwrap_or(usize::MAX) })
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
    let properties = PublishProperties {
        content_type: message.content_type,
        user_properties: message.properties,
        ..PublishProperties::default()
    };
    let options = PublishOptions::new(qos).properties(properties);
    let sent = client.publish_tracked(message.topic, message.payload, options).await;
    // Its text holds the request, and with it the event.
    sent.map_err(|_| Failure::new(ErrorKind::ConnectionReset, "the client does not take the message"))
}

/// What became of a message.
pub(crate) async fn outcome(notice: PublishNotice, unheard: Unheard) -> Result<(), Failure> {
    let code = match notice.wait_async().await {
        Ok(PublishResult::Qos0Flushed) => return Ok(()),
        Ok(PublishResult::Qos1(answer)) => answer.reason as u8,
        // The second half of QoS 2 cannot refuse any more.
        Ok(PublishResult::Qos2Completed(_)) => return Ok(()),
        Ok(PublishResult::Qos2PubRecRejected(answer)) => answer.reason as u8,
        Err(PublishNoticeError::SessionReset) => return Err(error::session_lost()),
        Err(PublishNoticeError::V5PubAck(reason)) => reason as u8,
        Err(PublishNoticeError::V5PubRec(reason)) => reason as u8,
        Err(error @ PublishNoticeError::V5PubComp(_)) => {
            return Err(Failure::of(ErrorKind::Conflict, &error));
        }
        Err(PublishNoticeError::Recv) => return Err(error::track_lost()),
        Err(error @ PublishNoticeError::Qos0NotFlushed) => {
            return Err(Failure::of(ErrorKind::ConnectionReset, &error));
        }
        Err(error) => return Err(Failure::of(ErrorKind::Unknown, &error)),
    };
    if code == NOBODY && unheard == Unheard::Hold {
        let detail = "nobody is subscribed to the topic";
        return Err(Failure::new(ErrorKind::DestinationMissing, detail));
    }
    match error::acknowledged(code) {
        None => Ok(()),
        Some(kind) => Err(Failure::new(kind, format!("the server answered with reason code {code:#04x}"))),
    }
}

/// No matching subscribers.
const NOBODY: u8 = 0x10;

/// A connection that could not be made, or broke.
fn broken(error: &ConnectionError) -> Failure {
    let kind = match error {
        ConnectionError::ConnectionRefused(code) => refused(*code),
        ConnectionError::MqttState(StateError::ConnFail { reason }) => refused(*reason),
        ConnectionError::MqttState(StateError::ServerDisconnect { reason_code, .. }) => {
            error::disconnected(*reason_code as u8)
        }
        ConnectionError::Timeout(_) => ErrorKind::Unreachable,
        ConnectionError::MqttState(StateError::Deserialization(_) | StateError::ProtocolViolation(_))
        | ConnectionError::NotConnAck(_) => ErrorKind::ProtocolViolation,
        _ => ErrorKind::ConnectionReset,
    };
    Failure::of(kind, error)
}

fn refused(code: ConnectReturnCode) -> ErrorKind {
    use ConnectReturnCode as Of;
    match code {
        Of::BadUserNamePassword | Of::NotAuthorized | Of::BadAuthenticationMethod => {
            ErrorKind::Authentication
        }
        Of::Banned => ErrorKind::Permission,
        Of::ServiceUnavailable | Of::ServerUnavailable | Of::ServerBusy => ErrorKind::Unavailable,
        Of::QuotaExceeded | Of::ConnectionRateExceeded => ErrorKind::Unavailable,
        Of::MalformedPacket | Of::ProtocolError => ErrorKind::ProtocolViolation,
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
            (ConnectReturnCode::Banned, ErrorKind::Permission),
            (ConnectReturnCode::ServerBusy, ErrorKind::Unavailable),
            (ConnectReturnCode::ClientIdentifierNotValid, ErrorKind::Configuration),
            (ConnectReturnCode::UnsupportedProtocolVersion, ErrorKind::Configuration),
        ] {
            let failure = broken(&ConnectionError::ConnectionRefused(code));
            assert_eq!((failure.kind, failure.kind.verdict()), (expected, Verdict::Hold), "{code:?}");
        }
        let aborted = broken(&ConnectionError::MqttState(StateError::ConnectionAborted));
        assert_eq!(aborted.kind, ErrorKind::ConnectionReset);
    }
}
