//! pulsar-lite.

use std::process::Command;

use crate::error::Error;
use crate::files;
use crate::server::Server;

pub(super) fn prepare(server: &Server) -> Result<(), Error> {
    files::directory(&server.data())?;
    let address = server.address();
    let base = format!("addr = \"{address}\"\ndb_path = \"{}\"", server.data().join("db").display());
    // Without a port of its own it opens one on all interfaces.
    let metrics = format!("[metrics]\naddr = \"127.0.0.1:{}\"", server.ports[1]);
    files::write(&server.directory().join("pulsar.toml"), super::lines(server, &[&base, &metrics]))
}

pub(super) fn command(server: &Server) -> Command {
    let mut command = Command::new(&server.program);
    command.arg("--config").arg(server.directory().join("pulsar.toml")).current_dir(server.directory());
    command
}
