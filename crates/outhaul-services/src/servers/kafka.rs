//! tansu, in memory: a start forgets everything.

use std::process::Command;

use crate::error::Error;
use crate::server::Server;

#[expect(clippy::unnecessary_wraps, reason = "as the other servers")]
pub(super) fn prepare(_server: &Server) -> Result<(), Error> {
    Ok(())
}

pub(super) fn command(server: &Server) -> Command {
    let mut command = Command::new(&server.program);
    let url = format!("tcp://{}", server.address());
    // Both: its default is all interfaces.
    command.args(["broker", "--listener-url", &url, "--advertised-listener-url", &url]);
    command
        .args(["--storage-engine", "memory://tansu/"])
        .args(server.config())
        .current_dir(server.directory());
    command
}
