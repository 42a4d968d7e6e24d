//! mosquitto. It writes down what it holds at SIGTERM and SIGUSR1, and every second here.

use std::process::Command;

use crate::error::Error;
use crate::files;
use crate::kind::Access;
use crate::server::Server;
use crate::{PASSWORD, USER};

pub(super) fn prepare(server: &Server) -> Result<(), Error> {
    files::directory(&server.data())?;
    let base = format!(
        "user {}\npersistence true\npersistence_location {}/\nautosave_interval 1\n\
         max_inflight_messages 0\nmax_queued_messages 0\nlog_type error\nlog_type warning\nlog_type notice\n\
         listener {} 127.0.0.1",
        if rustix::process::geteuid().is_root() { "root" } else { "nobody" },
        server.data().display(),
        server.address().port()
    );
    let access = match server.access() {
        Access::Plain => "allow_anonymous true".to_owned(),
        Access::Password => {
            let passwords = server.directory().join("passwords");
            let mut command = Command::new("mosquitto_passwd");
            files::run(command.args(["-b", "-c"]).arg(&passwords).args([USER, PASSWORD]))?;
            format!("allow_anonymous false\npassword_file {}", passwords.display())
        }
        Access::Tls => tls(server, false),
        Access::MutualTls => tls(server, true),
    };
    files::write(&server.directory().join("mosquitto.conf"), super::lines(server, &[&base, &access]))
}

fn tls(server: &Server, certificate: bool) -> String {
    let [ca, cert, key] = ["ca.pem", "server.pem", "server.key"].map(|file| server.tls(file));
    format!(
        "allow_anonymous true\ncafile {ca}\ncertfile {cert}\nkeyfile {key}\nrequire_certificate {certificate}"
    )
}

pub(super) fn command(server: &Server) -> Command {
    let mut command = Command::new(&server.program);
    command.arg("-c").arg(server.directory().join("mosquitto.conf"));
    command
}
